"""``spark.read.format("kafka_log").load(DIR)``: the records of log directories at rest as a DataFrame.

    from compaction.source.data_source import register
    register(spark)
    orders = spark.read.format("kafka_log").option("topic", "orders").load("/var/lib/kafka/data")

The columns are those of Spark's own Kafka source (``compaction.source.arrow_columns``), the options those of
``compaction.source.read_plan.OPTIONS``. Records come as Arrow batches straight from the kernels. Conditions on ``topic``,
``partition``, ``offset`` and ``timestamp`` choose files, index ranges and batches before anything is decoded, from PySpark 4.1
on; PySpark 4.0 has no such interface, there the options do. PySpark does not tell a Python data source which columns a query
uses: give them by the option ``columns`` or by ``spark.read.schema(…)``, and the others are not decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compaction.fs.uri import environment
from compaction.source.arrow_columns import ArrowColumns, check_schema, source_schema, variable_columns
from compaction.source.pushed_filters import PushedFilters, push
from compaction.source.read_columns import read_columns
from compaction.source.read_plan import ReadRequest, ReadTask, flag, plan_read

FORMAT = "kafka_log"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Make the format ``kafka_log`` known to a session, and let it take over filters where PySpark can (4.1 and newer)."""
    if hasattr(DataSourceReader, "pushFilters"):
        spark.conf.set(_PUSHDOWN, "true")
        spark.dataSource.register(FilteringKafkaLogSource)
    else:
        spark.dataSource.register(KafkaLogSource)


class LogInputPartition(InputPartition):
    """One task's share."""

    def __init__(self, share: ReadTask) -> None:
        super().__init__(share)


class KafkaLogReader(DataSourceReader):
    """Plans in the driver, reads in the tasks."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        check_schema(schema)
        self._request = ReadRequest.parse(options)
        self._places = environment()
        self._schema = schema
        self._pushed = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """One input partition a slice."""
        shares = plan_read(self._request, self._pushed, variable_columns(self._schema))
        return [LogInputPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one share."""
        share = partition.value
        if share is None:
            # what Spark asks for where there is no partition at all
            return
        os.environ.update(self._places)
        columns = ArrowColumns(self._schema, share.topic_partition)
        for part in share.slices:
            for found in read_columns(part.path, part.start, part.end, share.reading):
                yield columns.batch(found, part.segment)


class FilteringKafkaLogReader(KafkaLogReader):
    """Takes over filters, too."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802 - PySpark's name
        """Takes what it can; gives what Spark still has to apply."""
        self._pushed, rest = push(filters)
        return iter(rest)


class KafkaLogSource(DataSource):
    """The data source without filters: for PySpark 4.0, and for sessions that have filter pushdown switched off."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """All record columns, or what the options ask for."""
        columns = next((value for name, value in self.options.items() if name.lower() == "columns"), None)
        return source_schema(columns, batch_columns=flag(self.options, "batchcolumns"))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of these columns."""
        return KafkaLogReader(dict(self.options), schema)


class FilteringKafkaLogSource(KafkaLogSource):
    """The data source with filters."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of these columns."""
        return FilteringKafkaLogReader(dict(self.options), schema)
