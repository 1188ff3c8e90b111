"""Brings the records of a block's batches into reach of the kernels: plain ones where they lie, compressed ones decompressed into a
reused buffer, a bounded number of bytes at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CorruptLogError
from compaction.formats.codecs import BufferTooSmall, Codec, CodecError, decompress_into
from compaction.kernels.batches import HEADER_SIZE
from compaction.storage.blocks import Block

CODEC_BITS = 7
#: decompressed bytes held at a time, unless a single batch needs more
SCRATCH_BYTES = 4 << 20
#: a batch that decompresses to more than this is refused: no broker accepts its like, and memory must stay bounded
MAX_PLAIN_BYTES = 256 << 20


class Decoded(NamedTuple):
    """Batches ``[first_row, first_row + len(rows))`` of a block with their records in reach.

    ``spans`` int64[r, 3]: start, end, and 1 where they lie in ``scratch`` (0: in the block's ``raw``); 0, 0 where not wanted.
    """

    first_row: int
    rows: NDArray[np.void]
    spans: NDArray[np.int64]
    scratch: NDArray[np.uint8]


class Decoder:
    """Decodes the blocks of one segment file (``path`` is for messages)."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._scratch = np.empty(0, np.uint8)

    def decode(self, block: Block, wanted: NDArray[np.bool_] | None = None) -> Iterator[Decoded]:
        """The block's batches in order, in as few parts as the scratch buffer allows.

        :param wanted: bool[r], which batches' records are needed; all when not given
        :raises CorruptLogError: a payload cannot be decompressed
        """
        rows = block.rows
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
        if not len(self._scratch):
            self._scratch = np.empty(SCRATCH_BYTES, np.uint8)
        first, used = 0, 0
        for row in packed:
            start, end = int(spans[row, 0]), int(spans[row, 1])
            while True:
                try:
                    written = self._one(block, row, start, end, used)
                    break
                except BufferTooSmall as error:
                    if used:
                        yield Decoded(first, block.rows[first:row], spans[first:row], self._scratch)
                        first, used = row, 0
                    else:
                        self._grow(error.needed_bytes, block, row)
            spans[row] = used, used + written, 1
            used += written
        yield Decoded(first, block.rows[first:], spans[first:], self._scratch)

    def _one(self, block: Block, row: int, start: int, end: int, used: int) -> int:
        header = block.rows[row]
        try:
            codec = Codec.of(int(header["attributes"]))
            return decompress_into(codec, memoryview(block.raw)[start:end], memoryview(self._scratch)[used:])
        except CodecError as error:
            position = int(header["position"])
            raise CorruptLogError(str(error), path=self._path, position=position, hint="restore this segment") from error

    def _grow(self, needed_bytes: int | None, block: Block, row: int) -> None:
        size = max(needed_bytes or 0, 2 * len(self._scratch))
        if len(self._scratch) >= MAX_PLAIN_BYTES or (needed_bytes or 0) > MAX_PLAIN_BYTES:
            raise CorruptLogError(
                f"batch decompresses to more than {MAX_PLAIN_BYTES} bytes",
                path=self._path,
                position=int(block.rows[row]["position"]),
                hint="restore this segment",
            )
        self._scratch = np.empty(min(size, MAX_PLAIN_BYTES), np.uint8)
