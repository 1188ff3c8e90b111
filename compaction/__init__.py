"""Offline Kafka log compaction on Spark: the broker's log cleaner for log directories at rest."""

__version__ = "0.1.0"
