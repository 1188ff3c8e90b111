"""``spark.read.format("kafka_log").load(DIR)``: the records of log directories at rest as a DataFrame.

    orders = spark.read.format("kafka_log").option("topic", "orders").load("/var/lib/kafka/data")

The first eight columns are those of Spark's own Kafka source with the same types and nulls: ``headers`` is null for a record
without headers; ``timestampType`` is 0 for CreateTime, 1 for LogAppendTime, -1 for v0 messages, which have no timestamp. The
others describe the record's batch. The options are those of ``compaction.source.read_plan.OPTIONS``.

Records become Arrow batches without a copy. Options, not filters, select files, byte
ranges and batches before anything is decoded. The reader takes no filters (``DataSourceReader.pushFilters``): Spark 4.1 to 4.3
keep the plan of a reader that has taken some for later queries over the same DataFrame. PySpark does not pass the columns of
a query to a Python data source: name them with the option ``columns`` or ``spark.read.schema(…)``, and no others are decoded.

Processes in which Spark plans reads and runs their tasks are used again for other reads: options in the environment
(``compaction.files.uri``) are set for each read. Spark plans a DataFrame once, with its first query: a task of a later one
refuses a file that was changed since.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from compaction.errors import StorageError, UsageError
from compaction.files.calls import call, driver_environment, environment
from compaction.formats.record_batch import CODEC, CONTROL, LOG_APPEND_TIME, MAGIC, TRANSACTIONAL
from compaction.kernels.columns import HEADERS, KEYS, VALUES, Bytes
from compaction.names import TopicPartition
from compaction.printable import printable
from compaction.source.latest import LatestRecords, read_latest
from compaction.source.read_columns import Records, read_columns
from compaction.source.read_plan import (
    CHANGES,
    LATEST,
    ReadRequest,
    ReadTask,
    ViewOptions,
    flag,
    offsets_json,
    plan_read,
    read_ends,
)

FORMAT = "kafka_log"
_WORKERS_PYTHON = "spark.sql.execution.pyspark.python"
_ALREADY_FOUND = "DATA_SOURCE_ALREADY_EXISTS"
_CODECS = pa.array(["none", "gzip", "snappy", "lz4", "zstd", "5", "6", "7"])
#: of a record with a value, of a tombstone
_CHANGES = pa.array(["upsert", "delete"])
_VARIABLE = {"key": KEYS, "value": VALUES, "headers": HEADERS}
_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000

Int64s = NDArray[np.int64]


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
        if task.view is not None:
            for latest in read_latest(task.slices, task.spec, tombstones=task.view.tombstones):
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


def source_schema(columns: str | None, *, batch_columns: bool, view: str | None = None) -> StructType:
    """The schema of a read.

    :param columns: names, separated by commas; ``None`` for all record columns
    :param batch_columns: whether ``None`` includes the columns that describe batches
    :param view: the view that is read, which has columns of its own
    :raises UsageError: there is no such column
    """
    if columns is None:
        names = [*_RECORD_COLUMNS, *(_BATCH_COLUMNS if batch_columns else ()), *_OF_VIEW[view]]
    else:
        names = [name.strip() for name in columns.split(",")]
    return StructType([StructField(name, _type_of(name)) for name in names])


def check_schema(schema: StructType, view: str | None = None) -> None:
    """:raises UsageError: the schema has a column that is unknown or of another view, or another type"""
    for field in schema.fields:
        if field.name in _VIEW_COLUMNS and field.name not in _OF_VIEW[view]:
            raise UsageError(f"column {field.name} needs the option view", hint=f"view={LATEST} or view={CHANGES}")
        expected = _type_of(field.name)
        if field.dataType.simpleString() != expected.simpleString():
            raise UsageError(
                f"column {field.name} of kafka_log is {expected.simpleString()}, not {field.dataType.simpleString()}"
            )


def _type_of(name: str) -> DataType:
    if name not in _COLUMNS:
        raise UsageError(f"kafka_log has no column {name!r}", hint="it has: " + ", ".join(_COLUMNS))
    return _COLUMNS[name].type


def variable_columns(schema: StructType) -> int:
    return sum(bit for name, bit in _VARIABLE.items() if name in schema.fieldNames())


class ArrowColumns:
    """Builds Arrow batches of a task's records, all of one partition."""

    def __init__(self, schema: StructType, topic_partition: TopicPartition) -> None:
        self._schema = arrow_schema(schema)
        self._topic_partition = topic_partition
        self._warned = False

    def batch(self, records: Records, segment: int, superseded: Int64s | None = None) -> pa.RecordBatch:
        source = _Source(records, len(records.columns.offset), segment, superseded, self._topic_partition)
        arrays = [_COLUMNS[field.name].array(source, field.type) for field in self._schema]
        if "timestamp" in self._schema.names:
            self._check_timestamps(records)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def latest(self, latest: LatestRecords) -> pa.RecordBatch:
        return self.batch(latest.records, latest.segment, latest.superseded).filter(pa.array(latest.newest))

    def _check_timestamps(self, records: Records) -> None:
        """Warns of the first timestamp of a task that is not shown as it is: there may be one in each record."""
        given = records.columns.timestamp_ms
        beyond = np.flatnonzero((given < -_MAX_TIMESTAMP_MS) | (given > _MAX_TIMESTAMP_MS))
        if self._warned or not len(beyond):
            return
        self._warned = True
        message = "timestamps beyond the years that Spark can represent are shown as year 294247 or -290308"
        hint = "the producer may have written microseconds or nanoseconds; dump-log prints them as they are"
        first = f"first: {given[beyond[0]]} at offset {records.columns.offset[beyond[0]]} of {self._topic_partition}"
        logging.getLogger(__name__).warning("%s (%s); %s", message, printable(first), hint)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema in Arrow; timestamps are microseconds in UTC."""
    from pyspark.sql.pandas import types

    # PySpark 4.2 and newer require the time zone, older releases assume it
    options: dict[str, Any] = {"timezone": "UTC"}
    parameters = inspect.signature(types.to_arrow_schema).parameters
    return types.to_arrow_schema(schema, **{name: value for name, value in options.items() if name in parameters})


class _Source(NamedTuple):
    """The source of ``n`` rows of columns; ``superseded`` (int64[n]) in a view."""

    records: Records
    n: int
    segment: int
    superseded: Int64s | None
    topic_partition: TopicPartition

    def of_batches(self, values: NDArray[np.generic]) -> pa.Array:
        """By record, the values of the batches."""
        return pa.array(np.repeat(values, self.records.counts))

    def flag(self, bit: int) -> pa.Array:
        rows = self.records.rows
        return self.of_batches(((rows["attributes"] & bit) != 0) & (rows["magic"] >= MAGIC))


class _Column(NamedTuple):
    """A column: its type, and its Arrow array, of which the second parameter is the type in Arrow."""

    type: DataType
    array: Callable[[_Source, pa.DataType], pa.Array]


def _bytes(column: Bytes, n: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, n, [pa.py_buffer(buffer) for buffer in (column.valid, column.offsets, column.data)])


def _topics(source: _Source, kind: pa.DataType) -> pa.Array:
    topic = source.topic_partition.topic.encode()
    offsets = np.arange(source.n + 1, dtype=np.int32) * np.int32(len(topic))
    data = np.tile(np.frombuffer(topic, np.uint8), source.n)
    return pa.Array.from_buffers(kind, source.n, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _timestamps(source: _Source, kind: pa.DataType) -> pa.Array:
    """Microseconds; timestamps beyond the limit become the limit."""
    stamps = np.clip(source.records.columns.timestamp_ms, -_MAX_TIMESTAMP_MS, _MAX_TIMESTAMP_MS)
    return pa.Array.from_buffers(kind, source.n, [None, pa.py_buffer(stamps * 1000)])


def _timestamp_types(source: _Source, _: pa.DataType) -> pa.Array:
    rows = source.records.rows
    append_time = ((rows["attributes"] & LOG_APPEND_TIME) != 0).astype(np.int32)
    return source.of_batches(np.where(rows["magic"] == 0, np.int32(-1), append_time))


def _headers(source: _Source, kind: pa.DataType) -> pa.Array:
    columns = source.records.columns
    struct, starts = kind.value_type, columns.header_starts
    rows = int(starts[-1])
    kinds = struct.field(0).type, struct.field(1).type
    fields = [_bytes(columns.header_keys, rows, kinds[0]), _bytes(columns.header_values, rows, kinds[1])]
    children = pa.Array.from_buffers(struct, rows, [None], children=fields)
    valid = np.packbits(starts[1:] > starts[:-1], bitorder="little")
    return pa.Array.from_buffers(kind, source.n, [pa.py_buffer(valid), pa.py_buffer(starts)], children=[children])


def _codecs(source: _Source, _: pa.DataType) -> pa.Array:
    return _CODECS.take(source.of_batches((source.records.rows["attributes"] & CODEC).astype(np.int32)))


def _changes(source: _Source, _: pa.DataType) -> pa.Array:
    return _CHANGES.take(pa.array((source.records.columns.value_size < 0).astype(np.int32)))


def _field(name: str, kind: DataType) -> _Column:
    """A column with a field of the batches' headers."""
    dtype = np.int64 if kind == LongType() else np.int32
    return _Column(kind, lambda source, _: source.of_batches(source.records.rows[name].astype(dtype)))


_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_RECORD_COLUMNS = {
    "key": _Column(BinaryType(), lambda source, kind: _bytes(source.records.columns.keys, source.n, kind)),
    "value": _Column(BinaryType(), lambda source, kind: _bytes(source.records.columns.values, source.n, kind)),
    "topic": _Column(StringType(), _topics),
    "partition": _Column(
        IntegerType(), lambda source, _: pa.array(np.full(source.n, source.topic_partition.partition, np.int32))
    ),
    "offset": _Column(LongType(), lambda source, _: pa.array(source.records.columns.offset)),
    "timestamp": _Column(TimestampType(), _timestamps),
    "timestampType": _Column(IntegerType(), _timestamp_types),
    "headers": _Column(ArrayType(_HEADER), _headers),
}
_BATCH_COLUMNS = {
    "producerId": _field("producer_id", LongType()),
    "producerEpoch": _field("producer_epoch", IntegerType()),
    "leaderEpoch": _field("leader_epoch", IntegerType()),
    "baseOffset": _field("base_offset", LongType()),
    "segment": _Column(LongType(), lambda source, _: pa.array(np.full(source.n, source.segment, np.int64))),
    "position": _field("position", LongType()),
    "magic": _field("magic", IntegerType()),
    "codec": _Column(StringType(), _codecs),
    "control": _Column(BooleanType(), lambda source, _: source.flag(CONTROL)),
    "transactional": _Column(BooleanType(), lambda source, _: source.flag(TRANSACTIONAL)),
}
#: the columns that only a view has
_VIEW_COLUMNS = {
    "superseded": _Column(LongType(), lambda source, _: pa.array(source.superseded)),
    "change": _Column(StringType(), _changes),
}
_OF_VIEW: Mapping[str | None, tuple[str, ...]] = {None: (), LATEST: ("superseded",), CHANGES: ("superseded", "change")}
_COLUMNS = _RECORD_COLUMNS | _BATCH_COLUMNS | _VIEW_COLUMNS
