"""Prints the batches and records of one segment, block by block; the kernels format the lines.

Mirrors ``DumpLogSegments.dumpLog`` (Kafka 4.3.0). Python code runs once per block and compressed batch, and per record only
with a decoder. Where Kafka's tool fails with an exception, the same text is printed, then an error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compaction.dump.batch_reader import MAX_PLAIN_BYTES, check_size
from compaction.dump.record_decoders import Decoder, control_text
from compaction.errors import CorruptLogError
from compaction.formats.compression.codecs import Codec, decompress
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.record_batch.message_set import parse_message_entry
from compaction.fs.filesystem import FileSystem
from compaction.kernels.lines import line_state as at
from compaction.kernels.lines.batch_lines import dump_batches, finish_batch
from compaction.kernels.lines.message_lines import dump_messages, inner_messages
from compaction.kernels.lines.record_lines import check_records, dump_records
from compaction.kernels.reading.batches import HEADER_SIZE

BLOCK_BYTES = 4 << 20
_TEXT_BYTES = 4 << 20
_GAPS = 1 << 14
_LONG_MAX = 2**63 - 1

Pairs = NDArray[np.int64]


@dataclass(frozen=True)
class SegmentView:
    """What to print of a segment.

    ``decoder`` formats keys and values; with ``None``, the kernels decode UTF-8. ``start`` is the byte position of the first
    batch, ``max_bytes`` the end position. ``first_offset`` and ``last_offset`` (inclusive) select the batches and records of a
    range.
    """

    deep: bool = False
    contents: bool = False
    skip_metadata: bool = False
    decoder: Decoder | None = None
    max_bytes: int | None = None
    start: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    @property
    def complete(self) -> bool:
        """Whether the complete file is selected."""
        return self.max_bytes is None and self.first_offset is None and self.last_offset is None

    def options(self) -> NDArray[np.int64]:
        """The options of the kernels."""
        options = np.zeros(at.OPTIONS_SIZE, np.int64)
        options[at.DEEP], options[at.SKIP_METADATA] = self.deep, self.skip_metadata
        if self.contents:
            options[at.PRINT] = at.TEXT if self.decoder is None else at.BY_CALLER
        options[at.FIRST_OFFSET] = -_LONG_MAX - 1 if self.first_offset is None else self.first_offset
        options[at.LAST_OFFSET] = _LONG_MAX if self.last_offset is None else self.last_offset
        return options


class SegmentDump:
    """Iterates over the text of one segment, in buffers that are valid until the next one.

    Afterwards ``position`` is the end of the last batch, ``size`` the file's size, ``invalid`` the number of batches that fail
    their CRC and ``first_invalid`` the position of the first.

    :param gaps: receives pairs of non-consecutive offsets, int64[n, 2]
    :raises CorruptLogError: while iterating, a batch or record cannot be read; the text before it was yielded
    :raises UnsupportedLogError: while iterating, a batch is too large
    """

    def __init__(self, fs: FileSystem, path: str, view: SegmentView, gaps: Callable[[Pairs], None]) -> None:
        self._fs, self._path, self._view, self._note_gaps = fs, path, view, gaps
        found = fs.stat(path)
        self.size = 0 if found is None else found.size
        end = self.size if view.max_bytes is None else min(self.size, view.max_bytes)
        self._limits = np.array([end, self.size], np.int64)
        self._options = view.options()
        self._state = np.zeros(at.STATE_SIZE, np.int64)
        self._state[at.POSITION], self._state[at.STEP] = view.start, -1
        self._state[at.PREVIOUS], self._state[at.FOLLOWS] = -1, view.first_offset is None
        self._out = np.empty(_TEXT_BYTES, np.uint8)
        self._gaps = np.empty((_GAPS, 2), np.int64)
        self._block = _frozen(b"")
        self._block_position = view.start

    @property
    def position(self) -> int:
        """The end of the last batch dumped."""
        return int(self._state[at.POSITION])

    @property
    def invalid(self) -> int:
        """Number of batches that fail their CRC."""
        return int(self._state[at.INVALID])

    @property
    def first_invalid(self) -> int:
        """Position of the first batch that fails its CRC."""
        return int(self._state[at.FIRST_INVALID])

    def __iter__(self) -> Iterator[memoryview]:
        while True:
            status = yield from self._print(self._dump_batches, self._block)
            if status == at.END:
                return
            if status == at.MORE:
                self._load()
            else:
                yield from self._compressed()

    def _dump_batches(self) -> int:
        return int(
            dump_batches(self._block, self._block_position, self._limits, self._state, self._options, self._out, self._gaps)
        )

    def _load(self) -> None:
        """Reads the next block, from the current batch on."""
        need = int(self._state[at.NEED])
        check_size(need, self._path, self.position)
        self._block_position = self.position
        self._block = _frozen(self._fs.read_bytes(self._path, self.position, max(BLOCK_BYTES, need)))
        if len(self._block) < need:
            raise self._error("file was truncated while it was read", "run again when nothing writes to it")

    def _print(self, step: Callable[[], int], data: NDArray[np.uint8]) -> Generator[memoryview, None, int]:
        """Calls a kernel until it needs more than output space; yields the text and returns the status."""
        state = self._state
        while True:
            status = step()
            stuck = status == at.FULL and state[at.WRITTEN] == 0 and state[at.GAPS] == 0
            if state[at.GAPS]:
                self._note_gaps(self._gaps[: state[at.GAPS]])
            yield memoryview(self._out)[: state[at.WRITTEN]]
            state[at.WRITTEN] = state[at.GAPS] = 0
            if status in (at.CONTROL_TEXT, at.CONTENTS):
                yield memoryview(f"{self._text(status, data)}\n".encode())
            elif status in at.DUMP_ERRORS:
                raise self._error(at.DUMP_ERRORS[status])
            elif stuck:
                self._out = np.empty(2 * len(self._out), np.uint8)
            elif status != at.FULL:
                return status

    def _text(self, status: int, data: NDArray[np.uint8]) -> str:
        """The part of a record's line that the kernels do not print."""
        state = self._state
        key, value = (self._field(data, *state[[field, field + 1]].tolist()) for field in (at.KEY_AT, at.VALUE_AT))
        try:
            if status == at.CONTROL_TEXT:
                return control_text(key or b"", value)
            if self._view.decoder is None:
                raise TypeError("contents without a decoder")
            shown = self._view.decoder(key, value, int(state[at.RECORD_OFFSET]))
        except FormatError as error:
            raise self._error(f"record at offset {state[at.RECORD_OFFSET]} cannot be decoded: {error.what}") from None
        parts = [f"{name}: {text}" for name, text in zip(("key", "payload"), shown, strict=True) if text is not None]
        prefix = "| " if self._view.skip_metadata else " "
        return prefix + " ".join(parts) if parts else ""

    @staticmethod
    def _field(data: NDArray[np.uint8], start: int, size: int) -> bytes | None:
        return None if size < 0 else data[start : start + size].tobytes()

    def _compressed(self) -> Iterator[memoryview]:
        """Decompresses the current batch and prints its records."""
        state = self._state
        start = self.position - self._block_position
        batch = memoryview(self._block)[start : start + int(state[at.BATCH_SIZE])]
        try:
            if state[at.BATCH_MAGIC] >= 2:
                data, end, base = self._plain(batch[HEADER_SIZE:], 2), 0, 0
                status = check_records(data, len(data), state[at.BATCH_COUNT])
                if status != at.DONE:
                    raise self._error(at.DUMP_ERRORS[status])
            else:
                data, end, base = self._messages(batch)
        except FormatError as error:
            raise self._error(error.what) from None
        yield from self._print(lambda: self._dump_plain(data, end, base), data)
        finish_batch(state)

    def _dump_plain(self, data: NDArray[np.uint8], end: int, base: int) -> int:
        rest = (self._state, self._options, self._out, self._gaps)
        if self._state[at.BATCH_MAGIC] >= 2:
            return int(dump_records(data, len(data), *rest))
        return int(dump_messages(data, end, base, *rest))

    def _plain(self, payload: memoryview, magic: int) -> NDArray[np.uint8]:
        codec = Codec.of(int(self._state[at.BATCH_ATTRIBUTES]))
        return _frozen(decompress(codec, payload, limit_bytes=MAX_PLAIN_BYTES, magic=magic))

    def _messages(self, batch: memoryview) -> tuple[NDArray[np.uint8], int, int]:
        """The messages in a wrapper: their bytes, the end of the last one, and the base of their offsets."""
        wrapper = parse_message_entry(batch)
        if wrapper.codec is Codec.ZSTD:
            raise FormatError(f"a wrapper of magic {wrapper.magic} cannot use zstd")
        payload = wrapper.own_record().value
        if payload is None:
            raise FormatError("compressed wrapper with a null value")
        data = self._plain(memoryview(payload), wrapper.magic)
        count, last, end = inner_messages(data)
        if count < 1:
            raise FormatError("compressed wrapper without messages" if count == 0 else "message of an impossible size")
        if wrapper.magic == 0 or wrapper.last_offset == 0:
            return data, end, 0
        if wrapper.last_offset < last:
            raise FormatError(f"wrapper at offset {wrapper.last_offset} below its last relative offset {last}")
        return data, end, wrapper.last_offset - last

    def _error(self, what: str, hint: str | None = None) -> CorruptLogError:
        return CorruptLogError(what, path=self._path, position=self.position, hint=hint or "restore this segment")


def _frozen(data: bytes | memoryview) -> NDArray[np.uint8]:
    """Bytes as a read-only array, so that kernels are compiled for one type only."""
    array = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return array
