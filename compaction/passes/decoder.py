"""Prepares the records of a block's batches for the kernels: decompresses them into a reused buffer, a bounded number of bytes
at a time, and converts messages of magic 0 and 1 to v2 records. Uncompressed v2 records are read in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.config.entries import MAX_RECORD
from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.files.segment_file import Block
from compaction.formats.codecs import BufferTooSmall, Codec, CodecError, decompress_into
from compaction.formats.message_set import parse_message_entry, wrap
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import CODEC, HEADER_SIZE, LOG_APPEND_TIME, MAGIC, MAX_PLAIN_BYTES
from compaction.kernels.batches import first_bad_crc, last_record_offsets, scan_batches
from compaction.kernels.messages import (
    GROWTH,
    MESSAGE_GROWTH,
    WrapperFields,
    filter_messages,
    measure_messages,
    plain_messages,
    wrapped_records,
)
from compaction.kernels.records import RECORD_ERRORS, first_larger
from compaction.kernels.tables import DISCARD, DROP, MAX_OFFSET, OTHER_MAGIC_BIT, RETAIN_EMPTY

#: size of the buffer for decompressed records, unless one batch needs more
SCRATCH_BYTES = 4 << 20
#: bounds memory: a task holds up to 48 bytes per record of a batch
MAX_RECORDS = 4 << 20
_MIN_RECORD_BYTES = 7
#: the hint if pass 2 reads other bytes than pass 1
CHANGED = "the file was changed, or the disk returned other bytes: make sure that nothing else writes here, and run again"


class Decoded(NamedTuple):
    """Batches ``[first_row, first_row + len(rows))`` of ``block`` with their uncompressed records.

    ``spans`` int64[r, 3]: start, end, and 1 for ``scratch``, 0 for the block's ``raw``; 0, 0 for batches that are not selected.
    ``wrappers``: of each row, if the rows are wrappers of magic 0 and 1.
    """

    block: Block
    first_row: int
    rows: NDArray[np.void]
    spans: NDArray[np.int64]
    scratch: NDArray[np.uint8]
    wrappers: Sequence[Wrapped] = ()


def corrupt_batch(message: str, row: np.void, path: str) -> CorruptLogError:
    """The error of the batch ``row`` (``BATCH_ROW``) of a segment file."""
    return CorruptLogError(message, path=path, position=int(row["position"]), hint="restore this segment")


def corrupt_record(error: int, row: np.void, path: str) -> CorruptLogError:
    """The same for a key of ``RECORD_ERRORS``."""
    return corrupt_batch(RECORD_ERRORS[error], row, path)


def check_count(decoded: Decoded, index: int) -> None:
    """Check a batch's record count before memory is allocated for its records.

    :raises CorruptLogError: the batch is too small for its record count
    :raises UnsupportedLogError: it has more than ``MAX_RECORDS`` records
    """
    row, path, (start, end) = decoded.rows[index], decoded.block.path, decoded.spans[index, :2].tolist()
    count = int(row["count"])
    if count * _MIN_RECORD_BYTES > end - start:
        raise corrupt_batch(f"batch declares {count} records in {end - start} bytes", row, path)
    if count > MAX_RECORDS:
        message = f"batch of {count} records, more than {MAX_RECORDS} are not supported"
        raise UnsupportedLogError(message, path=path, position=int(row["position"]))


def check_offsets(block: Block, floor: int, end_offset: int = MAX_OFFSET) -> int:
    """The offset after the last batch of ``block``, whose offsets must be in ``[floor, end_offset)``.

    :raises CorruptLogError: offsets decrease, or reach ``end_offset``
    :raises UnsupportedLogError: offsets reach ``MAX_OFFSET``
    """
    rows, path, lasts = block.rows, block.path, last_record_offsets(block.rows)
    highest = int(np.argmax(lasts))
    if lasts[highest] >= MAX_OFFSET:
        message = f"offsets from {MAX_OFFSET} on are not supported"
        raise UnsupportedLogError(message, path=path, position=int(rows["position"][highest]))
    floors = np.concatenate([[floor], lasts[:-1] + 1])
    backwards = np.flatnonzero(rows["base_offset"] < floors)
    if len(backwards):
        batch = rows[int(backwards[0])]
        message = f"batch begins at offset {batch['base_offset']}, expected {floors[backwards[0]]} or more"
        raise corrupt_batch(message, batch, path)
    if lasts[highest] >= end_offset:
        message = f"batch ends at offset {lasts[highest]}, expected one below {end_offset}"
        raise corrupt_batch(message, rows[highest], path)
    return int(lasts[-1]) + 1


def check_crcs(block: Block, actions: NDArray[np.uint8]) -> None:
    """Verify the CRC of each v2 batch that is copied or rewritten: the bytes may differ from those that pass 1 read, and a
    rewritten batch gets a new CRC.

    :raises CorruptLogError: a batch fails its CRC
    """
    rows = block.rows
    if rows["magic"][0] < MAGIC:
        return
    bad = first_bad_crc(block.raw, block.position, rows, actions != DROP)
    if bad < len(rows):
        raise CorruptLogError("batch fails its CRC", path=block.path, position=int(rows["position"][bad]), hint=CHANGED)


def check_message_crcs(block: Block) -> None:
    """The same of all batches of a block that has messages of magic 0 and 1."""
    if (block.rows["magic"] < MAGIC).any():
        result = scan_batches(block.raw, block.position, check_crc=True)
        if result.error is not None:
            position = block.position + result.consumed
            raise CorruptLogError(result.error, path=block.path, position=position, hint=CHANGED)


def read_by_kafka(rows: NDArray[np.void], verdicts: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """bool[r], the compressed batches whose records Kafka's cleaner reads: all except those that it drops entirely (aborted
    data, expired markers)."""
    dropped_unread = (verdicts & (DISCARD | RETAIN_EMPTY)) == DISCARD
    read: NDArray[np.bool_] = ((rows["attributes"] & CODEC) != 0) & (rows["count"] > 0) & ~dropped_unread
    return read


def check_record_sizes(decoded: Decoded, verdicts: NDArray[np.uint8], limit: int) -> None:
    """Check the records of compressed batches: with a larger one, Kafka does not clean the log.

    The size of a v2 record is without its length, that of a message in a wrapper without its offset and size. Mirrors
    ``DefaultRecord.readFrom`` and ``AbstractLegacyRecordBatch.DataLogInputStream.nextBatch`` as ``Cleaner`` calls them.

    :param verdicts: of all batches of the block
    :raises UnsupportedLogError: a record is larger than ``limit``, which is ``max.decompressed.message.bytes``
    """
    rows = decoded.rows
    if decoded.wrappers:
        sizes = [wrapper.largest_bytes for wrapper in decoded.wrappers]
        row = next((row for row, size in enumerate(sizes) if size > limit), len(rows))
        size = sizes[row] if row < len(rows) else 0
    else:
        selected = read_by_kafka(rows, verdicts[decoded.first_row : decoded.first_row + len(rows)])
        row, size = first_larger(decoded.scratch, rows, decoded.spans, selected, limit)
    if row < len(rows):
        message = f"compressed batch has a record of {size} bytes, {MAX_RECORD} is {limit}"
        hint = f"set {MAX_RECORD} to {size} or more; Kafka does not clean this log either"
        raise UnsupportedLogError(message, path=decoded.block.path, position=int(rows["position"][row]), hint=hint)


class Decoder:
    def __init__(self) -> None:
        self._scratch = np.empty(0, np.uint8)
        self._message_spans = np.empty((0, 3), np.int64)
        self._wrappers: list[Wrapped] = []

    def as_v2(self, block: Block) -> Iterator[Block]:
        """The block in runs of batches that are either all of magic 2 or all of magic 0 and 1. The rows of the latter are
        changed to describe v2 batches, except for ``magic``, so that their offsets, counts and timestamps are correct.

        Pass each run to ``decode``; it is valid until the next one.
        """
        v0_v1 = block.rows["magic"] < MAGIC
        if not v0_v1.any():
            yield block
            return
        edges = [0, *(np.flatnonzero(v0_v1[1:] != v0_v1[:-1]) + 1).tolist(), len(v0_v1)]
        for first, end in pairwise(edges):
            run = block._replace(rows=block.rows[first:end])
            if v0_v1[first]:
                yield from self._transcode(run)
            else:
                yield run

    def _transcode(self, block: Block) -> Iterator[Block]:
        rows = block.rows
        rows["attributes"] &= np.where(rows["magic"] == 0, CODEC, CODEC | LOG_APPEND_TIME).astype(np.int16)
        packed = (rows["attributes"] & CODEC) != 0
        first = 0
        while first < len(rows):
            self._ensure(max(SCRATCH_BYTES, int(rows["size"][first]) + GROWTH))
            changes = np.flatnonzero(packed[first:] != packed[first])
            run_end = first + int(changes[0]) if len(changes) else len(rows)
            end = self._wrapped(block, first, run_end) if packed[first] else self._plain(block, first, run_end)
            yield block._replace(rows=rows[first:end])
            first = end

    def _plain(self, block: Block, first: int, end: int) -> int:
        rows, self._wrappers = block.rows[first:end], []
        self._message_spans = np.zeros((len(rows), 3), np.int64)
        next_row, ok = plain_messages(block.raw, block.position, rows, 0, self._scratch, self._message_spans)
        if not ok:
            raise corrupt_batch("message's lengths contradict its size", rows[next_row], block.path)
        return first + int(next_row)

    def _wrapped(self, block: Block, first: int, end: int) -> int:
        self._message_spans, self._wrappers, used = np.zeros((end - first, 3), np.int64), [], 0
        for row in block.rows[first:end]:
            start = int(row["position"]) - block.position
            try:
                wrapped = unwrap(block.raw, start, MAX_PLAIN_BYTES)
                needed = len(wrapped.payload) + GROWTH * wrapped.messages
                if used and used + needed > len(self._scratch):
                    break
                self._ensure(needed)
                used = self._put_records(block, row, wrapped, used)
            except FormatError as error:
                raise corrupt_batch(str(error), row, block.path) from error
        return first + len(self._wrappers)

    def _put_records(self, block: Block, row: np.void, wrapped: Wrapped, used: int) -> int:
        """Write the records of a wrapper into the scratch buffer, after the first ``used`` bytes; the position after them."""
        written, base_offset, last_offset, base_timestamp = wrapped_records(
            wrapped.payload, wrapped.messages, wrapped.shift, wrapped.fields, self._scratch, used
        )
        if written < 0:
            raise refusal(block.raw, int(row["position"]) - block.position, MAX_PLAIN_BYTES)
        row["base_offset"], row["last_offset"] = base_offset, last_offset
        row["base_timestamp"], row["count"] = base_timestamp, wrapped.messages
        if wrapped.other_magic:
            row["attributes"] |= OTHER_MAGIC_BIT
        self._message_spans[len(self._wrappers)] = used, written, 1
        self._wrappers.append(wrapped)
        return int(written)

    def _ensure(self, size: int) -> None:
        if len(self._scratch) < size:
            self._scratch = np.empty(size, np.uint8)

    def decode(self, block: Block, selected: NDArray[np.bool_] | None = None) -> Iterator[Decoded]:
        """The batches of a run from ``as_v2``, in order, as many at a time as fit the scratch buffer.

        :param selected: bool[r], the batches whose records are needed; all by default
        :raises CorruptLogError: a payload cannot be decompressed
        """
        rows = block.rows
        if rows["magic"][0] < MAGIC:
            yield Decoded(block, 0, rows, self._message_spans[: len(rows)], self._scratch, self._wrappers)
            return
        spans = np.zeros((len(rows), 3), np.int64)
        spans[:, 0] = rows["position"] - block.position + HEADER_SIZE
        spans[:, 1] = spans[:, 0] + rows["size"] - HEADER_SIZE
        packed = (rows["attributes"] & CODEC) != 0
        if selected is not None:
            spans[packed & ~selected] = 0
            packed &= selected
        if not packed.any():
            yield Decoded(block, 0, rows, spans, self._scratch)
            return
        yield from self._decompress(block, spans, np.flatnonzero(packed).tolist())

    def _decompress(self, block: Block, spans: NDArray[np.int64], packed: list[int]) -> Iterator[Decoded]:
        self._ensure(SCRATCH_BYTES)
        raw, scratch, first, used = memoryview(block.raw), memoryview(self._scratch), 0, 0
        codecs = block.rows["attributes"][packed] & CODEC
        for row, codec, (start, end, _) in zip(packed, codecs.tolist(), spans[packed].tolist(), strict=True):
            while True:
                try:
                    written = decompress_into(Codec.of(codec), raw[start:end], scratch[used:])
                    break
                except BufferTooSmall:
                    if used:
                        yield Decoded(block, first, block.rows[first:row], spans[first:row], self._scratch)
                        first, used = row, 0
                    else:
                        self._grow(block, row)
                        scratch = memoryview(self._scratch)
                except CodecError as error:
                    raise corrupt_batch(str(error), block.rows[row], block.path) from error
            spans[row] = used, used + written, 1
            used += written
        yield Decoded(block, first, block.rows[first:], spans[first:], self._scratch)

    def _grow(self, block: Block, row: int) -> None:
        if len(self._scratch) >= MAX_PLAIN_BYTES:
            raise corrupt_batch(f"batch decompresses to more than {MAX_PLAIN_BYTES} bytes", block.rows[row], block.path)
        self._scratch = np.empty(min(2 * len(self._scratch), MAX_PLAIN_BYTES), np.uint8)


class Wrapped(NamedTuple):
    """A decompressed wrapper, with the results of ``measure_messages``."""

    payload: NDArray[np.uint8]
    fields: WrapperFields
    codec: Codec
    messages: int
    shift: int
    largest_bytes: int
    other_magic: bool

    def filtered(self, retained: NDArray[np.int64]) -> bytes:
        """The wrapper with the messages that have the offsets ``retained``: at least one, ascending."""
        out = np.empty(len(self.payload) + MESSAGE_GROWTH * self.messages, np.uint8)
        size, largest = filter_messages(self.payload, self.messages, self.shift, self.fields, retained, out)
        magic, append_time = self.fields.magic, self.fields.append_time
        return wrap(magic, self.codec, int(retained[-1]), int(largest), memoryview(out)[:size], append_time=append_time)


def unwrap(block: NDArray[np.uint8], start: int, limit_bytes: int) -> Wrapped:
    """The wrapper at ``block[start:]``, decompressed to at most ``limit_bytes``; a ``FormatError`` if it is malformed."""
    entry = parse_message_entry(memoryview(block), start)
    payload = np.frombuffer(entry.payload(limit_bytes), np.uint8)
    fields = WrapperFields(entry.magic, entry.last_offset, entry.timestamp, entry.is_log_append_time)
    count, shift, largest, other_magic = measure_messages(payload, fields)
    if not count:
        raise refusal(block, start, limit_bytes)
    return Wrapped(payload, fields, entry.codec, count, shift, largest, other_magic)


def refusal(block: NDArray[np.uint8], start: int, limit_bytes: int) -> FormatError:
    """The error of a wrapper that a kernel has rejected."""
    try:
        parse_message_entry(memoryview(block), start).require_convertible(limit_bytes)
    except FormatError as error:
        return error
    return FormatError("malformed wrapper", start)
