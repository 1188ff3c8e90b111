"""Reads the record batches of a segment for the certifier: boundaries, CRCs and header fields, one row per batch.

It shares the layout of rows with the readers of compaction, but none of their code, so that a batch which these lose, join or
read wrongly is not lost here, too: the length fields lead from one batch to the next, numpy views the headers, and the CRCs are
those of libraries. Mirrors ``DefaultRecordBatch`` and ``LegacyRecord``.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from compaction.certifier.checks.log_pair import Int64s, Rows
from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.kernels.reading.tables import BATCH_ROW, EMPTY_CONTROL, NOT_CONTROL
from compaction.storage import read_counter
from compaction.storage.filesystem import File, ReadableFileSystem, read_full

HEADER_BYTES = 61
#: the header of a v2 batch, and the beginning of a message of magic 0 or 1; magic 0 has no timestamp
_HEADER = np.dtype(
    [
        ("base_offset", ">i8"), ("length", ">i4"), ("leader_epoch", ">i4"), ("magic", "i1"), ("crc", ">u4"),
        ("attributes", ">i2"), ("last_offset_delta", ">i4"), ("base_timestamp", ">i8"), ("max_timestamp", ">i8"),
        ("producer_id", ">i8"), ("producer_epoch", ">i2"), ("base_sequence", ">i4"), ("count", ">i4"),
    ]
)  # fmt: skip
_MESSAGE = np.dtype(
    [("offset", ">i8"), ("length", ">i4"), ("crc", ">u4"), ("magic", "i1"), ("attributes", "i1"), ("timestamp", ">i8")]
)
_COPIED = (
    "base_offset", "leader_epoch", "attributes", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch",
    "base_sequence", "count",
)  # fmt: skip
#: offset and length, and up to the magic
_PREFIX_BYTES, _MAGIC_AT, _CRC_END_V2, _CRC_END_OLD = 12, 16, 21, 16
#: of a batch, by magic
_LEAST_BYTES = (26, 34, HEADER_BYTES)
_MOST_BYTES = 1 << 28
_CODEC, _CONTROL = 0x07, 0x20
#: an uncompressed record has six bytes at least, its length aside
_LEAST_RECORD_BYTES = 6
_LONG_MAX = 2**63 - 1
_BLOCK_BYTES = 4 << 20
#: how much of a torn tail is searched for a valid batch, the bytes of candidates, and how far offsets may rise
_SEARCHED_BYTES = 64 << 20
_CHECKED_BYTES = 1 << 30
_MOST_STEP = 2**31
_RESTORE = "restore this segment"
_BAD_CRC, _BAD_OFFSETS, _BAD_COUNT, _BAD_CONTROL = range(1, 5)
_FAULTS = (
    "", "batch fails its CRC", "batch has impossible offsets", "batch has an impossible record count",
    "control batch has no readable control record",
)  # fmt: skip


class Block(NamedTuple):
    """Consecutive complete batches of the file ``path``: ``raw``, uint8[n], from ``position`` on, and ``BATCH_ROW[b]``."""

    position: int
    raw: NDArray[np.uint8]
    rows: Rows
    path: str


class _Found(NamedTuple):
    """The batches at the start of some bytes, what is wrong with the next one, and its size, 0 if that is not known."""

    rows: Rows
    error: str | None
    need: int


def read_batches(files: ReadableFileSystem, path: str, start: int, end: int) -> Iterator[Block]:
    """The batches in ``[start, end)``.

    :raises CorruptLogError: a batch is malformed, or extends past ``end``
    :raises UnsupportedLogError: a batch is larger than 256 MiB
    """
    position, wanted = start, _BLOCK_BYTES
    source = files.open(path, start, end)
    try:
        while position < end:
            data = _bytes(source, path, position, min(wanted, end - position))
            found = _parse(data, position)
            if len(found.rows):
                size = int(found.rows["position"][-1]) + int(found.rows["size"][-1]) - position
                read_counter.count(size)
                yield Block(position, np.frombuffer(data, np.uint8, size), found.rows, path)
                position, wanted = position + size, _BLOCK_BYTES
            if found.error is not None:
                raise CorruptLogError(found.error, path=path, position=position, hint=_RESTORE)
            if not len(found.rows):
                _require_room(found.need, path, position, end)
                wanted = max(found.need, _MAGIC_AT + 1)
    finally:
        source.close()


def _require_room(need: int, path: str, position: int, end: int) -> None:
    """:raises LogError: a batch of ``need`` bytes does not fit, or is too large"""
    if position + max(need, _MAGIC_AT + 1) > end:
        left = end - position
        message = f"batch of {need} bytes extends past the last {left} bytes" if need else f"{left} bytes are not a batch"
        raise CorruptLogError(message, path=path, position=position, hint=_RESTORE)
    if need > _MOST_BYTES:
        message = f"batch of {need} bytes, more than {_MOST_BYTES} are not supported"
        raise UnsupportedLogError(message, path=path, position=position)


def _bytes(source: File, path: str, position: int, size: int) -> bytes:
    buffer = bytearray(size)
    filled = read_full(source, memoryview(buffer), position)
    if filled < size:
        message = f"file ends here, {size - filled} bytes earlier than when the run began"
        hint = "the log changed while it was read: run again when nothing writes to it"
        raise CorruptLogError(message, path=path, position=position + filled, hint=hint)
    return bytes(buffer)


def _parse(data: bytes, position: int) -> _Found:
    starts, sizes, error, need = _walk(data)
    rows = np.zeros(len(starts), BATCH_ROW)
    rows["position"], rows["size"], rows["control_type"] = starts + position, sizes, NOT_CONTROL
    raw = np.frombuffer(data, np.uint8)
    rows["magic"] = raw[starts + _MAGIC_AT]
    faults = np.zeros(len(rows), np.int8)
    for read, of_kind in ((_read_new, rows["magic"] == 2), (_read_old, rows["magic"] < 2)):
        which = np.flatnonzero(of_kind)
        if len(which):
            faults[which] = read(raw, data, rows, which, starts)
    wrong = np.flatnonzero(faults)
    if len(wrong):
        return _Found(rows[: wrong[0]], _FAULTS[faults[wrong[0]]], 0)
    return _Found(rows, error, need)


def _walk(data: bytes) -> tuple[Int64s, Int64s, str | None, int]:
    """Starts and sizes of the complete batches, what is wrong with the length or the magic of the next, and its size."""
    starts, sizes, at, end = [], [], 0, len(data)
    error, need = None, 0
    while at + _MAGIC_AT < end:
        size = int.from_bytes(data[at + 8 : at + 12], "big", signed=True) + _PREFIX_BYTES
        magic = data[at + _MAGIC_AT]
        if size < _LEAST_BYTES[0]:
            error = "batch has an impossible length"
        elif magic > 2:
            error = "batch has an unknown magic"
        elif at + size > end:
            need = size
        elif size < _LEAST_BYTES[magic]:
            error = "batch has an impossible length"
        else:
            starts.append(at)
            sizes.append(size)
            at += size
            continue
        break
    return np.array(starts, np.int64), np.array(sizes, np.int64), error, need


def _headers(raw: NDArray[np.uint8], starts: Int64s, layout: np.dtype[np.void]) -> Rows:
    headers: Rows = raw[starts[:, None] + np.arange(layout.itemsize)].view(layout)[:, 0]
    return headers


def _read_new(raw: NDArray[np.uint8], data: bytes, rows: Rows, which: Int64s, starts: Int64s) -> NDArray[np.int8]:
    """Fill the rows ``which`` of v2 batches; their faults."""
    starts, sizes = starts[which], rows["size"][which].astype(np.int64)
    head = _headers(raw, starts, _HEADER)
    base = head["base_offset"].astype(np.int64)
    for name in _COPIED:
        rows[name][which] = head[name]
    delta, count = (head[name].astype(np.int64) for name in ("last_offset_delta", "count"))
    rows["last_offset"][which] = base + delta
    ends = starts + sizes
    bounds = zip((starts + _CRC_END_V2).tolist(), ends.tolist(), strict=True)
    crc = np.array([google_crc32c.value(data[start:end]) for start, end in bounds], np.uint32)
    crowded = ((head["attributes"] & _CODEC) == 0) & (count > (sizes - HEADER_BYTES) // _LEAST_RECORD_BYTES)
    misplaced = (base < 0) | (delta < 0) | (base > _LONG_MAX - np.maximum(np.maximum(delta, count), 0))
    conditions = [crc != head["crc"], misplaced, (count < 0) | crowded]
    faults = np.select(conditions, [_BAD_CRC, _BAD_OFFSETS, _BAD_COUNT], 0).astype(np.int8)
    for at in np.flatnonzero((head["attributes"] & _CONTROL) != 0).tolist():
        kind = EMPTY_CONTROL if count[at] == 0 else _control_type(data, int(starts[at]) + HEADER_BYTES, int(ends[at]))
        if kind is not None:
            rows["control_type"][which[at]] = kind
        elif not faults[at]:
            faults[at] = _BAD_CONTROL
    return faults


def _read_old(raw: NDArray[np.uint8], data: bytes, rows: Rows, which: Int64s, starts: Int64s) -> NDArray[np.int8]:
    """The same for messages of magic 0 and 1, and wrappers of them."""
    starts, sizes = starts[which], rows["size"][which].astype(np.int64)
    # a message of magic 0 may be shorter than the header of magic 1
    head = _headers(np.append(raw, np.zeros(_MESSAGE.itemsize, np.uint8)), starts, _MESSAGE)
    for name in ("base_offset", "last_offset"):
        rows[name][which] = head["offset"]
    for name in ("leader_epoch", "base_timestamp", "producer_id", "producer_epoch", "base_sequence", "count"):
        rows[name][which] = -1
    rows["attributes"][which] = head["attributes"]
    rows["max_timestamp"][which] = np.where(rows["magic"][which] == 1, head["timestamp"], -1)
    bounds = zip((starts + _CRC_END_OLD).tolist(), (starts + sizes).tolist(), strict=True)
    crc = np.array([zlib.crc32(data[start:end]) for start, end in bounds], np.uint32)
    faults: NDArray[np.int8] = np.select([crc != head["crc"], head["offset"] < 0], [_BAD_CRC, _BAD_OFFSETS], 0).astype(np.int8)
    return faults


def _control_type(data: bytes, at: int, end: int) -> int | None:
    """The type in the key of the record at ``at``, its version before it; ``None`` if there is no such key."""
    size, at = _number(data, at, end, 5)
    stop = at + size
    if at < 0 or size < 1 or stop > end:
        return None
    _, at = _number(data, at + 1, stop, 10)
    _, at = _number(data, at, stop, 5) if at >= 0 else (0, -1)
    size, at = _number(data, at, stop, 5) if at >= 0 else (0, -1)
    if at < 0 or size < 4 or at + size > stop or data[at] & 0x80:
        return None
    kind = int.from_bytes(data[at + 2 : at + 4], "big", signed=True)
    return kind if kind >= 0 else 0x7FFF


def _number(data: bytes, at: int, end: int, most_bytes: int) -> tuple[int, int]:
    """A zigzag varint and the position after it, -1 if it is malformed."""
    word = 0
    for number in range(most_bytes):
        if at + number >= end:
            break
        byte = data[at + number]
        word |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return (word >> 1) ^ -(word & 1), at + number + 1
    return 0, -1


def is_torn(files: ReadableFileSystem, path: str, start: int, end: int, next_offset: int, *, unclean: bool) -> bool:
    """Whether what follows the last valid batch is the end of an unfinished write rather than damage: only zeros, an incomplete
    batch, or one that ends in zeros, and no valid batch after it.

    :param next_offset: the lowest offset that a batch there may have
    :param unclean: a broker truncates any malformed end when it starts
    """
    windows = (files.read_bytes(path, at, min(_BLOCK_BYTES, end - at)) for at in range(start, end, _BLOCK_BYTES))
    if not any(window.strip(b"\0") for window in windows):
        return True
    data = files.read_bytes(path, start, min(end - start, 1 + _SEARCHED_BYTES))
    found = _parse(data, start)
    last = files.read_bytes(path, max(start + HEADER_BYTES, end - 8), 8) if end > start + HEADER_BYTES else b""
    never_flushed = last != b"" and not last.strip(b"\0")
    if len(found.rows) or (found.error is not None and not unclean and not never_flushed):
        return False
    return not _resumes(data[1:], next_offset)


def _resumes(data: bytes, next_offset: int) -> bool:
    """Whether a valid v2 batch begins anywhere; of more candidates than can be checked, one is taken to be valid."""
    checked = 0
    raw = np.frombuffer(data, np.uint8)
    places = np.flatnonzero(raw[_MAGIC_AT : max(_MAGIC_AT, len(raw) - HEADER_BYTES + _MAGIC_AT + 1)] == 2)
    for part in np.array_split(places, len(places) // 100_000 + 1):
        head = _headers(raw, part, _HEADER)
        step, size = head["base_offset"] - np.int64(next_offset), head["length"].astype(np.int64) + _PREFIX_BYTES
        likely = (step >= 0) & (step < _MOST_STEP) & (size >= HEADER_BYTES) & (size <= len(raw) - part)
        for at, end in zip(part[likely].tolist(), (part + size)[likely].tolist(), strict=True):
            checked += end - at
            if checked > _CHECKED_BYTES or len(_parse(data[at:end], 0).rows):
                return True
    return False
