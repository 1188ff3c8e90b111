"""The 61-byte header of a v2 record batch and its attribute bits.

Mirrors ``DefaultRecordBatch``, ``RecordBatch`` and ``ControlRecordType`` (Kafka 4.3.0).

Tested by ``tests/formats/record_batch/test_batch.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from compaction.formats.primitives.fields import FieldTable

MAGIC = 2
#: bytes of the offset and length fields, not included in the length
LOG_OVERHEAD_BYTES = 12

# attribute bits; 0 to 2 are the codec, 7 to 15 are unused
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

# types of control records that end a transaction
ABORT = 0
COMMIT = 1


class BatchHeader(NamedTuple):
    """The fields before the records, in file order."""

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
        ("base_timestamp", "i8", "base of the timestamp deltas; the delete horizon if its flag is set"),
        ("max_timestamp", "i8", "largest timestamp, or the append time"),
        ("producer_id", "i8", "-1 without an idempotent producer"),
        ("producer_epoch", "i2", "-1 without an idempotent producer"),
        ("base_sequence", "i4", "sequence number of the base offset, -1 for none"),
        ("record_count", "i4", "records in the batch; 0 if cleaning removed all"),
    ],
)
#: position in a batch from which the CRC covers it
CRC_START = HEADER.offset("attributes")
