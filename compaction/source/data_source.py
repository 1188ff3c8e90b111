"""``spark.read.format("kafka_log").load(DIR)``: the records of log directories at rest as a DataFrame.

    orders = spark.read.format("kafka_log").option("topic", "orders").load("/var/lib/kafka/data")

The columns are those of Spark's own Kafka source (``compaction.source.arrow_columns``), the options those of
``compaction.source.read_plan.OPTIONS``. Records become Arrow batches without a copy. Options, not filters, select files, byte
ranges and batches before anything is decoded. The reader takes no filters (``DataSourceReader.pushFilters``): Spark 4.1 to 4.3
keep the plan of a reader that has taken some for later queries over the same DataFrame. PySpark does not pass the columns of
a query to a Python data source: name them with the option ``columns`` or ``spark.read.schema(…)``, and no others are decoded.

Processes in which Spark plans reads and runs their tasks are used again for other reads: options in the environment
(``compaction.files.uri``) are set for each read. Spark plans a DataFrame once, with its first query: a task of a later one
refuses a file that was changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from compaction.errors import StorageError
from compaction.files.calls import call, driver_environment, environment
from compaction.source.arrow_columns import ArrowColumns, check_schema, source_schema, variable_columns
from compaction.source.latest import read_latest
from compaction.source.read_columns import read_columns
from compaction.source.read_plan import ReadRequest, ReadTask, plan_read
from compaction.source.read_plan import end_offsets as planned_end_offsets
from compaction.source.view_options import ViewOptions, flag, offsets_json

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
        return offsets_json(planned_end_offsets(ReadRequest.parse({"path": path, **options})))


class LogPartition(InputPartition):
    """A task of a read, and the versions of its files when it was planned."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)
        self._versions = _versions(task)

    def require_unchanged(self) -> None:
        """:raises StorageError: a file is another one now, or is gone"""
        for path, version in _versions(self.value).items():
            if version != self._versions[path]:
                problem = "was changed after this DataFrame was planned, by its first query"
                raise StorageError(problem, path=path, hint="load it again")


def _versions(task: ReadTask) -> dict[str, tuple[int, ...] | None]:
    """Size, time of change and inode of each file of a task."""
    found = {path: task.spec.files.stat(path) for path in {part.path for part in task.slices}}
    return {path: None if file is None else (file.size, file.mtime_ns, file.inode) for path, file in found.items()}


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
            return [LogPartition(task) for task in plan_read(self._request, variable_columns(self._schema))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogPartition):
            # Spark reads one partition of None if there are no input partitions
            return
        task: ReadTask = partition.value
        with driver_environment(self._environment):
            partition.require_unchanged()
            yield from self._batches(task)

    def _batches(self, task: ReadTask) -> Iterator[pa.RecordBatch]:
        columns = ArrowColumns(self._schema, task.topic_partition)
        if task.latest is not None:
            for latest in read_latest(task.slices, task.spec, task.latest):
                if latest.newest.any():
                    yield columns.latest(latest)
            return
        for part in task.slices:
            for records in read_columns(part.path, part.start, part.end, task.spec):
                yield columns.batch(records, part.segment)


class KafkaLogSource(DataSource):
    """The data source."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        options = {name.lower(): value for name, value in self.options.items()}
        view = ViewOptions.parse(options).view
        return source_schema(options.get("columns"), batch_columns=flag(self.options, "batchcolumns"), view=view)

    def reader(self, schema: StructType) -> DataSourceReader:
        return KafkaLogReader(dict(self.options), schema)
