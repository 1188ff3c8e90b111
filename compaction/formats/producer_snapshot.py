"""Producer state snapshots (``<offset>.snapshot``): a version, a CRC-32C over everything after it, and the entries.

Mirrors ``ProducerStateManager.readSnapshot`` / ``writeSnapshot`` and ``ProducerSnapshot.json``, whose only
version is 1. ``current_txn_first_offset`` is -1 without an open transaction; ``last_offset`` is negative if no batch is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from compaction.formats.primitives import Buffer, FieldTable, FormatError, Int16, Int32, Int64, UInt32, crc32c

VERSION = 1


class SnapshotHeader(NamedTuple):
    """The fields before the entries."""

    version: Int16  # 1
    crc: UInt32  # CRC-32C of everything after this field
    entry_count: Int32  # number of entries


class SnapshotEntry(NamedTuple):
    """One producer, field names and order as in the file."""

    producer_id: Int64  # the producer's id
    epoch: Int16  # its current epoch
    last_sequence: Int32  # last sequence number written
    last_offset: Int64  # last offset written
    offset_delta: Int32  # last less first sequence of the last batch
    timestamp: Int64  # max timestamp of the last batch, ms
    coordinator_epoch: Int32  # epoch of the last coordinator to end a transaction
    current_txn_first_offset: Int64  # first offset of the open transaction, -1 without one


HEADER = FieldTable(SnapshotHeader)
ENTRY = FieldTable(SnapshotEntry)


def read_snapshot(data: Buffer) -> list[SnapshotEntry]:
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


def write_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """The file's bytes, with entries in the given order."""
    packed = [ENTRY.pack(entry) for entry in entries]
    out = bytearray(HEADER.pack(SnapshotHeader(VERSION, 0, len(packed))))
    for entry in packed:
        out += entry
    HEADER.put(out, "crc", crc32c(memoryview(out)[HEADER.offset("entry_count") :]))
    return bytes(out)
