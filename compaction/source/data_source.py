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

import json
from collections.abc import Iterator, Sequence
from inspect import signature
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
from compaction.source.read_plan import ReadRequest, plan_read, read_ends

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
    topics: dict[str, dict[str, int]] = {}
    with call():
        for name, end in sorted(read_ends(ReadRequest.parse({"path": path, **options})).items()):
            topics.setdefault(name.topic, {})[str(name.partition)] = end.offset
    return json.dumps(topics)


class KafkaLogReader(DataSourceReader):
    """Plans the read in the driver and executes it in tasks.

    :raises UsageError: an option is invalid, or the schema has a column that is unknown or of another view, or another type
    """

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        with call(leaves_files=True):
            self._request = ReadRequest.parse(options)
            self._environment = environment()
        check_columns(schema.fieldNames(), self._request.view.view)
        for field in schema.fields:
            expected, given = types.from_arrow_type(type_of(field.name)).simpleString(), field.dataType.simpleString()
            if given != expected:
                raise UsageError(f"column {field.name} of kafka_log is {expected}, not {given}")
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks, each with the versions of its files."""
        with driver_environment(self._environment):
            tasks = plan_read(self._request, variable_columns(self._schema.fieldNames()))
            return [InputPartition((task, versions(task))) for task in tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is None:
            # Spark reads one partition of None if there are no input partitions
            return
        task, planned = partition.value
        with driver_environment(self._environment):
            require_unchanged(task, planned, "this DataFrame was planned, by its first query")
            yield from batches_of(task, _in_arrow(self._schema))


class KafkaLogSource(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return types.from_arrow_schema(read_schema(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return KafkaLogReader(dict(self.options), schema)


def _in_arrow(schema: StructType) -> pa.Schema:
    """The schema that Spark wants."""
    # PySpark 4.2 and newer require the time zone, older releases assume it
    options: dict[str, Any] = {"timezone": "UTC"}
    return types.to_arrow_schema(schema, **(options if "timezone" in signature(types.to_arrow_schema).parameters else {}))
