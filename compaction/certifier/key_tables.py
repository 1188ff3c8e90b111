"""Finds the last record of every key below the cleaner checkpoint. Keys are compared byte by byte, not by hash.

A table has a row per key: ``last``, the largest ``offset * 4 + 2 * missing + droppable`` of its records, and the numbers of its
``missing`` and ``retained`` records. Joining tables takes the maximum of ``last`` and adds the numbers. In a joined table:

* every missing record other than the last one is superseded;
* a missing last record is a droppable tombstone, or lost;
* retained records other than the last one are superseded too. If the last one is a dropped tombstone, they are a violation:
  consumers would see deleted records again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.certifier.certificate import Findings
from compaction.certifier.reader import Bools, Chunk, Int64s, Rows
from compaction.kernels.locate import assign_parts, gather_keys

SUPERSEDED, TOMBSTONE = "superseded", "tombstone"
_MISSING, _DROPPABLE, _SHIFT = 2, 1, 2
_SCHEMA = pa.schema([("key", pa.binary()), ("last", pa.int64()), ("missing", pa.int64()), ("retained", pa.int64())])
#: tables are joined after each growth by this many bytes
_JOIN_BYTES = 32 << 20
#: a larger joined table is spilled, which bounds a task's memory
_SPILL_BYTES = 96 << 20


def join_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """Join tables into one with a row per key."""
    joined = pa.concat_tables([_SCHEMA.empty_table(), *tables]).combine_chunks()
    grouped = joined.group_by("key", use_threads=False).aggregate([("last", "max"), ("missing", "sum"), ("retained", "sum")])
    columns = grouped.select(["key", "last_max", "missing_sum", "retained_sum"]).rename_columns(_SCHEMA.names)
    return columns.cast(_SCHEMA).combine_chunks()


class KeyTables:
    """The keys that one task has seen, hashed into ``partitions`` with ``seed``; or those of one partition, from all tasks."""

    def __init__(self, partitions: int = 1, seed: int = 0) -> None:
        self._partitions, self._seed = partitions, seed
        self._tables: list[pa.Table] = []
        self._grown_bytes = 0
        self._spilled: list[tuple[int, bytes]] = []

    def add(self, chunk: Chunk, rows: Int64s, missing: Bools, droppable: Bools) -> None:
        """Add records of a chunk, int64[m] of its n records; ``missing`` and ``droppable`` are bool[n]."""
        if not len(rows):
            return
        records = chunk.records[rows]
        missing_counts = missing[rows].astype(np.int64)
        last = (records["offset"] << _SHIFT) | (_MISSING * missing_counts) | (_DROPPABLE * droppable[rows])
        columns = [keys_of(chunk, records), last.astype(np.int64), missing_counts, 1 - missing_counts]
        if self._join(pa.table(columns, schema=_SCHEMA)) and self._tables[0].nbytes >= _SPILL_BYTES:
            self._spilled += self._split()
            self._tables = []

    def add_packed(self, packed: bytes) -> None:
        """Add a table of ``packed``."""
        self._join(pa.ipc.open_stream(packed).read_all())

    def _join(self, table: pa.Table) -> bool:
        """Add a table; whether all were joined into one."""
        self._tables.append(table)
        self._grown_bytes += table.nbytes
        joins = self._grown_bytes >= _JOIN_BYTES
        if joins:
            self._tables, self._grown_bytes = [join_tables(self._tables)], 0
        return joins

    def packed(self) -> Iterator[tuple[int, bytes]]:
        """Pairs of a partition and a table as an Arrow IPC stream."""
        yield from self._spilled
        yield from self._split()

    def _split(self) -> Iterator[tuple[int, bytes]]:
        table = join_tables(self._tables)
        if not table.num_rows:
            return
        (keys,) = table["key"].chunks
        _, offsets, data = keys.buffers()
        starts = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * 4)
        part_of = np.zeros(len(keys), np.int32)
        if self._partitions > 1:
            assign_parts(starts, np.frombuffer(data or b"", np.uint8), self._seed, self._partitions, part_of)
        order = np.argsort(part_of, kind="stable")
        ends = np.flatnonzero(np.diff(part_of[order], append=-1)) + 1
        table, first = table.take(pa.array(order)), 0
        for end in ends.tolist():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table.slice(first, end - first))
            yield int(part_of[order[first]]), sink.getvalue().to_pybytes()
            first = end

    def conclude(self, *, strict: bool) -> tuple[Findings, Counter[str]]:
        """Violations, and counts of superseded records and tombstones."""
        table = join_tables(self._tables)
        last, retained = table["last"].to_numpy(), table["retained"].to_numpy()
        last_missing = (last & _MISSING) != 0
        lost = last_missing & ((last & _DROPPABLE) == 0)
        findings, counts = Findings(), Counter[str]()
        findings.add_all(last[lost] >> _SHIFT, "record is missing though it is the last of its key")
        early = last_missing & ~lost & (retained > 0)
        findings.add_all(last[early] >> _SHIFT, "tombstone is missing though older records of its key are retained")
        counts[TOMBSTONE] = int((last_missing & ~lost).sum())
        counts[SUPERSEDED] = int(pc.sum(table["missing"]).as_py() or 0) - int(last_missing.sum())
        superseded = retained - ~last_missing
        counts["superseded_left"] = int(superseded.sum())
        if strict:
            findings.add_all(last[superseded > 0] >> _SHIFT, "older records of this record's key are retained")
        return findings, counts


def keys_of(chunk: Chunk, records: Rows) -> pa.Array:
    """The keys of records of a chunk, none of them null, as a binary array."""
    offsets = np.zeros(len(records) + 1, np.int32)
    keys = np.empty(int(records["key_size"].sum()), np.uint8)
    gather_keys(chunk.data, records, offsets, keys)
    return pa.Array.from_buffers(pa.binary(), len(records), [None, pa.py_buffer(offsets), pa.py_buffer(keys)])
