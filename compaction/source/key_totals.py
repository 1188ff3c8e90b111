"""Counts the records of every key. Keys are compared byte by byte, not by hash.

A table has a row per key: the number of its ``records``, their ``bytes`` (keys and values, uncompressed), how many are
``tombstones``, and ``last``, its largest ``offset * 2 + tombstone``. Joining tables adds the numbers and takes the maximum of
``last``. A task emits its tables before they exceed its memory, split by a hash of the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.kernels.reading.locate import assign_parts
from compaction.source.read_columns import Records

_SCHEMA = pa.schema([("key", pa.binary()), *((name, pa.int64()) for name in ("records", "bytes", "tombstones", "last"))])
_JOINED = [("records", "sum"), ("bytes", "sum"), ("tombstones", "sum"), ("last", "max")]
#: tables are joined after each growth by this many bytes
_JOIN_BYTES = 32 << 20
#: a larger joined table is emitted, which bounds a task's memory
_EMIT_BYTES = 96 << 20


class KeyCount(NamedTuple):
    """One key: its records, their bytes, and how many of them are tombstones."""

    key: bytes
    records: int
    bytes: int
    tombstones: int


class KeySummary(NamedTuple):
    """The number of distinct keys, how many of them have a tombstone as their newest record, and the largest, in order."""

    keys: int
    deleted: int
    largest: tuple[KeyCount, ...]


@dataclass(frozen=True)
class Largest:
    """The keys to report: the ``count`` largest by ``by`` (``bytes`` or ``records``)."""

    count: int
    by: str

    def of(self, keys: Iterable[KeyCount]) -> tuple[KeyCount, ...]:
        """The largest of ``keys``; equal ones by key."""
        return tuple(sorted(keys, key=lambda entry: (-getattr(entry, self.by), entry.key))[: self.count])


@dataclass
class RecordCounts:
    """Counts of records: all, those without a key, tombstones (with a key and no value), and the bytes of keys and values."""

    records: int = 0
    keyless: int = 0
    tombstones: int = 0
    bytes: int = 0

    def add(self, other: RecordCounts) -> None:
        self.records += other.records
        self.keyless += other.keyless
        self.tombstones += other.tombstones
        self.bytes += other.bytes


class KeyTotals:
    """The keys that a task has read of one log, hashed into ``partitions`` with ``seed``; ``counts`` are of all records."""

    def __init__(self, partitions: int, seed: int) -> None:
        self._partitions, self._seed = partitions, seed
        self._tables: list[pa.Table] = []
        self._grown_bytes = 0
        self.counts = RecordCounts()

    def add(self, records: Records) -> Iterator[tuple[int, bytes]]:
        """Count records, which have been read with their keys; emits tables as ``packed`` does if memory is short."""
        columns, n = records.columns, len(records.columns.offset)
        buffers = [pa.py_buffer(buffer) for buffer in (columns.keys.valid, columns.keys.offsets, columns.keys.data)]
        keys = pa.Array.from_buffers(pa.binary(), n, buffers)
        tombstone = (columns.value_size < 0).astype(np.int64)
        sizes = np.diff(columns.keys.offsets).astype(np.int64) + np.maximum(columns.value_size, 0)
        numbers = np.ones(n, np.int64), sizes, tombstone, (columns.offset << 1) | tombstone
        table = pa.table([keys, *map(pa.array, numbers)], schema=_SCHEMA).filter(keys.is_valid())
        self.counts.add(RecordCounts(n, keys.null_count, int(pc.sum(table["tombstones"]).as_py() or 0), int(sizes.sum())))
        self._tables.append(table)
        self._grown_bytes += table.nbytes
        if self._grown_bytes >= _JOIN_BYTES:
            self._tables, self._grown_bytes = [_join(self._tables)], 0
            if self._tables[0].nbytes >= _EMIT_BYTES:
                yield from self.packed()

    def packed(self) -> Iterator[tuple[int, bytes]]:
        """Pairs of a partition and a table as an Arrow IPC stream; nothing remains."""
        table, self._tables = _join(self._tables), []
        if not table.num_rows:
            return
        keys = table["key"].combine_chunks()
        _, offsets, data = keys.buffers()
        starts = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * 4)
        part_of = np.zeros(len(keys), np.int32)
        assign_parts(starts, np.frombuffer(data or b"", np.uint8), self._seed, self._partitions, part_of)
        for part in np.unique(part_of).tolist():
            yield part, _pack(table.filter(pa.array(part_of == part)))


class JoinedTotals:
    """The keys of one partition, from all tasks."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._grown_bytes = 0

    def add(self, packed: bytes) -> None:
        table = pa.ipc.open_stream(packed).read_all()
        self._tables.append(table)
        self._grown_bytes += table.nbytes
        if self._grown_bytes >= _JOIN_BYTES:
            self._tables, self._grown_bytes = [_join(self._tables)], 0

    @classmethod
    def of(cls, parts: Iterable[JoinedTotals]) -> JoinedTotals:
        """The keys of several logs."""
        joined = cls()
        joined._tables = [table for part in parts for table in part._tables]
        return joined

    def summary(self, largest: Largest) -> KeySummary:
        self._tables = [_join(self._tables)]
        (table,) = self._tables
        deleted = int((table["last"].to_numpy() & 1).sum())
        order = [(largest.by, "descending"), ("key", "ascending")]
        top = table.take(pc.select_k_unstable(table, min(largest.count, table.num_rows), order))
        rows = zip(*(top[name].to_pylist() for name in KeyCount._fields), strict=True)
        return KeySummary(table.num_rows, deleted, tuple(KeyCount(*row) for row in rows))


def _join(tables: Iterable[pa.Table]) -> pa.Table:
    joined = pa.concat_tables([_SCHEMA.empty_table(), *tables]).combine_chunks()
    grouped = joined.group_by("key", use_threads=False).aggregate(_JOINED)
    columns = grouped.select(["key", *(f"{name}_{how}" for name, how in _JOINED)])
    return columns.rename_columns(_SCHEMA.names).cast(_SCHEMA).combine_chunks()


def _pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
