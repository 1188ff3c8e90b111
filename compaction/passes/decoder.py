"""Prepares the records of a block's batches for the kernels: decompresses them into a reused buffer, a bounded number of bytes
at a time, and converts messages of magic 0 and 1 to v2 records. Uncompressed v2 records are read in place.

Tested by ``tests/passes/test_rounds.py``, ``tests/damage/test_bombs.py`` and ``tests/kernels/reading/test_plain_messages.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.formats.compression.codecs import BufferTooSmall, Codec, CodecError, decompress_into
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.record_batch.transcode import transcode
from compaction.kernels.reading.batches import HEADER_SIZE, LOG_APPEND_TIME_BIT
from compaction.kernels.reading.plain_messages import GROWTH, plain_messages
from compaction.kernels.reading.records import RECORD_ERRORS
from compaction.kernels.reading.tables import MAX_OFFSET, OTHER_MAGIC_BIT
from compaction.logdir.blocks import Block

V2_MAGIC = 2
CODEC_BITS = 7
#: size of the buffer for decompressed records, unless one batch needs more
SCRATCH_BYTES = 4 << 20
#: bounds memory: no broker accepts a batch that decompresses to more
MAX_PLAIN_BYTES = 256 << 20
#: bounds memory: a task holds up to 48 bytes per record of a batch
MAX_RECORDS = 4 << 20
_MIN_RECORD_BYTES = 7


class Decoded(NamedTuple):
    """Batches ``[first_row, first_row + len(rows))`` of a block with their uncompressed records.

    ``spans`` int64[r, 3]: start, end, and 1 for ``scratch``, 0 for the block's ``raw``; 0, 0 for batches that are not wanted.
    """

    first_row: int
    rows: NDArray[np.void]
    spans: NDArray[np.int64]
    scratch: NDArray[np.uint8]


def check_count(decoded: Decoded, at: int, path: str) -> None:
    """Check a batch's record count before memory is allocated for its records.

    :raises CorruptLogError: the batch is too small for its record count
    :raises UnsupportedLogError: it has more than ``MAX_RECORDS`` records
    """
    row, (start, end) = decoded.rows[at], decoded.spans[at, :2].tolist()
    count, position = int(row["count"]), int(row["position"])
    if count * _MIN_RECORD_BYTES > end - start:
        what = f"batch declares {count} records in {end - start} bytes"
        raise CorruptLogError(what, path=path, position=position, hint="restore this segment")
    if count > MAX_RECORDS:
        what = f"batch of {count} records, more than {MAX_RECORDS} are not supported"
        raise UnsupportedLogError(what, path=path, position=position)


def check_offsets(block: Block, floor: int, path: str, end_offset: int = MAX_OFFSET) -> int:
    """The offset after the last batch of ``block``, whose offsets must be in ``[floor, end_offset)``.

    :raises CorruptLogError: offsets decrease, or reach ``end_offset``
    :raises UnsupportedLogError: offsets reach ``MAX_OFFSET``
    """
    rows = block.rows
    highest = rows[int(np.argmax(rows["last_offset"]))]
    if highest["last_offset"] >= MAX_OFFSET:
        what = f"offsets from {MAX_OFFSET} on are not supported"
        raise UnsupportedLogError(what, path=path, position=int(highest["position"]))
    floors = np.concatenate([[floor], rows["last_offset"][:-1] + 1])
    backwards = np.flatnonzero(rows["base_offset"] < floors)
    if len(backwards):
        at = rows[int(backwards[0])]
        what = f"batch begins at offset {at['base_offset']}, expected {floors[backwards[0]]} or more"
        raise CorruptLogError(what, path=path, position=int(at["position"]), hint="restore this segment")
    if highest["last_offset"] >= end_offset:
        what = f"batch ends at offset {highest['last_offset']}, expected one below {end_offset}"
        raise CorruptLogError(what, path=path, position=int(highest["position"]), hint="restore this segment")
    return int(rows["last_offset"][-1]) + 1


def corrupt_record(error: int, row: np.void, path: str) -> CorruptLogError:
    """The error of the batch ``row`` (``BATCH_ROW``) for a key of ``RECORD_ERRORS``."""
    return CorruptLogError(RECORD_ERRORS[error], path=path, position=int(row["position"]), hint="restore this segment")


class Decoder:
    """Decodes the blocks of one segment file; ``path`` is for error messages."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._scratch = np.empty(0, np.uint8)
        self._message_spans = np.empty((0, 3), np.int64)

    def as_v2(self, block: Block) -> Iterator[Block]:
        """The block in runs of batches that are either all of magic 2 or all of magic 0 and 1. The rows of the latter are
        changed to describe v2 batches, except for ``magic``, so that their offsets, counts and timestamps are correct.

        Each run is valid until the next one, and is to be passed to ``decode``.
        """
        v0_v1 = block.rows["magic"] < V2_MAGIC
        if not v0_v1.any():
            yield block
            return
        edges = [0, *(np.flatnonzero(v0_v1[1:] != v0_v1[:-1]) + 1).tolist(), len(v0_v1)]
        for first, end in pairwise(edges):
            run = Block(block.position, block.raw, block.rows[first:end])
            if v0_v1[first]:
                yield from self._transcode(run)
            else:
                yield run

    def _transcode(self, block: Block) -> Iterator[Block]:
        rows = block.rows
        rows["attributes"] &= np.where(rows["magic"] == 0, CODEC_BITS, CODEC_BITS | LOG_APPEND_TIME_BIT).astype(np.int16)
        packed = (rows["attributes"] & CODEC_BITS) != 0
        at = 0
        while at < len(rows):
            self._ensure(max(SCRATCH_BYTES, int(rows["size"][at]) + GROWTH))
            if packed[at]:
                end = self._wrapper(block, at)
            else:
                run = int(np.argmax(packed[at:])) if packed[at:].any() else len(rows) - at
                end = self._plain(block, at, at + run)
            yield Block(block.position, block.raw, rows[at:end])
            at = end

    def _plain(self, block: Block, at: int, end: int) -> int:
        rows = block.rows[at:end]
        self._message_spans = np.zeros((len(rows), 3), np.int64)
        done, ok = plain_messages(block.raw, block.position, rows, 0, self._scratch, self._message_spans)
        if not ok:
            raise self._corrupt("message's lengths contradict its size", rows[done])
        return at + int(done)

    def _wrapper(self, block: Block, at: int) -> int:
        row = block.rows[at]
        start = int(row["position"]) - block.position
        try:
            made = transcode(memoryview(block.raw), start, limit_bytes=MAX_PLAIN_BYTES)
        except FormatError as error:
            raise self._corrupt(str(error), row) from error
        self._ensure(len(made.records))
        self._scratch[: len(made.records)] = np.frombuffer(made.records, np.uint8)
        self._message_spans = np.array([[0, len(made.records), 1]], np.int64)
        row["base_offset"], row["last_offset"] = made.base_offset, made.last_offset
        row["base_timestamp"], row["count"] = made.base_timestamp, made.record_count
        if made.other_magic:
            row["attributes"] |= OTHER_MAGIC_BIT
        return at + 1

    def _ensure(self, size: int) -> None:
        if len(self._scratch) < size:
            self._scratch = np.empty(size, np.uint8)

    def _corrupt(self, what: str, row: np.void) -> CorruptLogError:
        return CorruptLogError(what, path=self.path, position=int(row["position"]), hint="restore this segment")

    def decode(self, block: Block, wanted: NDArray[np.bool_] | None = None) -> Iterator[Decoded]:
        """The batches of a run from ``as_v2``, in order, as many at a time as fit the scratch buffer.

        :param wanted: bool[r], the batches whose records are needed; all by default
        :raises CorruptLogError: a payload cannot be decompressed
        """
        rows = block.rows
        if rows["magic"][0] < V2_MAGIC:
            yield Decoded(0, rows, self._message_spans[: len(rows)], self._scratch)
            return
        spans = np.zeros((len(rows), 3), np.int64)
        spans[:, 0] = rows["position"] - block.position + HEADER_SIZE
        spans[:, 1] = spans[:, 0] + rows["size"] - HEADER_SIZE
        packed = (rows["attributes"] & CODEC_BITS) != 0
        if wanted is not None:
            spans[packed & ~wanted] = 0
            packed &= wanted
        if not packed.any():
            yield Decoded(0, rows, spans, self._scratch)
            return
        yield from self._decompress(block, spans, np.flatnonzero(packed).tolist())

    def _decompress(self, block: Block, spans: NDArray[np.int64], packed: list[int]) -> Iterator[Decoded]:
        self._ensure(SCRATCH_BYTES)
        raw, scratch, first, used = memoryview(block.raw), memoryview(self._scratch), 0, 0
        codecs = block.rows["attributes"][packed] & CODEC_BITS
        for row, codec, (start, end, _) in zip(packed, codecs.tolist(), spans[packed].tolist(), strict=True):
            while True:
                try:
                    written = decompress_into(Codec.of(codec), raw[start:end], scratch[used:])
                    break
                except BufferTooSmall as error:
                    if used:
                        yield Decoded(first, block.rows[first:row], spans[first:row], self._scratch)
                        first, used = row, 0
                    else:
                        self._grow(error.needed_bytes, block, row)
                        scratch = memoryview(self._scratch)
                except CodecError as error:
                    raise self._corrupt(str(error), block.rows[row]) from error
            spans[row] = used, used + written, 1
            used += written
        yield Decoded(first, block.rows[first:], spans[first:], self._scratch)

    def _grow(self, needed_bytes: int | None, block: Block, row: int) -> None:
        size = max(needed_bytes or 0, 2 * len(self._scratch))
        if len(self._scratch) >= MAX_PLAIN_BYTES or (needed_bytes or 0) > MAX_PLAIN_BYTES:
            raise self._corrupt(f"batch decompresses to more than {MAX_PLAIN_BYTES} bytes", block.rows[row])
        self._scratch = np.empty(min(size, MAX_PLAIN_BYTES), np.uint8)
