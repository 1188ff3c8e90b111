"""The counts of one task: records, the totals of their names, and the use of their bytes, if that is counted.

Totals that outgrow the task's memory are emitted while it reads, split by a hash of the names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.counting.byte_usage import Measured, Usage
from compaction.counting.key_groups import KeyGroups
from compaction.counting.key_totals import Int64s, KeyTotals, key_table, packed_parts
from compaction.kernels.columns import Bytes, Columns
from compaction.source.read_columns import Records

if TYPE_CHECKING:
    from compaction.counting.count_logs import CountTask

#: the names whose records are counted: keys always, the others with the bytes
KEYS, GROUPS, HEADER_NAMES, PRODUCERS = "keys", "groups", "headers", "producers"


class PackedNames(NamedTuple):
    """The part of a table of ``names`` that one reducer joins; ``table`` is an Arrow IPC stream."""

    names: str
    part: int
    table: bytes


@dataclass
class RecordCounts:
    """Counts of the records that a consumer reads: all, those without a key, tombstones (with a key and no value), and the
    bytes of keys and values."""

    records: int = 0
    keyless: int = 0
    tombstones: int = 0
    bytes: int = 0

    def add(self, other: RecordCounts) -> None:
        self.records += other.records
        self.keyless += other.keyless
        self.tombstones += other.tombstones
        self.bytes += other.bytes


class TaskTotals:
    """What a task has read of one log; ``usage`` is of all stored records."""

    def __init__(self, task: CountTask) -> None:
        self._task = task
        self._totals: dict[str, KeyTotals] = {}
        self.counts = RecordCounts()
        self.usage = None if task.stored is None else Usage()

    def add(self, records: Records) -> Iterator[PackedNames]:
        """Count records, which have been read with their keys, and to count bytes also with their headers."""
        columns, n = records.columns, len(records.columns.offset)
        keys, tombstone = _binary(columns.keys), (columns.value_size < 0).astype(np.int64)
        sizes = np.diff(columns.keys.offsets).astype(np.int64) + np.maximum(columns.value_size, 0)
        ones, stored, counted = np.ones(n, np.int64), np.zeros(n, np.int64), np.ones(n, np.bool_)
        newest = columns.offset << 1 | tombstone, stored
        if self.usage is not None and self._task.stored is not None:
            measured = self.usage.add_records(records, self._task.stored)
            stored, newest, counted = measured.stored, measured.newest, measured.committed
            if not measured.data.all():
                keys = pc.if_else(pa.array(measured.data), keys, pa.scalar(None, keys.type))
            yield from self._add(HEADER_NAMES, _header_table(columns, measured))
            yield from self._add(PRODUCERS, _producer_table(records, measured, tombstone))
        has_key = keys.is_valid().to_numpy(zero_copy_only=False)
        keyless, tombstones = int((counted & ~has_key).sum()), int((tombstone * (counted & has_key)).sum())
        self.counts.add(RecordCounts(int(counted.sum()), keyless, tombstones, int(sizes[counted].sum())))
        yield from self._add(KEYS, key_table(keys, (ones, sizes, tombstone, stored), newest))

    def _add(self, names: str, table: pa.Table) -> Iterator[PackedNames]:
        if self._totals.setdefault(names, KeyTotals()).add(table):
            yield from self._emit(names)

    def _emit(self, names: str) -> Iterator[PackedNames]:
        table, stored = self._totals[names].take(), self._task.stored
        if names == KEYS and stored is not None and stored.group_by is not None:
            yield from self._add(GROUPS, _grouped(table, stored.group_by))
        for part, packed in packed_parts(table, self._task.partitions, self._task.seed):
            yield PackedNames(names, part, packed)

    def packed(self) -> Iterator[PackedNames]:
        """All that has not been emitted; nothing remains."""
        # the groups are those of the keys
        for names in (KEYS, GROUPS, HEADER_NAMES, PRODUCERS):
            if names in self._totals:
                yield from self._emit(names)


def _binary(column: Bytes) -> pa.Array:
    buffers = [pa.py_buffer(buffer) for buffer in (column.valid, column.offsets, column.data)]
    return pa.Array.from_buffers(pa.binary(), len(column.offsets) - 1, buffers)


def _grouped(table: pa.Table, group_by: KeyGroups) -> pa.Table:
    """The totals of the groups of the keys in ``table``."""
    groups = group_by.of(table["key"].combine_chunks())
    return table.set_column(0, table.schema.field("key"), groups).filter(groups.is_valid())


def _header_table(columns: Columns, measured: Measured) -> pa.Table:
    """The headers of records other than control records, by name: ``bytes`` are those of names and values."""
    sizes, stored = measured.headers
    table = key_table(_binary(columns.header_keys), (np.ones_like(sizes), sizes, np.zeros_like(sizes), stored))
    return table.filter(pa.array(np.repeat(measured.data, np.diff(columns.header_starts))))


def _producer_table(records: Records, measured: Measured, tombstone: Int64s) -> pa.Table:
    """The totals of each batch other than control batches, by producer id."""
    numbers = np.stack([np.ones(len(tombstone), np.int64), measured.sizes, tombstone, measured.stored])
    ends = np.cumsum(records.counts.astype(np.int64))
    sums = np.concatenate([np.zeros((len(numbers), 1), np.int64), np.cumsum(numbers * measured.data, axis=1)], axis=1)
    totals = sums[:, ends] - sums[:, ends - records.counts]
    present = totals[0] > 0
    producers = pa.array(records.rows["producer_id"][present].astype(np.int64))
    return key_table(producers.cast(pa.string()).cast(pa.binary()), totals[:, present])
