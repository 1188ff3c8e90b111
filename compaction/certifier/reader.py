"""The certifier's own reader: batches of a segment, one row each, and chunks of batches with their records.

It shares the layout of rows with the readers of compaction, but none of their code, so that a batch which these lose, join or
read wrongly is not lost here, too: the length fields lead from one batch to the next, numpy views the headers, and the CRCs are
those of libraries. ``kernels.locate`` finds the records; decompression and v0/v1 wrappers are those of
``compaction.formats``. Mirrors ``DefaultRecordBatch`` and ``LegacyRecord``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.files import read_counter
from compaction.files.filesystem import File, ReadableFileSystem, read_full
from compaction.files.mixed import MixedFileSystem
from compaction.formats.codecs import Codec, decompress
from compaction.formats.message_set import parse_message_entry
from compaction.formats.primitives import FormatError
from compaction.kernels.locate import RECORD_ROW, locate_messages, locate_records
from compaction.kernels.tables import ABORT, BATCH_ROW, COMMIT, EMPTY_CONTROL, NOT_CONTROL

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Rows = NDArray[np.void]

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
#: of a batch, as stored and decompressed
_MOST_BYTES = 1 << 28
CODEC, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x07, 0x08, 0x10, 0x20, 0x40
#: an uncompressed record has a length of at least one byte, and six others
_LEAST_RECORD_BYTES = 7
_LONG_MAX = 2**63 - 1
_BLOCK_BYTES = 4 << 20
#: of two files that are compared
_COMPARED_BYTES = 8 << 20
#: decompressed bytes of a chunk; a larger batch is a chunk of its own
_CHUNK_BYTES = 16 << 20
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


@dataclass(frozen=True)
class ByteRange:
    """Bytes ``[start, end)`` of the log of a segment; ``mtime_ms`` is the segment's."""

    path: str
    start: int
    end: int
    mtime_ms: int = 0

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class BatchKinds(NamedTuple):
    """Properties of batches, bool[b] each: of magic 2; control batches, and those with a COMMIT or ABORT marker; transactional
    data; with a delete horizon."""

    v2: Bools
    control: Bools
    marker: Bools
    transactional: Bools
    dated: Bools

    @classmethod
    def of(cls, rows: Rows) -> BatchKinds:
        """Classify ``BATCH_ROW[b]``."""
        v2 = rows["magic"] >= 2
        control, transactional, dated = (
            v2 & ((rows["attributes"] & bit) != 0) for bit in (CONTROL, TRANSACTIONAL, DELETE_HORIZON)
        )
        marker = control & ((rows["control_type"] == ABORT) | (rows["control_type"] == COMMIT))
        return cls(v2, control, marker, transactional & ~control, dated)


class Block(NamedTuple):
    """Consecutive complete batches of a byte range: ``raw``, uint8[n], from ``position`` on, and ``BATCH_ROW[b]``."""

    position: int
    raw: NDArray[np.uint8]
    rows: Rows
    source: ByteRange


class _Found(NamedTuple):
    """The batches at the start of some bytes, what is wrong with the next one, and its size, 0 if that is not known."""

    rows: Rows
    error: str | None
    need: int


def read_batches(files: ReadableFileSystem, source: ByteRange) -> Iterator[Block]:
    """The batches of a byte range.

    :raises CorruptLogError: a batch is malformed, or extends past the end
    :raises UnsupportedLogError: a batch is larger than 256 MiB
    """
    path, position, end, wanted = source.path, source.start, source.end, _BLOCK_BYTES
    file = files.open(path, position, end)
    try:
        while position < end:
            data = _bytes(file, path, position, min(wanted, end - position))
            found = _parse(data, position)
            if len(found.rows):
                size = int(found.rows["position"][-1]) + int(found.rows["size"][-1]) - position
                read_counter.count(size)
                yield Block(position, np.frombuffer(data, np.uint8, size), found.rows, source)
                position, wanted = position + size, _BLOCK_BYTES
            if found.error is not None:
                raise CorruptLogError(found.error, path=path, position=position, hint=_RESTORE)
            if not len(found.rows):
                _require_room(found.need, path, position, end)
                wanted = max(found.need, _MAGIC_AT + 1)
    finally:
        file.close()


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
    crowded = ((head["attributes"] & CODEC) == 0) & (count > (sizes - HEADER_BYTES) // (_LEAST_RECORD_BYTES - 1))
    misplaced = (base < 0) | (delta < 0) | (base > _LONG_MAX - np.maximum(np.maximum(delta, count), 0))
    conditions = [crc != head["crc"], misplaced, (count < 0) | crowded]
    faults = np.select(conditions, [_BAD_CRC, _BAD_OFFSETS, _BAD_COUNT], 0).astype(np.int8)
    for at in np.flatnonzero((head["attributes"] & CONTROL) != 0).tolist():
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
    size, at = read_varint(data, at, end, 5)
    stop = at + size
    if at < 0 or size < 1 or stop > end:
        return None
    _, at = read_varint(data, at + 1, stop, 10)
    _, at = read_varint(data, at, stop, 5)
    size, at = read_varint(data, at, stop, 5)
    if at < 0 or size < 4 or at + size > stop or data[at] & 0x80:
        return None
    kind = int.from_bytes(data[at + 2 : at + 4], "big", signed=True)
    return kind if kind >= 0 else 0x7FFF


def read_varint(data: bytes, at: int, end: int, most_bytes: int) -> tuple[int, int]:
    """A zigzag varint and the position after it, which is -1 if it is malformed, or ``at`` is."""
    word = 0
    for number in range(most_bytes if at >= 0 else 0):
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


class Chunk(NamedTuple):
    """Consecutive batches (``BATCH_ROW[b]``) and their records (``RECORD_ROW[n]``, ascending by batch), whose positions are
    those in ``data`` (uint8[]). It has the bytes of the batches, too, each ``raw_start`` below its position in the segment.
    ``path`` and ``mtime_ms`` are the segment's."""

    rows: Rows
    records: Rows
    data: NDArray[np.uint8]
    path: str
    mtime_ms: int
    raw_start: int = 0

    def between(self, first: int, end: int) -> Chunk:
        """The chunk of its batches ``[first, end)``."""
        first_record, end_record = np.searchsorted(self.records["batch"], (first, end))
        records = self.records[first_record:end_record].copy()
        records["batch"] -= first
        return self._replace(rows=self.rows[first:end], records=records)

    def batches(self) -> pa.Array:
        """The bytes of each batch, a binary array of b values."""
        starts = self.rows["position"] - self.raw_start
        ends = starts[-1:] + self.rows["size"][-1:]
        offsets = pa.py_buffer(np.concatenate((starts, ends)).astype(np.int32))
        return pa.Array.from_buffers(pa.binary(), len(starts), [None, offsets, pa.py_buffer(self.data)])

    def identity(self) -> bytes:
        """The header fields of the batches, and their stored checksums, which were verified."""
        # of v2, and of v0 and v1
        crc_at = self.rows["position"] - self.raw_start + np.where(self.rows["magic"] >= 2, 17, 12)
        return self.rows.tobytes() + self.data[crc_at[:, None] + np.arange(4)].tobytes()


def read_chunks(ranges: Iterable[ByteRange], first_offset: int, end_offset: int) -> Iterator[Chunk]:
    """The batches with last offsets in ``[first_offset, end_offset)``.

    :raises CorruptLogError: a batch or record is malformed
    """
    for source in ranges:
        for block in read_batches(MixedFileSystem(), source):
            last = block.rows["last_offset"]
            inside = np.flatnonzero((last >= first_offset) & (last < end_offset))
            if len(inside):
                yield from _chunks(block._replace(rows=block.rows[inside[0] : inside[-1] + 1]))


def _chunks(block: Block) -> Iterator[Chunk]:
    """The block's runs of one format, each cut into chunks of about ``_CHUNK_BYTES``."""
    kind = np.where(block.rows["magic"] >= 2, 2, np.where((block.rows["attributes"] & CODEC) != 0, 1, 0))
    edges = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), len(kind)]
    for first, end in zip(edges, edges[1:], strict=False):
        run = block._replace(rows=block.rows[first:end])
        if kind[first] == 1:
            for row in range(end - first):
                yield _wrapper(run, run.rows[row : row + 1].copy())
        elif kind[first] == 0:
            starts = run.rows["position"] - block.position
            yield _located(locate_messages, [block.raw], run, (starts, starts + run.rows["size"]))
        else:
            yield from _batches(run)


def _batches(run: Block) -> Iterator[Chunk]:
    """The chunks of v2 batches; decompressed records follow the bytes of the block."""
    rows, raw = run.rows, memoryview(run.raw)
    starts = rows["position"] - run.position + HEADER_BYTES
    ends = starts + rows["size"] - HEADER_BYTES
    parts, used, first = [run.raw], len(raw), 0
    # an emptied batch may name a codec, but has no payload
    for row in np.flatnonzero(((rows["attributes"] & CODEC) != 0) & (rows["count"] > 0)).tolist():
        if used - len(raw) >= _CHUNK_BYTES:
            yield _located(locate_records, parts, run._replace(rows=rows[first:row]), (starts[first:row], ends[first:row]))
            parts, used, first = [run.raw], len(raw), row
        try:
            plain = decompress(Codec.of(int(rows["attributes"][row])), raw[starts[row] : ends[row]], limit_bytes=_MOST_BYTES)
        except FormatError as error:
            raise _corrupt(str(error), run, rows[row]) from error
        parts.append(np.frombuffer(plain, np.uint8))
        starts[row], ends[row], used = used, used + len(plain), used + len(plain)
    yield _located(locate_records, parts, run._replace(rows=rows[first:]), (starts[first:], ends[first:]))


def _located(
    locate: Callable[..., tuple[int, int]], parts: list[NDArray[np.uint8]], run: Block, bounds: tuple[Int64s, Int64s]
) -> Chunk:
    """The chunk of the batches of ``run``; the first of ``parts`` has the bytes of its block."""
    rows, data = run.rows.copy(), parts[0] if len(parts) == 1 else np.concatenate(parts)
    counts = np.where(rows["magic"] >= 2, rows["count"], 1).astype(np.int64)
    short = counts * _LEAST_RECORD_BYTES > bounds[1] - bounds[0]
    if short.any():
        raise _corrupt("batch declares more records than its bytes can hold", run, rows[int(np.argmax(short))])
    records = np.zeros(int(counts.sum()), RECORD_ROW)
    count, fault = locate(data, rows, *map(np.ascontiguousarray, bounds), records)
    if fault >= 0:
        raise _corrupt("record is malformed", run, rows[fault])
    return Chunk(rows, records[:count], data, run.source.path, run.source.mtime_ms, run.position)


def _wrapper(block: Block, row: Rows) -> Chunk:
    """A compressed v0 or v1 message."""
    start = int(row["position"][0]) - block.position
    try:
        columns = parse_message_entry(memoryview(block.raw), start).columns(_MOST_BYTES)
    except FormatError as error:
        raise _corrupt(str(error), block, row[0]) from error
    records = np.zeros(len(columns), RECORD_ROW)
    records["offset"], records["timestamp"] = columns.offset, columns.timestamp
    records["key_at"], records["key_size"] = columns.key_start, np.maximum(columns.key_length, -1)
    records["value_at"], records["value_size"] = columns.value_start, np.maximum(columns.value_length, -1)
    if row["magic"][0] and row["attributes"][0] & LOG_APPEND_TIME:
        # messages of magic 0 have none
        records["timestamp"][columns.timestamp >= 0] = row["max_timestamp"][0]
    plain, raw = np.frombuffer(columns.data, np.uint8), block.raw[start : start + int(row["size"][0])]
    raw_start = int(row["position"][0]) - len(plain)
    return Chunk(row, records, np.concatenate((plain, raw)), block.source.path, block.source.mtime_ms, raw_start)


def _corrupt(message: str, block: Block, row: np.void) -> CorruptLogError:
    return CorruptLogError(message, path=block.source.path, position=int(row["position"]), hint=_RESTORE)


def same_bytes(files: ReadableFileSystem, path: str, other_path: str, size: int) -> bool:
    """Whether the first ``size`` bytes of two files are equal."""
    steps = ((position, min(_COMPARED_BYTES, size - position)) for position in range(0, size, _COMPARED_BYTES))
    return all(files.read_bytes(path, *step) == files.read_bytes(other_path, *step) for step in steps)
