"""Reads byte ranges of a log as chunks: batches, their decompressed bytes, and the position of each record's fields.

``checks.batches`` finds the batches, ``kernels.reading.locate`` their records; decompression and v0/v1 wrappers are those of
``compaction.formats``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from compaction.certifier.checks.batches import HEADER_BYTES, Block, read_batches
from compaction.certifier.checks.log_pair import Int64s, Rows
from compaction.certifier.checks.offset_ranges import ByteRange
from compaction.errors import CorruptLogError
from compaction.formats.codecs import Codec, decompress
from compaction.formats.message_set import parse_message_entry
from compaction.formats.primitives import FormatError
from compaction.kernels.locate import RECORD_ROW, locate_messages, locate_records
from compaction.storage.mixed import MixedFileSystem

CODEC = 0x07
LOG_APPEND_TIME = 0x08
#: decompressed bytes of a chunk; a larger batch is a chunk of its own
_CHUNK_BYTES = 16 << 20
#: decompressed bytes of a batch: more is malformed
_MOST_BYTES = 256 << 20
_LEAST_RECORD_BYTES = 7

Locate = Callable[..., tuple[int, int]]


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
    for part in ranges:
        for block in read_batches(MixedFileSystem(), part.path, part.start, part.end):
            last = block.rows["last_offset"]
            inside = np.flatnonzero((last >= first_offset) & (last < end_offset))
            if len(inside):
                rows = block.rows[inside[0] : inside[-1] + 1]
                yield from _chunks(block._replace(rows=rows), part)


def _chunks(block: Block, part: ByteRange) -> Iterator[Chunk]:
    """The block's runs of one format, each cut into chunks of about ``_CHUNK_BYTES``."""
    kind = np.where(block.rows["magic"] >= 2, 2, np.where((block.rows["attributes"] & CODEC) != 0, 1, 0))
    edges = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), len(kind)]
    for first, end in zip(edges, edges[1:], strict=False):
        rows = block.rows[first:end]
        if kind[first] == 1:
            for row in range(first, end):
                yield _wrapper(block, block.rows[row : row + 1].copy(), part)
        elif kind[first] == 0:
            starts = rows["position"] - block.position
            run = block._replace(rows=rows)
            yield _located(locate_messages, block.raw, run, (starts, starts + rows["size"]), part)
        else:
            yield from _batches(block._replace(rows=rows), part)


def _batches(block: Block, part: ByteRange) -> Iterator[Chunk]:
    rows = block.rows
    starts = rows["position"] - block.position + HEADER_BYTES
    ends = starts + rows["size"] - HEADER_BYTES
    # an emptied batch may name a codec, but has no payload
    packed = np.flatnonzero(((rows["attributes"] & CODEC) != 0) & (rows["count"] > 0))
    if not len(packed):
        yield _located(locate_records, block.raw, block, (starts, ends), part)
        return
    parts, used, first = [block.raw], len(block.raw), 0
    raw = memoryview(block.raw)
    for row in packed.tolist():
        if used - len(block.raw) >= _CHUNK_BYTES:
            yield _cut(parts, block._replace(rows=rows[first:row]), (starts[first:row], ends[first:row]), part)
            parts, used, first = [block.raw], len(block.raw), row
        try:
            plain = decompress(Codec.of(int(rows["attributes"][row])), raw[starts[row] : ends[row]], limit_bytes=_MOST_BYTES)
        except FormatError as error:
            raise _corrupt(str(error), part.path, rows[row]) from error
        parts.append(np.frombuffer(plain, np.uint8))
        starts[row], ends[row], used = used, used + len(plain), used + len(plain)
    yield _cut(parts, block._replace(rows=rows[first:]), (starts[first:], ends[first:]), part)


def _cut(parts: list[NDArray[np.uint8]], run: Block, bounds: tuple[Int64s, Int64s], part: ByteRange) -> Chunk:
    return _located(locate_records, np.concatenate(parts), run, bounds, part)


def _located(locate: Locate, data: NDArray[np.uint8], run: Block, bounds: tuple[Int64s, Int64s], part: ByteRange) -> Chunk:
    """The chunk of the batches of ``run``; ``data`` begins with the bytes of its block."""
    rows = run.rows.copy()
    counts = np.where(rows["magic"] >= 2, rows["count"], 1).astype(np.int64)
    short = counts * _LEAST_RECORD_BYTES > bounds[1] - bounds[0]
    if short.any():
        raise _corrupt("batch declares more records than its bytes can hold", part.path, rows[int(np.argmax(short))])
    records = np.zeros(int(counts.sum()), RECORD_ROW)
    count, fault = locate(data, rows, *map(np.ascontiguousarray, bounds), records)
    if fault >= 0:
        raise _corrupt("record is malformed", part.path, rows[fault])
    return Chunk(rows, records[:count], data, part.path, part.mtime_ms, run.position)


def _wrapper(block: Block, row: Rows, part: ByteRange) -> Chunk:
    """A compressed v0 or v1 message."""
    start = int(row["position"][0]) - block.position
    try:
        columns = parse_message_entry(memoryview(block.raw), start).columns(_MOST_BYTES)
    except FormatError as error:
        raise _corrupt(str(error), part.path, row[0]) from error
    records = np.zeros(len(columns), RECORD_ROW)
    records["offset"], records["timestamp"] = columns.offset, columns.timestamp
    records["key_at"], records["key_size"] = columns.key_start, np.maximum(columns.key_length, -1)
    records["value_at"], records["value_size"] = columns.value_start, np.maximum(columns.value_length, -1)
    if row["magic"][0] and row["attributes"][0] & LOG_APPEND_TIME:
        # messages of magic 0 have none
        records["timestamp"][columns.timestamp >= 0] = row["max_timestamp"][0]
    plain, raw = np.frombuffer(columns.data, np.uint8), block.raw[start : start + int(row["size"][0])]
    raw_start = int(row["position"][0]) - len(plain)
    return Chunk(row, records, np.concatenate((plain, raw)), part.path, part.mtime_ms, raw_start)


def _corrupt(message: str, path: str, row: np.void) -> CorruptLogError:
    return CorruptLogError(message, path=path, position=int(row["position"]), hint="restore this segment")
