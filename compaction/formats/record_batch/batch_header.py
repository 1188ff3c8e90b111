"""The fixed part of a record batch of magic 2: its 61 bytes, attribute bits and the values that stand for *none*.

Mirrors ``DefaultRecordBatch``, ``RecordBatch`` and ``ControlRecordType`` (Kafka 4.3.0).
"""

from __future__ import annotations

from typing import NamedTuple

from compaction.formats.primitives.fields import FieldTable

MAGIC = 2
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_LEADER_EPOCH = -1
#: bytes of offset and length, which the length field does not count
LOG_OVERHEAD_BYTES = 12

# attribute bits; 7 to 15 are unused
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

# types of control records
ABORT = 0
COMMIT = 1
LEADER_CHANGE = 2
SNAPSHOT_HEADER = 3
SNAPSHOT_FOOTER = 4
KRAFT_VERSION = 5
KRAFT_VOTERS = 6


class BatchHeader(NamedTuple):
    """The 61 bytes before the records."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


HEADER = FieldTable(
    BatchHeader,
    [
        ("base_offset", "i8", "first offset of the batch as it was produced; cleaning keeps it"),
        ("length", "i4", "bytes after this field"),
        ("leader_epoch", "i4", "epoch of the leader that appended it; not covered by the CRC"),
        ("magic", "i1", "2"),
        ("crc", "u4", "CRC-32C of everything after this field"),
        ("attributes", "i2", "codec and flags"),
        ("last_offset_delta", "i4", "last offset less base offset; also the last sequence's delta"),
        ("base_timestamp", "i8", "what timestamp deltas add to; a delete horizon when its flag is set"),
        ("max_timestamp", "i8", "largest timestamp, or the append time"),
        ("producer_id", "i8", "-1 without an idempotent producer"),
        ("producer_epoch", "i2", "-1 without an idempotent producer"),
        ("base_sequence", "i4", "sequence number of the base offset, -1 for none"),
        ("record_count", "i4", "records left in the batch; 0 for an emptied one"),
    ],
)
#: the CRC covers the batch from here
CRC_START = HEADER.offset("attributes")
