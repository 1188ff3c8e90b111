"""Counts the records of every name: of keys, or of groups of keys, headers or producers. Names are compared byte by byte, not
by hash.

A table has a row per name (``key``): the number of its ``records``, their ``bytes`` (keys and values, uncompressed), how many
are ``tombstones``, their ``stored_bytes`` (``byte_usage``), and its ``newest`` record: two int64, ``offset * 2 + tombstone``,
and age and sizes of the record, which Arrow compares as one number. Joining tables adds the numbers and takes the maximum of
``newest``. A task emits its tables before they exceed its memory, split by a hash of the names.

Keys are grouped by a prefix, by a regular expression, or by the window of a windowed key of Kafka Streams. Expressions are
those of ``compaction.formats.keys``, of text or of bytes; here they need not match the complete key. Windows mirror
``TimeWindowedSerializer`` and ``SessionWindowedSerializer``, whose keys end with the start of the window (int64,
milliseconds), and ``WindowKeySchema``, the keys of a window store's changelog, which have a sequence number (int32) after it. A
window does not begin before 0 (``TimeWindow``). A start from 2^56 on, in the year 2285384, is taken for text or another number:
in both cases the first of the eight bytes is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compaction.errors import UsageError
from compaction.formats.keys import BYTES, PREFIX, REGEX, expression_errors, require_ascii, text_keys
from compaction.formats.primitives import FormatError
from compaction.kernels.locate import assign_parts

_SUMS = ("records", "bytes", "tombstones", "stored_bytes")
_SCHEMA = pa.schema([("key", pa.binary()), *((name, pa.int64()) for name in _SUMS), ("newest", pa.decimal128(38))])
_JOINED = [*((name, "sum") for name in _SUMS), ("newest", "max")]
#: tables are joined after each growth by this many bytes
_JOIN_BYTES = 32 << 20
#: a larger joined table is emitted, which bounds a task's memory
_EMIT_BYTES = 96 << 20
#: the first half of ``newest`` for records that supersede none
NOT_NEWEST = -1

Int64s = NDArray[np.int64]
WINDOW, WINDOW_STORE = "window", "window-store"
_TIME_BYTES, _SEQUENCE_BYTES = 8, 4
_LONGEST_PREFIX = 1000
_HINT = "give prefix:NUMBER, regex:EXPRESSION, bytes:EXPRESSION, window or window-store"


class KeyCount(NamedTuple):
    """One key or other name: its records, their bytes, how many of them are tombstones, and their stored bytes."""

    key: bytes
    records: int
    bytes: int
    tombstones: int
    stored_bytes: int


@dataclass(frozen=True)
class Largest:
    """The keys to report: the ``count`` largest by ``by`` (``bytes``, ``records`` or ``stored_bytes``)."""

    count: int
    by: str

    def of(self, keys: Iterable[KeyCount]) -> tuple[KeyCount, ...]:
        """The largest of ``keys``; equal ones by key."""
        return tuple(sorted(keys, key=lambda entry: (-getattr(entry, self.by), entry.key))[: self.count])


class Sums(NamedTuple):
    """The records of all names, the bytes of their keys and values, and their stored bytes."""

    records: int
    bytes: int
    stored_bytes: int


class KeySummary(NamedTuple):
    """The number of distinct keys, how many of them have a tombstone as their newest record, the largest, in order, and the
    sums over all."""

    keys: int
    deleted: int
    largest: tuple[KeyCount, ...]
    total: Sums

    def joined(self, other: KeySummary, largest: Largest) -> KeySummary:
        """The summary of both; they have no key in common."""
        total = Sums(*(own + more for own, more in zip(self.total, other.total, strict=True)))
        named = largest.of([*self.largest, *other.largest])
        return KeySummary(self.keys + other.keys, self.deleted + other.deleted, named, total)


NO_NAMES = KeySummary(0, 0, (), Sums(0, 0, 0))


def key_table(keys: pa.Array, columns: Sequence[Int64s] | Int64s, newest: tuple[Int64s, Int64s] | None = None) -> pa.Table:
    """A table of the binary array ``keys`` (n,), of which those that are null are left out.

    :param columns: int64[n] each: ``records``, ``bytes``, ``tombstones``, ``stored_bytes``
    :param newest: int64[n] each, the halves of ``newest``; by default the names have no newest records
    """
    n = len(keys)
    high, low = newest or (np.full(n, NOT_NEWEST), np.zeros(n, np.int64))
    pairs = pa.Array.from_buffers(_SCHEMA.field("newest").type, n, [None, pa.py_buffer(np.stack([low, high], axis=1))])
    return pa.table([keys, *map(pa.array, columns), pairs], schema=_SCHEMA).filter(keys.is_valid())


class KeyTotals:
    """The keys, or other names, of some tables."""

    def __init__(self, tables: Iterable[pa.Table] = ()) -> None:
        self._tables = list(tables)
        self._grown_bytes = 0

    def add(self, table: pa.Table) -> bool:
        """Add a table; returns whether a task should emit the joined one."""
        self._tables.append(table)
        self._grown_bytes += table.nbytes
        if self._grown_bytes < _JOIN_BYTES:
            return False
        return bool(self.joined().nbytes >= _EMIT_BYTES)

    def joined(self) -> pa.Table:
        self._tables, self._grown_bytes = [_join(self._tables)], 0
        return self._tables[0]

    def take(self) -> pa.Table:
        """The joined table; nothing remains."""
        table, self._tables = self.joined(), []
        return table

    @classmethod
    def of(cls, parts: Iterable[KeyTotals]) -> KeyTotals:
        return cls(table for part in parts for table in part._tables)

    def summary(self, largest: Largest, *, with_newest: bool) -> KeySummary:
        """The summary of all names.

        :param with_newest: count only names that have a newest record: keys whose records are all aborted have none
        """
        table = self.joined()
        newest = self.newest()[:, 1]
        distinct = int((newest != NOT_NEWEST).sum()) if with_newest else table.num_rows
        deleted = int(((newest & 1) & (newest >= 0)).sum())
        total = Sums(*(int(pc.sum(table[name]).as_py() or 0) for name in Sums._fields))
        order = [(largest.by, "descending"), ("key", "ascending")]
        top = table.take(pc.select_k_unstable(table, min(largest.count, table.num_rows), order))
        rows = zip(*(top[name].to_pylist() for name in KeyCount._fields), strict=True)
        return KeySummary(distinct, deleted, tuple(KeyCount(*row) for row in rows), total)

    def newest(self) -> Int64s:
        """int64[n, 2], the halves of ``newest`` of each key, the second one first."""
        column = self.joined()["newest"].combine_chunks()
        halves = np.frombuffer(column.buffers()[1] or b"", np.int64).reshape(-1, 2)
        return halves[column.offset : column.offset + len(column)]


def packed_parts(table: pa.Table, partitions: int, seed: int) -> Iterator[tuple[int, bytes]]:
    """Pairs of a partition and its rows of ``table`` as an Arrow IPC stream, by a hash of the keys."""
    keys = table["key"].combine_chunks()
    if not len(keys):
        return
    _, offsets, data = keys.buffers()
    starts = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * 4)
    part_of = np.zeros(len(keys), np.int32)
    assign_parts(starts, np.frombuffer(data or b"", np.uint8), seed, partitions, part_of)
    for part in np.unique(part_of).tolist():
        yield part, _pack(table.filter(pa.array(part_of == part)))


def _join(tables: Iterable[pa.Table]) -> pa.Table:
    joined = pa.concat_tables([_SCHEMA.empty_table(), *tables]).combine_chunks()
    grouped = joined.group_by("key", use_threads=False).aggregate(_JOINED)
    columns = grouped.select(["key", *(f"{name}_{how}" for name, how in _JOINED)])
    return columns.rename_columns(_SCHEMA.names).cast(_SCHEMA).combine_chunks()


def _pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@dataclass(frozen=True)
class KeyGroups:
    """``kind`` is ``prefix`` (the first ``text`` bytes), ``regex`` or ``bytes`` (the first group of the expression ``text`` of
    RE2, or its match), ``window`` or ``window-store``. The text may be a part of somebody's key: ``repr`` hides it."""

    kind: str
    text: str = field(default="", repr=False)

    @classmethod
    def parse(cls, argument: str) -> KeyGroups:
        """From ``prefix:NUMBER``, ``regex:EXPRESSION``, ``bytes:EXPRESSION``, ``window`` or ``window-store``.

        :raises UsageError: it is none of these
        """
        kind, colon, text = argument.partition(":")
        groups = cls(kind, text)
        if kind == PREFIX and text.isdecimal() and 0 < int(text) <= _LONGEST_PREFIX:
            return groups
        if kind in (WINDOW, WINDOW_STORE) and not colon:
            return groups
        if kind not in (REGEX, BYTES) or not text:
            raise UsageError(f"--group-by: {argument!r} does not group keys", hint=_HINT)
        try:
            if kind == BYTES:
                require_ascii(text)
            with expression_errors():
                # compiled alone first: unbalanced brackets could close the added ones
                pc.match_substring_regex(groups._subjects(pa.array([b""], pa.binary())), text)
                groups.of(pa.array([b""], pa.binary()))
        except FormatError as error:
            raise UsageError(f"--group-by: the expression {error}", hint=_HINT) from None
        return groups

    @property
    def windowed(self) -> bool:
        """Whether a group is the start of a window."""
        return self.kind in (WINDOW, WINDOW_STORE)

    @property
    def _after_time(self) -> int:
        return _SEQUENCE_BYTES if self.kind == WINDOW_STORE else 0

    def windowed_key(self, key: bytes) -> tuple[bytes, bytes] | None:
        """The key without its window, and the start of the window; ``None`` if keys are not grouped by windows, or this one has
        none."""
        end = len(key) - self._after_time
        start = key[max(0, end - _TIME_BYTES) : max(0, end)]
        windowed = self.windowed and len(start) == _TIME_BYTES and start[0] == 0
        return (key[: end - _TIME_BYTES], start) if windowed else None

    def of(self, keys: pa.Array) -> pa.Array:
        """The group of each of the binary array ``keys``; null if the key is in none."""
        if self.kind == PREFIX:
            return pc.binary_slice(keys, 0, int(self.text))
        if self.windowed:
            after = self._after_time
            long_enough = pc.greater_equal(pc.binary_length(keys), _TIME_BYTES + after)
            # a slice from the end of a shorter key would be another field
            ends = pc.binary_slice(pc.if_else(long_enough, keys, None), -_TIME_BYTES - after)
            starts = pc.binary_slice(ends, 0, _TIME_BYTES)
            return pc.if_else(pc.starts_with(starts, b"\0"), starts, None)
        subjects = self._subjects(keys)
        matching = pc.if_else(pc.match_substring_regex(subjects, self.text), subjects, None)
        try:
            return self._replaced(matching, self.text).cast(pa.binary())
        except pa.ArrowInvalid:
            return self._replaced(matching, f"({self.text})").cast(pa.binary())

    def _subjects(self, keys: pa.Array) -> pa.Array:
        """The keys to which an expression applies: as strings RE2 takes them as text."""
        return text_keys(keys) if self.kind == REGEX else keys

    def _replaced(self, keys: pa.Array, expression: str) -> pa.Array:
        """The keys with their first match replaced by its first group, and nothing around it."""
        return pc.replace_substring_regex(keys, rf"(?s:\A.*?)(?:{expression})(?s:.*\z)", r"\1")
