"""Reads and writes the three index files of a segment as numpy arrays.

Mirrors ``OffsetIndex``, ``TimeIndex`` and ``TransactionIndex``. The offset and time index of an active segment
may be preallocated: entries are valid up to the last one that is not zero, as long as they increase.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from compaction.formats.primitives import Buffer, FieldTable, FormatError, Int16, Int32, Int64
from compaction.names import INDEX, TIMEINDEX


class OffsetIndexEntry(NamedTuple):
    """The last offset of a batch, relative to the segment's base, and the batch's byte position."""

    relative_offset: Int32  # last offset of the batch less the segment's base
    position: Int32  # byte position of the batch in the log file


class TimeIndexEntry(NamedTuple):
    """The largest timestamp so far and the last offset of its batch, relative to the segment's base."""

    timestamp: Int64  # largest timestamp so far, ms
    relative_offset: Int32  # last offset of its batch less the segment's base


class TxnIndexEntry(NamedTuple):
    """One aborted transaction; offsets are inclusive."""

    version: Int16  # 0
    producer_id: Int64  # the producer
    first_offset: Int64  # first offset of the transaction
    last_offset: Int64  # offset of its abort marker
    last_stable_offset: Int64  # last stable offset when it was aborted


OFFSET_ENTRY = FieldTable(OffsetIndexEntry)
TIME_ENTRY = FieldTable(TimeIndexEntry)
TXN_ENTRY = FieldTable(TxnIndexEntry)
TXN_VERSION = 0
#: an entry holds an offset relative to its segment's base in a signed 32-bit integer
MAX_RELATIVE_OFFSET = 2**31 - 1

#: rows that readers return and writers take: native byte order, absolute offsets
OFFSET_ROW = np.dtype((np.record, [("offset", np.int64), ("position", np.int64)]))
TIME_ROW = np.dtype((np.record, [("timestamp", np.int64), ("offset", np.int64)]))
TXN_ROW = np.dtype(
    [("producer_id", np.int64), ("first_offset", np.int64), ("last_offset", np.int64), ("last_stable_offset", np.int64)]
)

Rows = npt.NDArray[np.void]


class SegmentIndex:
    """The offset index or the time index of a segment, of entries that increase.

    :param name: for errors
    :param entry: the fields of an entry
    :param row: of what is read and written
    """

    def __init__(self, name: str, entry: FieldTable[Any], row: np.dtype[Any]) -> None:
        self._name, self.entry, self._row = name, entry, row
        (self._other,) = {"position", "timestamp"} & {*entry.row._fields}

    def _entries(self, data: Buffer) -> Rows:
        """The entries before the zeros at the end."""
        rows = self.entry.array(data)
        used = np.flatnonzero((rows["relative_offset"] != 0) | (rows[self._other] != 0))
        return rows[: int(used[-1]) + 1 if len(used) else 0]

    def _steps(self, entries: Rows) -> npt.NDArray[np.bool_]:
        """Per entry, whether it is valid after its predecessor: times and positions increase; so do the offsets of an offset
        index, those of a time index do not decrease."""
        offsets, others = (entries[name].astype(np.int64) for name in ("relative_offset", self._other))
        valid = offsets >= 0
        # compare instead of subtracting: timestamps use the whole int64 range
        valid[1:] &= (others[1:] > others[:-1]) & (offsets[1:] >= offsets[:-1])
        if self._other == "position":
            valid &= others >= 0
            valid[1:] &= offsets[1:] > offsets[:-1]
        return valid

    def valid(self, data: Buffer) -> int:
        """Number of valid leading entries: without zeros at the end, as long as they increase.

        If the only entry of a time index is all zeros, it is valid (timestamp 0 in the first batch) and not preallocated.
        """
        if self._other == "timestamp" and len(data) == self.entry.size and not any(data):
            return 1
        valid = self._steps(self._entries(data))
        return len(valid) if valid.all() else int(np.argmin(valid))

    def read(self, data: Buffer, base_offset: int) -> Rows:
        """The valid entries as rows, shape (n,)."""
        entries = self.entry.array(data)[: self.valid(data)]
        out = np.empty(len(entries), self._row)
        out["offset"] = entries["relative_offset"].astype(np.int64) + base_offset
        out[self._other] = entries[self._other]
        return out

    def write(self, rows: Rows, base_offset: int) -> bytes:
        """The file's bytes for rows; ``FormatError`` for an offset or a position outside the int32 range."""
        out = np.empty(len(rows), self.entry.dtype)
        out["relative_offset"] = _relative(rows["offset"], base_offset)
        out[self._other] = _relative(rows["position"], 0) if self._other == "position" else rows["timestamp"]
        return out.tobytes()

    def check(self, data: Buffer) -> None:
        """``FormatError`` with the entry number if the index must be rebuilt."""
        size = self.entry.size
        if len(data) % size:
            message = f"{self._name} index of {len(data)} bytes is not a multiple of {size}"
            raise FormatError(message, len(data) // size * size)
        entries = self._entries(data)
        for number in np.flatnonzero(~self._steps(entries))[:1]:
            offset = entries["relative_offset"][number]
            message = f"{self._name} index entry {number} (relative offset {offset}) does not increase"
            raise FormatError(message, int(number) * size)


OFFSET_INDEX = SegmentIndex("offset", OFFSET_ENTRY, OFFSET_ROW)
TIME_INDEX = SegmentIndex("time", TIME_ENTRY, TIME_ROW)
#: by the suffix of the file
SEGMENT_INDEXES = {INDEX: OFFSET_INDEX, TIMEINDEX: TIME_INDEX}


def read_txn_index(data: Buffer) -> Rows:
    """The complete entries as ``TXN_ROW``, shape (n,); like Kafka, ignores an incomplete entry at the end.

    :raises FormatError: an entry has another version than 0
    """
    rows = TXN_ENTRY.array(data)
    for number in np.flatnonzero(rows["version"] != TXN_VERSION)[:1]:
        version = rows["version"][number]
        raise FormatError(f"transaction index entry {number} has version {version}", int(number) * TXN_ENTRY.size)
    out = np.empty(len(rows), TXN_ROW)
    for name in TXN_ROW.names or ():
        out[name] = rows[name]
    return out


def txn_entries_between(data: Buffer, start_offset: int, end_offset: int) -> bytes:
    """The entries of a transaction index whose markers have offsets in ``[start_offset, end_offset)``, of any version."""
    rows = TXN_ENTRY.array(data)
    return rows[(rows["last_offset"] >= start_offset) & (rows["last_offset"] < end_offset)].tobytes()


def write_txn_index(rows: Rows) -> bytes:
    out = np.zeros(len(rows), TXN_ENTRY.dtype)
    for name in TXN_ROW.names or ():
        out[name] = rows[name]
    return out.tobytes()


def check_txn_index(data: Buffer, base_offset: int) -> None:
    """``TransactionIndex.sanityCheck``: ``FormatError`` for another version or a transaction that ends before the segment."""
    rows = read_txn_index(data)
    for number in np.flatnonzero(rows["last_offset"] < base_offset)[:1]:
        last = rows["last_offset"][number]
        raise FormatError(
            f"transaction index entry {number} ends at offset {last}, before the segment's base {base_offset}",
            int(number) * TXN_ENTRY.size,
        )


def _relative(values: npt.NDArray[np.int64], base: int) -> npt.NDArray[np.int64]:
    relative = values - base
    for number in np.flatnonzero((relative < 0) | (relative > np.iinfo(np.int32).max))[:1]:
        raise FormatError(f"index entry {number}: {values[number]} is out of the int32 range above {base}")
    return relative
