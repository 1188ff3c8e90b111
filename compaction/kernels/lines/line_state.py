"""Statuses of the dump kernels, the layout of their state and options, and positions in a batch header.

Tested by ``tests/dump/test_segment_dump.py`` and ``tests/conformance/test_dump_log.py``.
"""

from __future__ import annotations

#: why a kernel returned. END: no complete batch follows. MORE: it needs ``state[NEED]`` bytes from ``state[POSITION]``. FULL:
#: ``out`` or ``gaps`` is full. DECODE: the caller must decompress the records. CONTROL_TEXT, CONTENTS: the caller must print
#: the control record, or key and value, and a line end. DONE: the function finished. The others are errors.
(
    END, MORE, FULL, DECODE, CONTROL_TEXT, CONTENTS,
    BAD_SIZE, SHORT_HEADER, BAD_CODEC, BAD_COUNT, BAD_RECORD, RECORDS_REMAIN, BAD_MAGIC, BAD_CONTROL, NESTED, DONE,
) = range(16)  # fmt: skip
DUMP_ERRORS = {
    BAD_SIZE: "batch has a size below the minimum",
    SHORT_HEADER: "file ends within a batch header",
    BAD_CODEC: "batch names an unknown compression codec",
    BAD_COUNT: "batch has a negative record count",
    BAD_RECORD: "record is not well-formed",
    RECORDS_REMAIN: "batch holds more bytes than its declared number of records",
    BAD_MAGIC: "batch has an unknown magic",
    BAD_CONTROL: "control record has a malformed key or value",
    NESTED: "compressed message inside a compressed message",
}

# the batch at ``POSITION``: ``STEP`` is the number of records printed (-1: not even the batch's own line), ``RECORD`` the
# position of the next one in the array of records. ``FOLLOWS`` is 1 if ``PREVIOUS`` is the offset of the previous record.
(
    POSITION, STEP, RECORD, NEED, WRITTEN, GAPS, FOLLOWS, PREVIOUS, INVALID, FIRST_INVALID,
    BATCH_SIZE, BATCH_MAGIC, BATCH_OFFSET, BATCH_LAST, BATCH_ATTRIBUTES, BATCH_TIMESTAMP, BATCH_MAX_TIMESTAMP, BATCH_SEQUENCE,
    BATCH_COUNT, KEY_AT, KEY_BYTES, VALUE_AT, VALUE_BYTES, RECORD_OFFSET, STATE_SIZE,
) = range(25)  # fmt: skip

#: columns of ``options``, int64[OPTIONS_SIZE]: iterate over records; print no contents, text, or let the caller print them;
#: omit metadata; the first and last offset to print, inclusive
DEEP, PRINT, SKIP_METADATA, FIRST_OFFSET, LAST_OFFSET, OPTIONS_SIZE = range(6)
NOTHING, TEXT, BY_CALLER = range(3)

#: positions in a batch header, bits of its attributes
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
CODEC_BITS = 7
KNOWN_CODECS = 4
APPEND_TIME_BIT = 8
V2 = 2
#: space for a line without keys, values and header keys
LINE_ROOM = 1024
