"""``spark.read.format("kafka_log").load(DIR)``: the records of log directories at rest as a DataFrame.

    from compaction.source.data_source import register
    register(spark)
    orders = spark.read.format("kafka_log").option("topic", "orders").load("/var/lib/kafka/data")

The columns are those of Spark's own Kafka source (``compaction.source.arrow_columns``), the options those of
``compaction.source.read_plan.OPTIONS``. Records become Arrow batches without a copy. Filters on ``topic``, ``partition``,
``offset`` and ``timestamp`` select files, byte ranges and batches before anything is decoded, from PySpark 4.1 on. PySpark 4.0
has no filter pushdown for Python; use the options there. PySpark does not pass the columns of a query to a Python data source:
name them with the option ``columns`` or ``spark.read.schema(…)``, and no others are decoded.
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
from compaction.source.latest import read_latest
from compaction.source.pushed_filters import PushedFilters, push_filters
from compaction.source.read_columns import read_columns
from compaction.source.read_plan import ReadRequest, flag, plan_read
from compaction.source.read_plan import end_offsets as planned_end_offsets
from compaction.source.view_options import ViewOptions, offsets_json

FORMAT = "kafka_log"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Register the format ``kafka_log`` with a session, with filter pushdown on PySpark 4.1 and newer."""
    if hasattr(DataSourceReader, "pushFilters"):
        spark.conf.set(_PUSHDOWN, "true")
        spark.dataSource.register(FilteringKafkaLogSource)
    else:
        spark.dataSource.register(KafkaLogSource)


def end_offsets(path: str, **options: str) -> str:
    """Where a read of logs would end now, in the form of the options ``startingOffsets`` and ``endingOffsets``.

    :param options: those of the read; names with dots need ``**{"isolation.level": ...}``
    """
    return offsets_json(planned_end_offsets(ReadRequest.parse({"path": path, **options})))


class KafkaLogReader(DataSourceReader):
    """Plans the read in the driver and executes it in tasks."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._request = ReadRequest.parse(options)
        check_schema(schema, self._request.view.view)
        self._environment = environment()
        self._schema = schema
        self._pushed = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        """One input partition per task."""
        tasks = plan_read(self._request, self._pushed, variable_columns(self._schema))
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one input partition."""
        task = partition.value
        if task is None:
            # Spark reads one partition of None if there are no input partitions
            return
        os.environ.update(self._environment)
        columns = ArrowColumns(self._schema, task.topic_partition)
        if task.latest is not None:
            for found in read_latest(task.slices, task.spec, task.latest):
                if found.newest.any():
                    yield columns.latest(found)
            return
        for part in task.slices:
            for records in read_columns(part.path, part.start, part.end, task.spec):
                yield columns.batch(records, part.segment)


class FilteringKafkaLogReader(KafkaLogReader):
    """A reader with filter pushdown."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802 - PySpark's name
        """Push down what can be; return the filters that Spark still has to apply."""
        self._pushed, rest = push_filters(filters, logs_only=self._request.view.view is not None)
        return iter(rest)


class KafkaLogSource(DataSource):
    """The data source without filter pushdown: for PySpark 4.0, and for sessions that disable it."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> StructType:
        """All record columns, or those that the options name."""
        given = {name.lower(): value for name, value in self.options.items()}
        view = ViewOptions.parse(given).view
        return source_schema(given.get("columns"), batch_columns=flag(self.options, "batchcolumns"), view=view)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in ``schema``."""
        return KafkaLogReader(dict(self.options), schema)


class FilteringKafkaLogSource(KafkaLogSource):
    """The data source with filter pushdown."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in ``schema``."""
        return FilteringKafkaLogReader(dict(self.options), schema)
