"""Reads and writes the three index files of a segment as numpy arrays.

Mirrors ``OffsetIndex``, ``TimeIndex`` and ``TransactionIndex``. The offset and time index of an active segment
may be preallocated: entries are valid up to the last one that is not zero, as long as they increase.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compaction.formats.primitives import Buffer, FieldTable, FormatError, Int16, Int32, Int64


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


def valid_offset_entries(data: Buffer) -> int:
    """Number of valid leading entries: without zeros at the end, as long as offsets and positions increase."""
    entries = _without_zero_tail(OFFSET_ENTRY.array(data), ("relative_offset", "position"))
    return _valid_prefix(_offset_steps(entries))


def valid_time_entries(data: Buffer) -> int:
    """Number of valid leading entries: without zeros at the end, as long as timestamps increase and offsets do not decrease.

    If the only entry is all zeros, it is valid (timestamp 0 in the first batch) and not preallocated.
    """
    rows = TIME_ENTRY.array(data)
    if len(data) == TIME_ENTRY.size and not any(data):
        return 1
    return _valid_prefix(_time_steps(_without_zero_tail(rows, ("timestamp", "relative_offset"))))


def read_offset_index(data: Buffer, base_offset: int) -> Rows:
    """The valid entries as ``OFFSET_ROW``, shape (n,), absolute offsets."""
    rows = OFFSET_ENTRY.array(data)[: valid_offset_entries(data)]
    out = np.empty(len(rows), OFFSET_ROW)
    out["offset"] = rows["relative_offset"].astype(np.int64) + base_offset
    out["position"] = rows["position"]
    return out


def read_time_index(data: Buffer, base_offset: int) -> Rows:
    """The valid entries as ``TIME_ROW``, shape (n,), absolute offsets."""
    rows = TIME_ENTRY.array(data)[: valid_time_entries(data)]
    out = np.empty(len(rows), TIME_ROW)
    out["timestamp"] = rows["timestamp"]
    out["offset"] = rows["relative_offset"].astype(np.int64) + base_offset
    return out


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


def write_offset_index(rows: Rows, base_offset: int) -> bytes:
    """The file's bytes for ``OFFSET_ROW`` rows; ``FormatError`` for an offset outside the segment's int32 range."""
    out = np.empty(len(rows), OFFSET_ENTRY.dtype)
    out["relative_offset"] = _relative(rows["offset"], base_offset)
    out["position"] = _relative(rows["position"], 0)
    return out.tobytes()


def write_time_index(rows: Rows, base_offset: int) -> bytes:
    """The file's bytes for ``TIME_ROW`` rows; ``FormatError`` for an offset outside the segment's int32 range."""
    out = np.empty(len(rows), TIME_ENTRY.dtype)
    out["timestamp"] = rows["timestamp"]
    out["relative_offset"] = _relative(rows["offset"], base_offset)
    return out.tobytes()


def write_txn_index(rows: Rows) -> bytes:
    """The file's bytes for ``TXN_ROW`` rows."""
    out = np.zeros(len(rows), TXN_ENTRY.dtype)
    for name in TXN_ROW.names or ():
        out[name] = rows[name]
    return out.tobytes()


def check_offset_index(data: Buffer) -> None:
    """``FormatError`` with the entry number if the index must be rebuilt."""
    _check_size(data, OFFSET_ENTRY.size, "offset")
    entries = _without_zero_tail(OFFSET_ENTRY.array(data), ("relative_offset", "position"))
    _check_entries(entries["relative_offset"], _offset_steps(entries), OFFSET_ENTRY.size, "offset")


def check_time_index(data: Buffer) -> None:
    """``FormatError`` with the entry number if the index must be rebuilt."""
    _check_size(data, TIME_ENTRY.size, "time")
    entries = _without_zero_tail(TIME_ENTRY.array(data), ("timestamp", "relative_offset"))
    _check_entries(entries["relative_offset"], _time_steps(entries), TIME_ENTRY.size, "time")


def check_txn_index(data: Buffer, base_offset: int) -> None:
    """``TransactionIndex.sanityCheck``: ``FormatError`` for another version or a transaction that ends before the segment."""
    rows = read_txn_index(data)
    for number in np.flatnonzero(rows["last_offset"] < base_offset)[:1]:
        last = rows["last_offset"][number]
        raise FormatError(
            f"transaction index entry {number} ends at offset {last}, before the segment's base {base_offset}",
            int(number) * TXN_ENTRY.size,
        )


def _without_zero_tail(rows: Rows, names: tuple[str, str]) -> Rows:
    used = np.flatnonzero((rows[names[0]] != 0) | (rows[names[1]] != 0))
    return rows[: int(used[-1]) + 1 if len(used) else 0]


def _offset_steps(entries: Rows) -> npt.NDArray[np.bool_]:
    """Per entry, whether it is valid after its predecessor."""
    offsets, positions = entries["relative_offset"].astype(np.int64), entries["position"].astype(np.int64)
    valid = (offsets >= 0) & (positions >= 0)
    valid[1:] &= (np.diff(offsets) > 0) & (np.diff(positions) > 0)
    return valid


def _time_steps(entries: Rows) -> npt.NDArray[np.bool_]:
    times, offsets = entries["timestamp"].astype(np.int64), entries["relative_offset"].astype(np.int64)
    valid = offsets >= 0
    # compare instead of subtracting: timestamps use the whole int64 range
    valid[1:] &= (times[1:] > times[:-1]) & (offsets[1:] >= offsets[:-1])
    return valid


def _valid_prefix(valid: npt.NDArray[np.bool_]) -> int:
    return len(valid) if valid.all() else int(np.argmin(valid))


def _check_size(data: Buffer, entry_bytes: int, kind: str) -> None:
    if len(data) % entry_bytes:
        whole_bytes = len(data) // entry_bytes * entry_bytes
        raise FormatError(f"{kind} index of {len(data)} bytes is not a multiple of {entry_bytes}", whole_bytes)


def _check_entries(offsets: npt.NDArray[np.int32], valid: npt.NDArray[np.bool_], entry_bytes: int, kind: str) -> None:
    for number in np.flatnonzero(~valid)[:1]:
        raise FormatError(
            f"{kind} index entry {number} (relative offset {offsets[number]}) does not increase", int(number) * entry_bytes
        )


def _relative(values: npt.NDArray[np.int64], base: int) -> npt.NDArray[np.int64]:
    relative = values - base
    for number in np.flatnonzero((relative < 0) | (relative > np.iinfo(np.int32).max))[:1]:
        raise FormatError(f"index entry {number}: {values[number]} is out of the int32 range above {base}")
    return relative
