"""Decompresses the wrappers of magic 0 and 1, and writes those that lose messages and keep their magic."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.formats.compression.codecs import Codec
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.record_batch.message_set import parse_message_entry
from compaction.formats.record_batch.transcode import transcode
from compaction.formats.record_batch.wrapper import wrap
from compaction.kernels.rewriting.wrapped_messages import MESSAGE_GROWTH, WrapperFields, filter_messages, measure_messages


class Wrapped(NamedTuple):
    """A decompressed wrapper, with the number of its messages, and what else ``measure_messages`` returns."""

    payload: NDArray[np.uint8]
    fields: WrapperFields
    codec: Codec
    messages: int
    shift: int
    largest_bytes: int
    other_magic: bool

    def filtered(self, retained: NDArray[np.int64]) -> bytes:
        """The wrapper with the messages that have the offsets ``retained``, of which there is at least one, ascending."""
        out = np.empty(len(self.payload) + MESSAGE_GROWTH * self.messages, np.uint8)
        size, largest = filter_messages(self.payload, self.messages, self.shift, self.fields, retained, out)
        magic, append_time = self.fields.magic, self.fields.append_time
        return wrap(magic, self.codec, int(retained[-1]), int(largest), memoryview(out)[:size], append_time=append_time)


def unwrap(block: NDArray[np.uint8], start: int, limit_bytes: int) -> Wrapped:
    """The wrapper at ``block[start:]``, decompressed to at most ``limit_bytes``.

    :raises FormatError: it is malformed
    """
    entry = parse_message_entry(memoryview(block), start)
    payload = np.frombuffer(entry.payload(limit_bytes), np.uint8)
    fields = WrapperFields(entry.magic, entry.last_offset, entry.timestamp, entry.is_log_append_time)
    count, shift, largest, other_magic = measure_messages(payload, fields)
    if not count:
        raise refusal(block, start, limit_bytes)
    return Wrapped(payload, fields, entry.codec, count, shift, largest, other_magic)


def refusal(block: NDArray[np.uint8], start: int, limit_bytes: int) -> FormatError:
    """What is wrong with a wrapper that a kernel has refused."""
    try:
        transcode(memoryview(block), start, limit_bytes=limit_bytes)
    except FormatError as error:
        return error
    return FormatError("malformed wrapper", start)
