"""Erases the records of given keys from logs, whatever their cleanup policy, and certifies it; another policy of the engine."""
