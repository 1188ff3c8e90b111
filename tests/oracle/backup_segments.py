"""Segments of kafka-backup written record by record, as its documented format has them, independent of the package under
test."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import cramjam
import zstandard

from compaction.formats.record_batch import Header, Record

NONE, ZSTD, LZ4 = range(3)


def sized(data: bytes | None, form: str = "<i") -> bytes:
    return struct.pack(form, -1 if data is None else len(data)) + (data or b"")


def encode_record(record: Record) -> bytes:
    """A record with its length."""
    body = struct.pack("<qq", record.timestamp, record.offset) + sized(record.key) + sized(record.value)
    body += struct.pack("<H", len(record.headers))
    for name, value in record.headers:
        body += sized(name.encode(), "<H") + sized(value)
    return struct.pack("<I", len(body)) + body


def decode_records(data: bytes) -> list[Record]:
    """All records of a segment's plain bytes."""
    found, at = [], 0

    def take(form: str) -> int:
        nonlocal at
        (number,) = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return int(number)

    def cell(form: str = "<i") -> bytes | None:
        nonlocal at
        size = take(form)
        at += max(size, 0)
        return None if size < 0 else data[at - size : at]

    while at < len(data):
        end = at + 4 + take("<I")
        time, offset, key, value = take("<q"), take("<q"), cell(), cell()
        headers = tuple(Header((cell("<H") or b"").decode(), cell()) for _ in range(take("<H")))
        assert at == end
        found.append(Record(offset, time, key, value, headers))
    return found


def encode_segment(records: Sequence[Record], compression: int = ZSTD) -> bytes:
    """A segment file."""
    plain = b"".join(map(encode_record, records))
    if compression == ZSTD:
        stored = zstandard.ZstdCompressor(write_content_size=False).compress(plain)
    else:
        stored = bytes(cramjam.lz4.compress_block(plain)) if compression == LZ4 else plain
    first, last = (records[0].offset, records[-1].offset) if records else (-1, -1)
    data = b"KBAK" + struct.pack("<BBHQqq", 1, compression, 0, len(records), first, last) + stored
    return data + struct.pack("<I", zlib.crc32(data)) + b"BKAE"


def decode_segment(data: bytes) -> tuple[tuple[int, int, int], list[Record]]:
    """Count, first and last offset as the header has them, and the records; checks what its own reader checks."""
    assert data[:4] == b"KBAK" and data[-4:] == b"BKAE"
    assert struct.unpack("<I", data[-8:-4])[0] == zlib.crc32(data[:-8])
    version, compression, _, count, first, last = struct.unpack("<BBHQqq", data[4:32])
    assert version == 1
    stored = data[32:-8]
    if compression == ZSTD:
        stored = zstandard.ZstdDecompressor().decompressobj().decompress(stored)
    elif compression == LZ4:
        stored = bytes(cramjam.lz4.decompress_block(stored))
    records = decode_records(stored)
    assert len(records) == count
    return (count, first, last), records
