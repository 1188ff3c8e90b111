"""Finds the last record of every key below the cleaner checkpoint. Keys are compared byte by byte, not by hash.

A table has a row per key: ``last``, the largest ``offset * 4 + 2 * missing + droppable`` of its records, and the numbers of its
``missing`` and ``retained`` records. Joining tables takes the maximum of ``last`` and adds the numbers. In a joined table:

* every missing record other than the last one is superseded;
* a missing last record is a droppable tombstone, or lost;
* retained records other than the last one are superseded too. If the last one is a dropped tombstone, they are a violation:
  consumers would see deleted records again.

With a ``compaction.strategy`` other than ``offset``, the last record is that of the highest rank, of equal ranks that of the
highest offset. A table then also has ``ranked`` and ``rank`` of that record, and ``kept``: the offset of the log's last
record if it has the key. This record is always retained, and not counted; a tombstone that supersedes it must be retained, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.certifier.checks.log_pair import Bools, CleaningRules, Int64s, Rows
from compaction.certifier.checks.read_chunks import Chunk
from compaction.certifier.checks.violations import Findings
from compaction.config.entries import OFFSET, TIMESTAMP
from compaction.kernels.reading.locate import assign_parts, gather_keys, last_longs

SUPERSEDED, TOMBSTONE = "superseded", "tombstone"
_MISSING, _DROPPABLE, _SHIFT = 2, 1, 2
_SCHEMA = pa.schema([("key", pa.binary()), ("last", pa.int64()), ("missing", pa.int64()), ("retained", pa.int64())])
_RANKED_SCHEMA = pa.schema([*_SCHEMA, ("ranked", pa.int64()), ("rank", pa.int64()), ("kept", pa.int64())])
_HIGHEST = [("ranked", "ascending"), ("rank", "ascending"), ("last", "ascending")]
#: tables are joined after each growth by this many bytes
_JOIN_BYTES = 32 << 20
#: a larger joined table is spilled, which bounds a task's memory
_SPILL_BYTES = 96 << 20


def join_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """Join tables into one with a row per key."""
    parts = list(tables)
    if parts and "rank" in parts[0].column_names:
        return _join_ranked(parts)
    joined = pa.concat_tables([_SCHEMA.empty_table(), *parts]).combine_chunks()
    grouped = joined.group_by("key", use_threads=False).aggregate([("last", "max"), ("missing", "sum"), ("retained", "sum")])
    columns = grouped.select(["key", "last_max", "missing_sum", "retained_sum"]).rename_columns(_SCHEMA.names)
    return columns.cast(_SCHEMA).combine_chunks()


def _join_ranked(tables: list[pa.Table]) -> pa.Table:
    ordered = pa.concat_tables(tables).combine_chunks().sort_by(_HIGHEST)
    highest = [(name, "last") for name in ("ranked", "rank", "last")]
    sums = [("missing", "sum"), ("retained", "sum"), ("kept", "max")]
    # the last row of each key in this order is the highest
    grouped = ordered.group_by("key", use_threads=False).aggregate([*highest, *sums])
    names = ["key", "last_last", "missing_sum", "retained_sum", "ranked_last", "rank_last", "kept_max"]
    return grouped.select(names).rename_columns(_RANKED_SCHEMA.names).cast(_RANKED_SCHEMA).combine_chunks()


def ranks_of(chunk: Chunk, records: Rows, rules: CleaningRules) -> tuple[Bools, Int64s]:
    """Whether records have a rank by the strategy of ``rules``, and their ranks."""
    if rules.strategy == OFFSET:
        return np.zeros(len(records), np.bool_), np.zeros(len(records), np.int64)
    if rules.strategy == TIMESTAMP:
        return np.ones(len(records), np.bool_), records["timestamp"].astype(np.int64)
    ranks, ranked = np.zeros(len(records), np.int64), np.zeros(len(records), np.bool_)
    last_longs(chunk.data, records, np.array(list(rules.header), np.uint8), ranks, ranked)
    return ranked, ranks


class KeyTables:
    """The keys that one task has seen, hashed into ``partitions`` with ``seed``.

    :param kept: the log's last offset, whose record is always retained with a strategy other than ``offset``
    """

    def __init__(self, partitions: int, seed: int, rules: CleaningRules | None = None, kept: int = -1) -> None:
        self._partitions, self._seed, self._rules, self._kept = partitions, seed, rules or CleaningRules(0), kept
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
        table = pa.table([keys_of(chunk, records), last.astype(np.int64), missing_counts, 1 - missing_counts], schema=_SCHEMA)
        if self._rules.strategy != OFFSET:
            table = self._with_ranks(table, chunk, records, missing_counts)
        self._tables.append(table)
        self._grown_bytes += table.nbytes
        if self._grown_bytes >= _JOIN_BYTES:
            self._tables, self._grown_bytes = [join_tables(self._tables)], 0
            if self._tables[0].nbytes >= _SPILL_BYTES:
                self._spilled += self._split()
                self._tables = []

    def _with_ranks(self, table: pa.Table, chunk: Chunk, records: Rows, missing_counts: Int64s) -> pa.Table:
        ranked, ranks = ranks_of(chunk, records, self._rules)
        kept = (records["offset"] == self._kept) & (missing_counts == 0)
        columns = [
            *table.columns[:3],
            1 - missing_counts - kept,
            ranked.astype(np.int64),
            ranks,
            np.where(kept, records["offset"], -1),
        ]
        return pa.table(columns, schema=_RANKED_SCHEMA)

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
            yield int(part_of[order[first]]), _pack(table.slice(first, end - first))
            first = end


def keys_of(chunk: Chunk, records: Rows) -> pa.Array:
    """The keys of records of a chunk, none of them null, as a binary array."""
    offsets = np.zeros(len(records) + 1, np.int32)
    keys = np.empty(int(records["key_size"].sum()), np.uint8)
    gather_keys(chunk.data, records, offsets, keys)
    return pa.Array.from_buffers(pa.binary(), len(records), [None, pa.py_buffer(offsets), pa.py_buffer(keys)])


class JoinedKeys:
    """The keys of one partition of a log, from all tasks."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._grown_bytes = 0

    def add(self, packed: bytes) -> None:
        """Add a table of ``KeyTables.packed``."""
        table = pa.ipc.open_stream(packed).read_all()
        self._tables.append(table)
        self._grown_bytes += table.nbytes
        if self._grown_bytes >= _JOIN_BYTES:
            self._tables, self._grown_bytes = [join_tables(self._tables)], 0

    def conclude(self, *, strict: bool) -> tuple[Findings, Counter[str]]:
        """Violations, and counts of superseded records and tombstones."""
        table = join_tables(self._tables)
        last, retained = table["last"].to_numpy(), table["retained"].to_numpy()
        last_missing = (last & _MISSING) != 0
        lost = last_missing & ((last & _DROPPABLE) == 0)
        findings, counts = Findings(), Counter[str]()
        findings.add_all(last[lost] >> _SHIFT, "record is missing though it is the last of its key")
        early = last_missing & ~lost & (retained > 0)
        if "kept" in table.column_names:
            early |= last_missing & ~lost & (table["kept"].to_numpy() >= 0)
        findings.add_all(last[early] >> _SHIFT, "tombstone is missing though older records of its key are retained")
        counts[TOMBSTONE] = int((last_missing & ~lost).sum())
        counts[SUPERSEDED] = int(pc.sum(table["missing"]).as_py() or 0) - int(last_missing.sum())
        superseded = retained - ~last_missing
        if "kept" in table.column_names:
            superseded += table["kept"].to_numpy() == last >> _SHIFT
        counts["superseded_left"] = int(superseded.sum())
        if strict:
            findings.add_all(last[superseded > 0] >> _SHIFT, "older records of this record's key are retained")
        return findings, counts


def _pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
