"""Lets Spark find the data source ``kafka_log``: it imports installed modules whose names begin with ``pyspark_``, and takes
the ``DefaultSource`` of each.
"""

from compaction.source.data_source import KafkaLogSource as DefaultSource

__all__ = ["DefaultSource"]
