"""The 61-byte header of a v2 record batch and its attribute bits.

Mirrors ``DefaultRecordBatch``, ``RecordBatch`` and ``ControlRecordType`` (Kafka 4.4.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from compaction.formats.compression.codecs import Codec
from compaction.formats.primitives.checksums import crc32, crc32c
from compaction.formats.primitives.fields import FieldTable, Int8, Int16, Int32, Int64, UInt32
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.record_batch.message_header import CRC_START as MESSAGE_CRC_START
from compaction.formats.record_batch.message_header import EntryHeader

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


@dataclass(frozen=True)
class StoredBatch:
    """A batch of any magic in a buffer: ``position`` is its byte position there, ``data`` its bytes with the header."""

    position: int
    data: memoryview
    header: BatchHeader | EntryHeader

    @property
    def size(self) -> int:
        """Size in bytes, offset and size fields included."""
        return len(self.data)

    @property
    def magic(self) -> int:
        """0, 1 or 2."""
        return self.header.magic

    @property
    def codec(self) -> Codec:
        """Compression; ``CodecError`` for an unknown codec."""
        return Codec.of(self.header.attributes)

    @property
    def computed_crc(self) -> int:
        """The checksum over the bytes after the CRC field: CRC-32C in v2, CRC-32 before."""
        return crc32c(self.data[CRC_START:]) if self.magic == MAGIC else crc32(self.data[MESSAGE_CRC_START:])

    def ensure_valid(self) -> None:
        """``FormatError`` when the stored CRC is not the computed one."""
        stored, computed = self.header.crc, self.computed_crc
        if stored != computed:
            what = "batch" if self.magic == MAGIC else "message"
            raise FormatError(f"{what} fails its CRC (stored {stored:#x}, computed {computed:#x})", self.position)
