"""The certifier: proves that a log is what cleaning another one may leave, by other means than the cleaner's own."""
