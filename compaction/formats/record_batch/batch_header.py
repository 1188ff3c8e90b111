"""The 61-byte header of a v2 record batch and its attribute bits.

Mirrors ``DefaultRecordBatch``, ``RecordBatch`` and ``ControlRecordType`` (Kafka 4.3.0).

Tested by ``tests/formats/record_batch/test_batch.py``.
"""

from __future__ import annotations

from typing import NamedTuple

from compaction.formats.primitives.fields import FieldTable, Int8, Int16, Int32, Int64, UInt32

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

    base_offset: Int64  # first offset of the batch as it was produced; cleaning keeps it
    length: Int32  # bytes after this field
    leader_epoch: Int32  # epoch of the leader that appended it; not covered by the CRC
    magic: Int8  # 2
    crc: UInt32  # CRC-32C of everything after this field
    attributes: Int16  # codec and flags
    last_offset_delta: Int32  # last offset less base offset; also the last sequence's delta
    base_timestamp: Int64  # base of the timestamp deltas; the delete horizon if its flag is set
    max_timestamp: Int64  # largest timestamp, or the append time
    producer_id: Int64  # -1 without an idempotent producer
    producer_epoch: Int16  # -1 without an idempotent producer
    base_sequence: Int32  # sequence number of the base offset, -1 for none
    record_count: Int32  # records in the batch; 0 if cleaning removed all


HEADER = FieldTable(BatchHeader)
#: position in a batch from which the CRC covers it
CRC_START = HEADER.offset("attributes")
