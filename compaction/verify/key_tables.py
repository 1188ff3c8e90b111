"""Finds for every key the last record that cleaning could see, over any number of records, by whole keys.

A row is a key with ``mark``, the largest of ``offset * 4 + 2 * missing + droppable`` over its records, and the number of its
records that are ``missing`` and ``left``. Tables join by taking the largest mark and adding the numbers. Of a joined table:

* every missing record but the one at the mark is superseded by it;
* a missing record at the mark is a tombstone past its horizon, or lost;
* every record that is left but the one at the mark could have been dropped, and must have been if that one is missing: a tombstone
  that is dropped before what it deleted brings deleted records back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compaction.kernels.locate import gather_keys
from compaction.verify.chunks import Chunk
from compaction.verify.model import Findings, Int64s

Bools = NDArray[np.bool_]
SUPERSEDED, TOMBSTONE = "superseded", "tombstone"
_MISSING, _DROPPABLE, _SHIFT = 2, 1, 2
_SCHEMA = pa.schema([("key", pa.large_binary()), ("mark", pa.int64()), ("missing", pa.int64()), ("left", pa.int64())])
#: tables are joined when they have grown by so many bytes
_JOIN_BYTES = 32 << 20
#: more is handed on, so that a task's memory stays bounded
_EMIT_BYTES = 96 << 20


def join_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """One row a key."""
    joined = pa.concat_tables([_SCHEMA.empty_table(), *tables]).combine_chunks()
    grouped = joined.group_by("key", use_threads=False).aggregate([("mark", "max"), ("missing", "sum"), ("left", "sum")])
    return grouped.select(["key", "mark_max", "missing_sum", "left_sum"]).rename_columns(_SCHEMA.names).cast(_SCHEMA)


class KeyTables:
    """The keys of a task, by part of the work."""

    def __init__(self, parts: int, seed: int) -> None:
        self._parts, self._seed = parts, np.uint64(seed)
        self._tables: dict[int, list[pa.Table]] = {}
        self._grown_bytes = 0
        self._spilled: list[tuple[int, bytes]] = []

    def add(self, chunk: Chunk, rows: Int64s, missing: Bools, droppable: Bools) -> None:
        """The records ``rows`` of a chunk; ``missing`` and ``droppable`` are bool[n], a row a record of the chunk."""
        if not len(rows):
            return
        records = chunk.records[rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        keys = np.empty(int(records["key_size"].sum()), np.uint8)
        part_of = np.empty(len(rows), np.int32)
        gather_keys(chunk.data, records, self._seed, self._parts, offsets, keys, part_of)
        gone = missing[rows].astype(np.int64)
        mark = (records["offset"] << _SHIFT) | (_MISSING * gone) | (_DROPPABLE * droppable[rows])
        key = pa.Array.from_buffers(pa.large_binary(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(keys)])
        table = pa.table([key, mark.astype(np.int64), gone, 1 - gone], schema=_SCHEMA)
        for part in np.unique(part_of).tolist():
            mine = table if self._parts == 1 else table.filter(pa.array(part_of == part))
            self._tables.setdefault(part, []).append(mine)
        self._grown_bytes += table.nbytes
        if self._grown_bytes >= _JOIN_BYTES:
            self._join()

    def _join(self) -> None:
        self._tables = {part: [join_tables(tables)] for part, tables in self._tables.items()}
        self._grown_bytes = 0
        if sum(table.nbytes for tables in self._tables.values() for table in tables) >= _EMIT_BYTES:
            self._spilled += [(part, _pack(tables[0])) for part, tables in self._tables.items()]
            self._tables = {}

    def packed(self) -> Iterator[tuple[int, bytes]]:
        """Part and table, packed for another process."""
        yield from self._spilled
        for part, tables in self._tables.items():
            yield part, _pack(join_tables(tables))


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
