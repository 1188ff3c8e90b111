"""Prints and verifies the files of log directories as Kafka's dump tool does."""
