"""Backup sets of kafka-backup, read as logs: their records as record batches in temporary files."""
