"""Backup sets of kafka-backup: the manifest and the segment files."""
