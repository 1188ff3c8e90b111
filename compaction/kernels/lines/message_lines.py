"""Formats v0 and v1 messages, plain or inside a wrapper, as Kafka's dump tool prints them.

Mirrors ``DumpLogSegments.dumpBatchRecords``, ``LegacyRecord`` and ``AbstractLegacyRecordBatch.DeepRecordsIterator`` (Kafka
4.3.0).

Tested by ``tests/dump/test_segment_dump.py`` and ``tests/conformance/test_dump_log.py``.
"""

from __future__ import annotations

import numpy as np

from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.lines import text
from compaction.kernels.lines.line_state import (
    APPEND_TIME_BIT,
    BAD_CODEC,
    BAD_RECORD,
    BATCH_ATTRIBUTES,
    BATCH_MAGIC,
    BATCH_TIMESTAMP,
    BY_CALLER,
    CODEC_BITS,
    CONTENTS,
    DONE,
    FIRST_OFFSET,
    FULL,
    KEY_AT,
    KEY_BYTES,
    KNOWN_CODECS,
    LAST_OFFSET,
    MAGIC_AT,
    NESTED,
    NOTHING,
    PRINT,
    RECORD,
    RECORD_OFFSET,
    SKIP_METADATA,
    STEP,
    TEXT,
    VALUE_AT,
    VALUE_BYTES,
    WRITTEN,
)
from compaction.kernels.lines.record_lines import checksum, follow, has_room, put_contents, put_metadata, time_label
from compaction.kernels.lines.text import put_bool, put_label, put_number
from compaction.kernels.reading.batches import LOG_OVERHEAD
from compaction.kernels.reading.bytes import be32, be64

_SMALLEST = 14
#: position of the key in a message, after four bytes of size
_KEY_V0, _KEY_V1 = 22, 30


@inner
def _read_message(data, at, end, state):
    """Read key and value of the message at ``data[at:end]`` into ``state``; whether their size fields are inside it."""
    key_at = at + (_KEY_V1 if data[at + MAGIC_AT] else _KEY_V0)
    if key_at > end:
        return False
    state[KEY_AT], state[KEY_BYTES] = key_at, be32(data, key_at - 4)
    value_at = key_at + max(state[KEY_BYTES], 0) + 4
    if value_at > end:
        return False
    state[VALUE_AT], state[VALUE_BYTES] = value_at, be32(data, value_at - 4)
    return True


@inner
def _put_message(out, w, data, at, end, timestamp, state, options):
    """The v0 or v1 message at ``data[at:end]``, whose fields are in ``state``: ``(position after it, status)``."""
    if not options[SKIP_METADATA]:
        label = time_label(state[BATCH_MAGIC], state[BATCH_ATTRIBUTES])
        w = put_metadata(out, w, state, timestamp, label)
        stored, valid = checksum(data, at, end - at, 0)
        w = put_bool(out, put_label(out, w, text.RECORD_IS_VALID), valid)
        w = put_number(out, w, text.CRC, stored)
    if options[PRINT] != NOTHING and state[VALUE_AT] + max(state[VALUE_BYTES], 0) > end:
        return w, BAD_RECORD
    if options[PRINT] == BY_CALLER:
        return w, CONTENTS
    if options[PRINT] == TEXT:
        w = put_contents(out, w, data, state, options)
    return put_label(out, w, text.LINE_END), DONE


@inner
def _message_room(state, options, end):
    if options[PRINT] != TEXT:
        return 0
    return max(state[KEY_BYTES], 0) + max(min(state[VALUE_BYTES], end - state[VALUE_AT]), 0)


@inner
def dump_message(data, at, end, timestamp, state, options, out, gaps):
    """The message with the offset ``state[RECORD_OFFSET]``; a status."""
    w = state[WRITTEN]
    if not options[FIRST_OFFSET] <= state[RECORD_OFFSET] <= options[LAST_OFFSET]:
        state[STEP] += 1
        return DONE
    if options[SKIP_METADATA] and options[PRINT] == NOTHING:
        state[KEY_BYTES] = state[VALUE_BYTES] = -1
    elif not _read_message(data, at, end, state):
        return BAD_RECORD
    if not has_room(out, w, gaps, state, _message_room(state, options, end)):
        return FULL
    state[STEP] += 1
    follow(state, gaps)
    state[WRITTEN], status = _put_message(out, w, data, at, end, timestamp, state, options)
    return status


@kernel
def inner_messages(data):
    """``(number of messages, offset and end of the last)`` of a decompressed wrapper; the number is -1 for an impossible size.

    Ignores an incomplete message at the end.
    """
    at, count, last = np.int64(0), np.int64(0), np.int64(0)
    while len(data) - at >= LOG_OVERHEAD:
        size = np.int64(be32(data, at + 8))
        if size < _SMALLEST:
            return np.int64(-1), last, at
        if size > len(data) - at - LOG_OVERHEAD:
            break
        last = be64(data, at)
        at += LOG_OVERHEAD + size
        count += 1
    return count, last, at


@kernel
def dump_messages(data, end, base_offset, state, options, out, gaps):
    """Print the messages of a decompressed wrapper, ``data[state[RECORD]:end]``, as ``dump_records`` does.

    :param base_offset: added to the offsets of the messages
    """
    append_time = state[BATCH_MAGIC] == 1 and state[BATCH_ATTRIBUTES] & APPEND_TIME_BIT
    while state[RECORD] < end:
        at = state[RECORD]
        stop = at + LOG_OVERHEAD + np.int64(be32(data, at + 8))
        state[RECORD_OFFSET] = base_offset + be64(data, at)
        magic = data[at + MAGIC_AT]
        if data[at + 17] & CODEC_BITS:
            return NESTED if data[at + 17] & CODEC_BITS <= KNOWN_CODECS else BAD_CODEC
        timestamp = np.int64(-1)
        if magic == 1 and append_time:
            timestamp = state[BATCH_TIMESTAMP]
        elif magic and at + _KEY_V1 <= stop:
            timestamp = be64(data, at + 18)
        status = dump_message(data, at, stop, timestamp, state, options, out, gaps)
        if status != FULL:
            state[RECORD] = stop
        if status != DONE:
            return status
    return DONE
