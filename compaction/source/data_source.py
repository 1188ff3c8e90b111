"""``spark.read.format("kafka_log").load(DIR)``: the records of log directories at rest as a DataFrame.

    orders = spark.read.format("kafka_log").option("topic", "orders").load("/var/lib/kafka/data")

``compaction.source.arrow`` has the columns. The options are those of ``compaction.source.read_plan.OPTIONS``.

Options, not filters, select files, byte ranges and batches before anything is decoded. The reader takes no filters
(``DataSourceReader.pushFilters``): Spark 4.1 to 4.3 keep the plan of a reader that has taken some for later queries over the
same DataFrame. PySpark does not pass the columns of a query to a Python data source: name them with the option ``columns`` or
``spark.read.schema(…)``, and no others are decoded.

Processes in which Spark plans reads and runs their tasks are used again for other reads: options in the environment
(``compaction.files.uri``) are set for each read. Spark plans a DataFrame once, with its first query: a task of a later one
refuses a file that was changed since.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

from compaction.errors import UsageError
from compaction.files.calls import call, driver_environment, environment
from compaction.source.arrow import (
    batches_of,
    check_columns,
    read_schema,
    require_unchanged,
    type_of,
    variable_columns,
    versions,
)
from compaction.source.read_plan import ReadRequest, ReadTask, offsets_json, plan_read, read_ends

FORMAT = "kafka_log"
_WORKERS_PYTHON = "spark.sql.execution.pyspark.python"
_ALREADY_FOUND = "DATA_SOURCE_ALREADY_EXISTS"


def register(spark: SparkSession) -> None:
    """Register the format ``kafka_log`` with a session.

    Spark finds the format by itself (``pyspark_kafka_log``) if the driver's Python has this package, and then registers no
    other: on executors with the driver's interpreter unless the session names theirs.
    """
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
    with call():
        ends = read_ends(ReadRequest.parse({"path": path, **options}))
        return offsets_json({name: end.offset for name, end in ends.items()})


class LogPartition(InputPartition):
    """A task of a read, and the versions of its files when it was planned."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)
        self.versions = versions(task)


class KafkaLogReader(DataSourceReader):
    """Plans the read in the driver and executes it in tasks."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        with call(leaves_files=True):
            self._request = ReadRequest.parse(options)
            self._environment = environment()
        check_schema(schema, self._request.view.view)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with driver_environment(self._environment):
            return [LogPartition(task) for task in plan_read(self._request, variable_columns(self._schema.fieldNames()))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            # Spark reads one partition of None if there are no input partitions
            return
        task: ReadTask = partition.value
        with driver_environment(self._environment):
            require_unchanged(task, partition.versions, "this DataFrame was planned, by its first query")
            yield from batches_of(task, _in_arrow(self._schema))


class KafkaLogSource(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return source_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return KafkaLogReader(dict(self.options), schema)


def source_schema(options: Mapping[str, str]) -> StructType:
    """The schema of a read, in Spark's types.

    :raises UsageError: there is no such column
    """
    return types.from_arrow_schema(read_schema(options))


def check_schema(schema: StructType, view: str | None = None) -> None:
    """:raises UsageError: the schema has a column that is unknown or of another view, or another type"""
    check_columns(schema.fieldNames(), view)
    for field in schema.fields:
        expected = types.from_arrow_type(type_of(field.name)).simpleString()
        if field.dataType.simpleString() != expected:
            raise UsageError(f"column {field.name} of kafka_log is {expected}, not {field.dataType.simpleString()}")


def _in_arrow(schema: StructType) -> pa.Schema:
    """The schema that Spark wants."""
    # PySpark 4.2 and newer require the time zone, older releases assume it
    options: dict[str, Any] = {"timezone": "UTC"}
    parameters = inspect.signature(types.to_arrow_schema).parameters
    return types.to_arrow_schema(schema, **{name: value for name, value in options.items() if name in parameters})
