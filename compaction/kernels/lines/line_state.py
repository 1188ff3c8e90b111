"""What the dumping kernels share: statuses, the layout of their state and options, places in a batch's header."""

from __future__ import annotations

#: why a kernel stopped: no whole batch follows; ``state[NEED]`` bytes at ``state[POSITION]`` are
#: needed; ``out`` or ``gaps`` is full; the records of this batch have to be decompressed; the text of a control record or of a
#: record's contents is due, then a line end; the rest says what is wrong
(
    END, MORE, FULL, DECODE, CONTROL_TEXT, CONTENTS,
    BAD_SIZE, SHORT_HEADER, BAD_CODEC, BAD_COUNT, BAD_RECORD, RECORDS_REMAIN, BAD_MAGIC, BAD_CONTROL, NESTED, DONE,
) = range(16)  # fmt: skip
DUMP_ERRORS = {
    BAD_SIZE: "batch has a size below the smallest possible",
    SHORT_HEADER: "file ends within a batch header",
    BAD_CODEC: "batch names an unknown compression codec",
    BAD_COUNT: "batch has a negative record count",
    BAD_RECORD: "record is not well-formed",
    RECORDS_REMAIN: "batch holds more bytes than its declared number of records",
    BAD_MAGIC: "batch has an unknown magic",
    BAD_CONTROL: "control record has no readable key",
    NESTED: "compressed message inside a compressed message",
}

# the batch at ``POSITION``: how many of its records are done (-1: its own line is not), where the next one lies in the array of
# its records, and what its header says; ``FOLLOWS`` is 1 where ``PREVIOUS`` is the offset of the record before
(
    POSITION, STEP, RECORD, NEED, WRITTEN, GAPS, FOLLOWS, PREVIOUS, INVALID, FIRST_INVALID,
    BATCH_SIZE, BATCH_MAGIC, BATCH_OFFSET, BATCH_LAST, BATCH_ATTRIBUTES, BATCH_TIMESTAMP, BATCH_MAX_TIMESTAMP, BATCH_SEQUENCE,
    BATCH_COUNT, KEY_AT, KEY_BYTES, VALUE_AT, VALUE_BYTES, RECORD_OFFSET, STATE_SIZE,
) = range(25)  # fmt: skip

#: columns of ``options``, int64[OPTIONS_SIZE]: iterate over records; print no contents, text, or leave them to the caller;
#: leave out metadata; the first and the last offset wanted
DEEP, PRINT, SKIP_METADATA, FIRST_OFFSET, LAST_OFFSET, OPTIONS_SIZE = range(6)
NOTHING, TEXT, BY_CALLER = range(3)

#: places in a batch's header, bits of its attributes
MAGIC_AT = 16
CRC_AT = 17
ATTRIBUTES_AT = 21
CODEC_BITS = 7
KNOWN_CODECS = 4
APPEND_TIME_BIT = 8
V2 = 2
#: room for all of a line but texts of any length
LINE_ROOM = 1024
