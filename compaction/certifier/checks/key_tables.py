"""Finds for every key the last record that cleaning could see, over any number of records, by whole keys.

A row is a key with ``mark``, the largest of ``offset * 4 + 2 * missing + droppable`` over its records, and the number of its
records that are ``missing`` and ``left``. Tables join by taking the largest mark and adding the numbers. Of a joined table:

* every missing record but the one at the mark is superseded by it;
* a missing record at the mark is a tombstone past its horizon, or lost;
* every record that is left but the one at the mark could have been dropped, and must have been if that one is missing: a
  tombstone that is dropped before what it deleted brings deleted records back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compaction.certifier.checks.log_pair import Findings, Int64s, Rows
from compaction.certifier.checks.read_chunks import Chunk
from compaction.kernels.reading.locate import assign_parts, gather_keys

Bools = NDArray[np.bool_]
SUPERSEDED, TOMBSTONE = "superseded", "tombstone"
_MISSING, _DROPPABLE, _SHIFT = 2, 1, 2
_SCHEMA = pa.schema([("key", pa.binary()), ("mark", pa.int64()), ("missing", pa.int64()), ("left", pa.int64())])
#: tables are joined when they have grown by so many bytes
_JOIN_BYTES = 32 << 20
#: more is handed on, so that a task's memory stays bounded
_EMIT_BYTES = 96 << 20


def join_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """One row a key."""
    joined = pa.concat_tables([_SCHEMA.empty_table(), *tables]).combine_chunks()
    grouped = joined.group_by("key", use_threads=False).aggregate([("mark", "max"), ("missing", "sum"), ("left", "sum")])
    columns = grouped.select(["key", "mark_max", "missing_sum", "left_sum"]).rename_columns(_SCHEMA.names)
    return columns.cast(_SCHEMA).combine_chunks()


class KeyTables:
    """The keys of a task, by part of the work."""

    def __init__(self, parts: int, seed: int) -> None:
        self._parts, self._seed = parts, seed
        self._tables: list[pa.Table] = []
        self._grown_bytes = 0
        self._spilled: list[tuple[int, bytes]] = []

    def add(self, chunk: Chunk, rows: Int64s, missing: Bools, droppable: Bools) -> None:
        """The records ``rows`` of a chunk; ``missing`` and ``droppable`` are bool[n], a row a record of the chunk."""
        if not len(rows):
            return
        records = chunk.records[rows]
        gone = missing[rows].astype(np.int64)
        mark = (records["offset"] << _SHIFT) | (_MISSING * gone) | (_DROPPABLE * droppable[rows])
        table = pa.table([keys_of(chunk, records), mark.astype(np.int64), gone, 1 - gone], schema=_SCHEMA)
        self._tables.append(table)
        self._grown_bytes += table.nbytes
        if self._grown_bytes >= _JOIN_BYTES:
            self._tables, self._grown_bytes = [join_tables(self._tables)], 0
            if self._tables[0].nbytes >= _EMIT_BYTES:
                self._spilled += self._split()
                self._tables = []

    def packed(self) -> Iterator[tuple[int, bytes]]:
        """Part and table, packed for another process."""
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
        if self._parts > 1:
            assign_parts(starts, np.frombuffer(data or b"", np.uint8), self._seed, self._parts, part_of)
        order = np.argsort(part_of, kind="stable")
        ends = np.flatnonzero(np.diff(part_of[order], append=-1)) + 1
        table, first = table.take(pa.array(order)), 0
        for end in ends.tolist():
            yield int(part_of[order[first]]), _pack(table.slice(first, end - first))
            first = end


def keys_of(chunk: Chunk, records: Rows) -> pa.Array:
    """The keys of some records of a chunk, all of which have one, as a column of their bytes."""
    offsets = np.zeros(len(records) + 1, np.int32)
    keys = np.empty(int(records["key_size"].sum()), np.uint8)
    gather_keys(chunk.data, records, offsets, keys)
    return pa.Array.from_buffers(pa.binary(), len(records), [None, pa.py_buffer(offsets), pa.py_buffer(keys)])


class JoinedKeys:
    """The keys of one part of a log, from all tasks."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._grown_bytes = 0

    def add(self, packed: bytes) -> None:
        """A table that ``KeyTables.packed`` gave."""
        table = pa.ipc.open_stream(packed).read_all()
        self._tables.append(table)
        self._grown_bytes += table.nbytes
        if self._grown_bytes >= _JOIN_BYTES:
            self._tables, self._grown_bytes = [join_tables(self._tables)], 0

    def conclude(self, *, strict: bool) -> tuple[Findings, Counter[str]]:
        """What the keys say of missing records."""
        table = join_tables(self._tables)
        mark = table["mark"].to_numpy()
        last_missing = (mark & _MISSING) != 0
        lost = last_missing & ((mark & _DROPPABLE) == 0)
        findings, counts = Findings(), Counter[str]()
        findings.add_all(mark[lost] >> _SHIFT, "record is missing though it is the last of its key")
        back = last_missing & ~lost & (table["left"].to_numpy() > 0)
        findings.add_all(mark[back] >> _SHIFT, "tombstone is missing though older records of its key are left")
        counts[TOMBSTONE] = int((last_missing & ~lost).sum())
        counts[SUPERSEDED] = int(pc.sum(table["missing"]).as_py() or 0) - int(last_missing.sum())
        extra = table["left"].to_numpy() - ~last_missing
        counts["superseded_left"] = int(extra.sum())
        if strict:
            findings.add_all(mark[extra > 0] >> _SHIFT, "older records of this record's key are left")
        return findings, counts


def _pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed
