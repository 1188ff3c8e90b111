"""Who may work in a log directory: Kafka's lock file, this program's own claims, and where locks do not work."""
