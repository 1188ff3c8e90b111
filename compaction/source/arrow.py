"""The records of log directories at rest as batches of Arrow, without a copy and without Spark.

The first eight columns are those of Spark's own Kafka source with the same types and nulls: ``headers`` is null for a record
without headers; ``timestampType`` is 0 for CreateTime, 1 for LogAppendTime, -1 for v0 messages, which have no timestamp. The
others describe the record's batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextvars import copy_context
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from compaction.errors import StorageError, UsageError
from compaction.files.calls import call
from compaction.formats.record_batch import CODEC, CONTROL, LOG_APPEND_TIME, MAGIC, TRANSACTIONAL
from compaction.kernels.columns import HEADERS, KEYS, VALUES, Bytes
from compaction.names import TopicPartition
from compaction.printable import printable
from compaction.source.latest import read_latest
from compaction.source.read_columns import Records, read_columns
from compaction.source.read_plan import CHANGES, LATEST, ReadRequest, ReadTask, ViewOptions, flag, plan_read

_CODECS = pa.array(["none", "gzip", "snappy", "lz4", "zstd", "5", "6", "7"])
#: of a record with a value, of a tombstone
_CHANGES = pa.array(["upsert", "delete"])
_VARIABLE = {"key": KEYS, "value": VALUES, "headers": HEADERS}
_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000

Int64s = NDArray[np.int64]
Versions = dict[str, tuple[int, ...] | None]


def read_batches(options: Mapping[str, str]) -> pa.RecordBatchReader:
    """The records of a read, log by log, in batches that are decoded when they are asked for.

    :param options: ``compaction.source.read_plan.OPTIONS``
    :raises UsageError: an option is invalid, or there is no such topic
    """
    steps = _in_own_context(_steps(options))
    return pa.RecordBatchReader.from_batches(next(steps), steps)


def _in_own_context(steps: Generator[Any, None, None]) -> Iterator[Any]:
    """The steps of a generator whose call is open until its end, and is not that of the code which takes them."""
    context, end = copy_context(), object()
    try:
        while (step := context.run(next, steps, end)) is not end:
            yield step
    finally:
        context.run(steps.close)


def _steps(options: Mapping[str, str]) -> Generator[Any, None, None]:
    """The schema, when the read has been planned; then its batches."""
    with call():
        request = ReadRequest.parse(options)
        schema = read_schema(options)
        check_columns(schema.names, request.view.view)
        tasks = [(task, versions(task)) for task in plan_read(request, variable_columns(schema.names))]
        yield schema
        for task, planned in tasks:
            require_unchanged(task, planned, "this read was planned")
            yield from batches_of(task, schema)


def versions(task: ReadTask) -> Versions:
    """Size, time of change and inode of each file of a task."""
    found = {path: task.spec.files.stat(path) for path in {part.path for part in task.slices}}
    return {path: None if file is None else (file.size, file.mtime_ns, file.inode) for path, file in found.items()}


def require_unchanged(task: ReadTask, planned: Versions, what: str) -> None:
    """:raises StorageError: a file is another one than when the task was planned, by ``what``, or is gone"""
    for path, version in versions(task).items():
        if version != planned[path]:
            raise StorageError(f"was changed after {what}", path=path, hint="load it again")


def batches_of(task: ReadTask, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of a task."""
    columns = ArrowColumns(schema, task.topic_partition)
    if task.tombstones is not None:
        for part, records, newest, superseded in read_latest(task.slices, task.spec, tombstones=task.tombstones):
            if newest.any():
                yield columns.batch(records, part.segment, superseded).filter(pa.array(newest))
        return
    for part in task.slices:
        for records in read_columns(part.path, part.start, part.end, task.spec):
            yield columns.batch(records, part.segment)


def read_schema(options: Mapping[str, str]) -> pa.Schema:
    """The schema of a read; timestamps are microseconds in UTC.

    :param options: of the read; by default, all columns of records and of the view, with ``batchColumns`` also those of batches
    :raises UsageError: there is no such column, or an option of the view is invalid
    """
    given = {name.lower(): value for name, value in options.items()}
    view = ViewOptions.parse(given).view
    if "columns" in given:
        names = [name.strip() for name in given["columns"].split(",")]
    else:
        batch = _BATCH_COLUMNS if flag(given, "batchcolumns") else ()
        names = [*_RECORD_COLUMNS, *batch, *_OF_VIEW[view]]
    return pa.schema([pa.field(name, type_of(name)) for name in names])


def check_columns(names: Sequence[str], view: str | None) -> None:
    """:raises UsageError: a column is one of another view"""
    for name in names:
        if name in _VIEW_COLUMNS and name not in _OF_VIEW[view]:
            raise UsageError(f"column {name} needs the option view", hint=f"view={LATEST} or view={CHANGES}")


def type_of(name: str) -> pa.DataType:
    """:raises UsageError: there is no such column"""
    if name not in _COLUMNS:
        raise UsageError(f"kafka_log has no column {name!r}", hint="it has: " + ", ".join(_COLUMNS))
    return _COLUMNS[name].type


def variable_columns(names: Sequence[str]) -> int:
    """The bits of the columns of variable size among ``names``."""
    return sum(bit for name, bit in _VARIABLE.items() if name in names)


class ArrowColumns:
    """Builds Arrow batches of a task's records, all of one partition."""

    def __init__(self, schema: pa.Schema, topic_partition: TopicPartition) -> None:
        self._schema = schema
        self._topic_partition = topic_partition
        self._warned = False

    def batch(self, records: Records, segment: int, superseded: Int64s | None = None) -> pa.RecordBatch:
        source = _Source(records, len(records.columns.offset), segment, superseded, self._topic_partition)
        arrays = [_COLUMNS[field.name].array(source, field.type) for field in self._schema]
        if "timestamp" in self._schema.names:
            self._check_timestamps(records)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

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
    """A column: its type, and its array, of which the second parameter is the type that Spark wants."""

    type: pa.DataType
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


def _field(name: str, kind: pa.DataType) -> _Column:
    """A column with a field of the batches' headers."""
    dtype = np.int64 if kind == pa.int64() else np.int32
    return _Column(kind, lambda source, _: source.of_batches(source.records.rows[name].astype(dtype)))


_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_RECORD_COLUMNS = {
    "key": _Column(pa.binary(), lambda source, kind: _bytes(source.records.columns.keys, source.n, kind)),
    "value": _Column(pa.binary(), lambda source, kind: _bytes(source.records.columns.values, source.n, kind)),
    "topic": _Column(pa.string(), _topics),
    "partition": _Column(pa.int32(), lambda source, _: pa.array(np.full(source.n, source.topic_partition.partition, np.int32))),
    "offset": _Column(pa.int64(), lambda source, _: pa.array(source.records.columns.offset)),
    "timestamp": _Column(pa.timestamp("us", "UTC"), _timestamps),
    "timestampType": _Column(pa.int32(), _timestamp_types),
    "headers": _Column(pa.list_(_HEADER), _headers),
}
_BATCH_COLUMNS = {
    "producerId": _field("producer_id", pa.int64()),
    "producerEpoch": _field("producer_epoch", pa.int32()),
    "leaderEpoch": _field("leader_epoch", pa.int32()),
    "baseOffset": _field("base_offset", pa.int64()),
    "segment": _Column(pa.int64(), lambda source, _: pa.array(np.full(source.n, source.segment, np.int64))),
    "position": _field("position", pa.int64()),
    "magic": _field("magic", pa.int32()),
    "codec": _Column(
        pa.string(),
        lambda source, _: _CODECS.take(source.of_batches((source.records.rows["attributes"] & CODEC).astype(np.int32))),
    ),
    "control": _Column(pa.bool_(), lambda source, _: source.flag(CONTROL)),
    "transactional": _Column(pa.bool_(), lambda source, _: source.flag(TRANSACTIONAL)),
}
#: the columns that only a view has
_VIEW_COLUMNS = {
    "superseded": _Column(pa.int64(), lambda source, _: pa.array(source.superseded)),
    "change": _Column(
        pa.string(), lambda source, _: _CHANGES.take(pa.array((source.records.columns.value_size < 0).astype(np.int32)))
    ),
}
_OF_VIEW: Mapping[str | None, tuple[str, ...]] = {None: (), LATEST: ("superseded",), CHANGES: ("superseded", "change")}
_COLUMNS = _RECORD_COLUMNS | _BATCH_COLUMNS | _VIEW_COLUMNS
