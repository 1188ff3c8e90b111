"""Producer state snapshots (``<offset>.snapshot``): a version, a CRC-32C over everything after it, and the entries.

Mirrors ``ProducerStateManager.readSnapshot`` / ``writeSnapshot`` and ``ProducerSnapshot.json``, whose only
version is 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from compaction.formats.primitives import Buffer, FieldTable, FormatError, Int16, Int32, Int64, UInt32, crc32c

VERSION = 1


class SnapshotHeader(NamedTuple):
    version: Int16  # 1
    crc: UInt32  # CRC-32C of everything after this field
    entry_count: Int32  # number of entries


class ProducerEntry(NamedTuple):
    """The state of one producer (Kafka: ``ProducerStateEntry``), fields in the order of the file; -1 means none."""

    producer_id: Int64
    producer_epoch: Int16
    last_sequence: Int32  # last sequence number written
    last_data_offset: Int64  # last offset of the last data batch in this epoch
    offset_delta: Int32  # last less first sequence of that batch
    last_timestamp_ms: Int64  # max timestamp of the last batch or marker
    coordinator_epoch: Int32  # epoch of the last coordinator to end a transaction
    current_txn_first_offset: Int64  # first offset of the open transaction


HEADER = FieldTable(SnapshotHeader)
ENTRY = FieldTable(ProducerEntry)


def read_snapshot(data: Buffer) -> list[ProducerEntry]:
    """The entries in file order; ``FormatError`` for an unknown version, an impossible count or a wrong CRC.

    As in Kafka, bytes after the last entry are accepted if the CRC covers them.
    """
    header = HEADER.unpack(data)
    if header.version != VERSION:
        raise FormatError(f"unknown snapshot version {header.version}, {VERSION} expected", 0)
    if header.entry_count < 0 or HEADER.size + header.entry_count * ENTRY.size > len(data):
        raise FormatError(f"{header.entry_count} entries declared, {len(data)} bytes found", HEADER.offset("entry_count"))
    computed = crc32c(memoryview(data)[HEADER.offset("entry_count") :])
    if computed != header.crc:
        raise FormatError(f"snapshot fails its CRC (stored {header.crc:#x}, computed {computed:#x})", HEADER.offset("crc"))
    return [ENTRY.unpack(data, HEADER.size + index * ENTRY.size) for index in range(header.entry_count)]


def write_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """The file's bytes, with entries in the given order."""
    packed = [ENTRY.pack(entry) for entry in entries]
    out = bytearray(HEADER.pack(SnapshotHeader(VERSION, 0, len(packed))))
    for entry in packed:
        out += entry
    HEADER.put(out, "crc", crc32c(memoryview(out)[HEADER.offset("entry_count") :]))
    return bytes(out)
