"""Exclusive access to log directories: Kafka's lock file, claims of this program, and file systems without reliable locks."""
