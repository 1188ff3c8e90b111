"""``spark.read.format("kafka_log").load(DIR)``: the records of log directories at rest as a DataFrame.

    orders = spark.read.format("kafka_log").option("topic", "orders").load("/var/lib/kafka/data")

The columns are those of Spark's own Kafka source (``compaction.source.arrow_columns``), the options those of
``compaction.source.read_plan.OPTIONS``. Records become Arrow batches without a copy. Filters on ``topic``, ``partition``,
``offset`` and ``timestamp`` select files, byte ranges and batches before anything is decoded, from PySpark 4.1 on, if the
session has ``spark.sql.python.filterPushdown.enabled=true``. PySpark 4.0 has no filter pushdown for Python; use the options
there. PySpark does not pass the columns of a query to a Python data source: name them with the option ``columns`` or
``spark.read.schema(…)``, and no others are decoded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compaction.source.arrow_columns import ArrowColumns, check_schema, source_schema, variable_columns
from compaction.source.latest import read_latest
from compaction.source.pushed_filters import PushedFilters, push_filters
from compaction.source.read_columns import read_columns
from compaction.source.read_plan import ReadRequest, plan_read
from compaction.source.read_plan import end_offsets as planned_end_offsets
from compaction.source.view_options import ViewOptions, flag, offsets_json
from compaction.storage.calls import environment

FORMAT = "kafka_log"
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_WORKERS_PYTHON = "spark.sql.execution.pyspark.python"
_ALREADY_FOUND = "DATA_SOURCE_ALREADY_EXISTS"
#: the process in which PySpark pushes filters down; elsewhere it refuses a reader that could take filters unless the session
#: enables the pushdown, a setting that a data source cannot read
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


def register(spark: SparkSession) -> None:
    """Register the format ``kafka_log`` with a session, with filter pushdown on PySpark 4.1 and newer.

    Spark finds the format by itself (``pyspark_kafka_log``) if the driver's Python has this package, and then registers no
    other: without pushdown unless the session enables that, and on executors with the driver's interpreter unless the session
    names theirs.
    """
    spark.conf.set(_PUSHDOWN, "true")
    try:
        spark.dataSource.register(KafkaLogSource)
    except AnalysisException as error:
        if error.getCondition() != _ALREADY_FOUND:
            raise
        python = spark.conf.get("spark.pyspark.python", None)
        if python is not None:
            spark.conf.set(_WORKERS_PYTHON, python)


def end_offsets(path: str, **options: str) -> str:
    """The offsets at which a read of logs would end now, in the form of the options ``startingOffsets`` and ``endingOffsets``.

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
        tasks = plan_read(self._request, self._pushed, variable_columns(self._schema))
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task = partition.value
        if task is None:
            # Spark reads one partition of None if there are no input partitions
            return
        os.environ.update(self._environment)
        columns = ArrowColumns(self._schema, task.topic_partition)
        if task.latest is not None:
            for latest in read_latest(task.slices, task.spec, task.latest):
                if latest.newest.any():
                    yield columns.latest(latest)
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
    """The data source, with filter pushdown if PySpark has it and the session enables it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        options = {name.lower(): value for name, value in self.options.items()}
        view = ViewOptions.parse(options).view
        return source_schema(options.get("columns"), batch_columns=flag(self.options, "batchcolumns"), view=view)

    def reader(self, schema: StructType) -> DataSourceReader:
        reader = FilteringKafkaLogReader if _is_pushdown_worker() else KafkaLogReader
        return reader(dict(self.options), schema)


def _is_pushdown_worker() -> bool:
    started = getattr(sys.modules["__main__"], "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or getattr(started, "name", None) == _PUSHDOWN_WORKER
