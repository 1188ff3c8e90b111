"""The columns of the ``kafka_log`` data source: names, types, and Arrow arrays of decoded records.

The first eight are those of Spark's own Kafka source with the same types and nulls: ``headers`` is null for a record without
headers; ``timestampType`` is 0 for CreateTime, 1 for LogAppendTime, -1 for v0 messages, which have no timestamp. The others
describe the record's batch.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
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

from compaction.errors import UsageError
from compaction.formats.record_batch import CODEC, CONTROL, LOG_APPEND_TIME, TRANSACTIONAL
from compaction.kernels.columns import HEADERS, KEYS, VALUES, Bytes
from compaction.names import TopicPartition
from compaction.printable import printable
from compaction.source.latest import LatestRecords
from compaction.source.read_columns import Records
from compaction.source.view_options import CHANGES, LATEST

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_RECORD_COLUMNS: tuple[tuple[str, DataType], ...] = (
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestampType", IntegerType()),
    ("headers", ArrayType(_HEADER)),
)
_BATCH_COLUMNS: tuple[tuple[str, DataType], ...] = (
    ("producerId", LongType()),
    ("producerEpoch", IntegerType()),
    ("leaderEpoch", IntegerType()),
    ("baseOffset", LongType()),
    ("segment", LongType()),
    ("position", LongType()),
    ("magic", IntegerType()),
    ("codec", StringType()),
    ("control", BooleanType()),
    ("transactional", BooleanType()),
)
_SUPERSEDED: tuple[str, DataType] = ("superseded", LongType())
_CHANGE: tuple[str, DataType] = ("change", StringType())
#: the columns that only a view has
_VIEW_COLUMNS: Mapping[str | None, tuple[tuple[str, DataType], ...]] = {
    None: (), LATEST: (_SUPERSEDED,), CHANGES: (_SUPERSEDED, _CHANGE),
}  # fmt: skip
_TYPES: Mapping[str, DataType] = dict((*_RECORD_COLUMNS, *_BATCH_COLUMNS, _SUPERSEDED, _CHANGE))
_CODECS = pa.array(["none", "gzip", "snappy", "lz4", "zstd", "5", "6", "7"])
#: of a record with a value, of a tombstone
_CHANGES = pa.array(["upsert", "delete"])
_VARIABLE = {"key": KEYS, "value": VALUES, "headers": HEADERS}
_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000


def source_schema(columns: str | None, *, batch_columns: bool, view: str | None = None) -> StructType:
    """The schema of a read.

    :param columns: names, separated by commas; ``None`` for all record columns
    :param batch_columns: whether ``None`` includes the columns that describe batches
    :param view: the view that is read, which has columns of its own
    :raises UsageError: there is no such column
    """
    if columns is None:
        names = [name for name, _ in _RECORD_COLUMNS + (_BATCH_COLUMNS if batch_columns else ()) + _VIEW_COLUMNS[view]]
    else:
        names = [name.strip() for name in columns.split(",")]
    return StructType([StructField(name, _type_of(name)) for name in names])


def check_schema(schema: StructType, view: str | None = None) -> None:
    """:raises UsageError: the schema has a column that is unknown or of another view, or another type"""
    own = [name for name, _ in _VIEW_COLUMNS[view]]
    for field in schema.fields:
        if field.name in (_SUPERSEDED[0], _CHANGE[0]) and field.name not in own:
            raise UsageError(f"column {field.name} needs the option view", hint=f"view={LATEST} or view={CHANGES}")
        expected = _type_of(field.name)
        if field.dataType.simpleString() != expected.simpleString():
            raise UsageError(
                f"column {field.name} of kafka_log is {expected.simpleString()}, not {field.dataType.simpleString()}"
            )


def _type_of(name: str) -> DataType:
    if name not in _TYPES:
        raise UsageError(f"kafka_log has no column {name!r}", hint="it has: " + ", ".join(_TYPES))
    return _TYPES[name]


def variable_columns(schema: StructType) -> int:
    return sum(bit for name, bit in _VARIABLE.items() if name in schema.fieldNames())


class ArrowColumns:
    """Builds Arrow batches of a task's records, all of one partition."""

    def __init__(self, schema: StructType, topic_partition: TopicPartition) -> None:
        self._schema = arrow_schema(schema)
        self._topic_partition = topic_partition
        self._topic = topic_partition.topic.encode()
        self._warned = False
        self._segment = 0
        self._superseded = np.empty(0, np.int64)
        self._makers: dict[str, Callable[[Records, int, pa.DataType], pa.Array]] = {
            "key": lambda records, n, kind: _bytes(records.columns.keys, n, kind),
            "value": lambda records, n, kind: _bytes(records.columns.values, n, kind),
            "headers": _headers,
            "topic": self._topics,
            "partition": lambda _, n, kind: pa.array(np.full(n, topic_partition.partition, np.int32)),
            "segment": lambda _, n, kind: pa.array(np.full(n, self._segment, np.int64)),
            "offset": lambda records, n, kind: pa.array(records.columns.offset),
            "timestamp": self._timestamps,
            "timestampType": lambda records, n, kind: pa.array(np.repeat(_timestamp_types(records.rows), records.counts)),
            "codec": _codecs,
            "control": lambda records, n, kind: _flag(records, CONTROL),
            "transactional": lambda records, n, kind: _flag(records, TRANSACTIONAL),
            "producerId": lambda records, n, kind: _batch_field(records, "producer_id", np.int64),
            "producerEpoch": lambda records, n, kind: _batch_field(records, "producer_epoch", np.int32),
            "leaderEpoch": lambda records, n, kind: _batch_field(records, "leader_epoch", np.int32),
            "baseOffset": lambda records, n, kind: _batch_field(records, "base_offset", np.int64),
            "position": lambda records, n, kind: _batch_field(records, "position", np.int64),
            "superseded": lambda records, n, kind: pa.array(self._superseded),
            "change": lambda records, n, kind: _CHANGES.take(pa.array((records.columns.value_size < 0).astype(np.int32))),
            "magic": lambda records, n, kind: _batch_field(records, "magic", np.int32),
        }

    def batch(self, records: Records, segment: int) -> pa.RecordBatch:
        n = len(records.columns.offset)
        self._segment = segment
        arrays = [self._makers[field.name](records, n, field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def latest(self, latest: LatestRecords) -> pa.RecordBatch:
        self._superseded = latest.superseded
        return self.batch(latest.records, latest.segment).filter(pa.array(latest.newest))

    def _topics(self, _: Records, n: int, kind: pa.DataType) -> pa.Array:
        size = len(self._topic)
        offsets = np.arange(n + 1, dtype=np.int32) * np.int32(size)
        data = np.tile(np.frombuffer(self._topic, np.uint8), n)
        return pa.Array.from_buffers(kind, n, [None, pa.py_buffer(offsets), pa.py_buffer(data)])

    def _timestamps(self, records: Records, n: int, kind: pa.DataType) -> pa.Array:
        """Microseconds; timestamps beyond the limit become the limit, with a warning."""
        given = records.columns.timestamp_ms
        stamps = np.clip(given, -_MAX_TIMESTAMP_MS, _MAX_TIMESTAMP_MS)
        beyond = np.flatnonzero(stamps != given)
        if len(beyond):
            self._warn_of_limit(int(given[beyond[0]]), int(records.columns.offset[beyond[0]]))
        return pa.Array.from_buffers(kind, n, [None, pa.py_buffer(stamps * 1000)])

    def _warn_of_limit(self, timestamp_ms: int, offset: int) -> None:
        """Warns of the first timestamp of a task that is not shown as it is: there may be one in each record."""
        if self._warned:
            return
        self._warned = True
        message = "timestamps beyond the years that Spark can represent are shown as year 294247 or -290308"
        hint = "the producer may have written microseconds or nanoseconds; dump-log prints them as they are"
        first = f"first: {timestamp_ms} at offset {offset} of {self._topic_partition}"
        logging.getLogger(__name__).warning("%s (%s); %s", message, printable(first), hint)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema in Arrow; timestamps are microseconds in UTC."""
    from pyspark.sql.pandas import types

    # PySpark 4.2 and newer require the time zone, older releases assume it
    options: dict[str, Any] = {"timezone": "UTC"}
    parameters = inspect.signature(types.to_arrow_schema).parameters
    return types.to_arrow_schema(schema, **{name: value for name, value in options.items() if name in parameters})


def _bytes(column: Bytes, n: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, n, [pa.py_buffer(buffer) for buffer in (column.valid, column.offsets, column.data)])


def _headers(records: Records, n: int, kind: pa.DataType) -> pa.Array:
    columns = records.columns
    struct, starts = kind.value_type, columns.header_starts
    rows = int(starts[-1])
    kinds = struct.field(0).type, struct.field(1).type
    fields = [_bytes(columns.header_keys, rows, kinds[0]), _bytes(columns.header_values, rows, kinds[1])]
    children = pa.Array.from_buffers(struct, rows, [None], children=fields)
    valid = np.packbits(starts[1:] > starts[:-1], bitorder="little")
    return pa.Array.from_buffers(kind, n, [pa.py_buffer(valid), pa.py_buffer(starts)], children=[children])


def _timestamp_types(rows: NDArray[np.void]) -> NDArray[np.int32]:
    append_time = ((rows["attributes"] & LOG_APPEND_TIME) != 0).astype(np.int32)
    return np.where(rows["magic"] == 0, np.int32(-1), append_time)


def _codecs(records: Records, n: int, kind: pa.DataType) -> pa.Array:
    codes = (records.rows["attributes"] & CODEC).astype(np.int32)
    return _CODECS.take(pa.array(np.repeat(codes, records.counts)))


def _flag(records: Records, bit: int) -> pa.Array:
    rows = records.rows
    return pa.array(np.repeat(((rows["attributes"] & bit) != 0) & (rows["magic"] >= 2), records.counts))


def _batch_field(records: Records, name: str, dtype: type[np.generic]) -> pa.Array:
    return pa.array(np.repeat(records.rows[name].astype(dtype), records.counts))
