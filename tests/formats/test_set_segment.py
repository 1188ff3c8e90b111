"""Segment files of kafka-backup: what the plain writer wrote is read, in blocks of any size, and the other way round."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import pytest

from compaction.formats.backup import Compression, SegmentHeader, SegmentStream, encode_segment
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import Header, Record
from tests.oracle.backup_segments import LZ4, NONE, ZSTD, decode_segment, encode_record
from tests.oracle.backup_segments import encode_segment as plain_segment

RECORDS = [Record(offset, 1_700_000_000_000, b"key%d" % offset, b"v" * offset, (Header("h", None),)) for offset in range(7, 90)]
PLAIN = b"".join(map(encode_record, RECORDS))


def blocks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def read(data: bytes, block_bytes: int = 1000, step_bytes: int = 100) -> bytes:
    stream = SegmentStream(blocks(data, block_bytes), len(data))
    plain = b"".join(stream.plain(step_bytes))
    stream.check_end()
    return plain


@pytest.mark.parametrize("compression", [NONE, ZSTD, LZ4])
@pytest.mark.parametrize("block_bytes", [1, 7, 1000, 10**6])
def test_a_segment_is_read_in_blocks_of_any_size(compression: int, block_bytes: int) -> None:
    data = plain_segment(RECORDS, compression)
    stream = SegmentStream(blocks(data, block_bytes), len(data))
    assert stream.header == (compression, len(RECORDS), 7, 89)
    parts = [bytes(part) for part in stream.plain(64)]
    assert b"".join(parts) == PLAIN and all(0 < len(part) <= 64 for part in parts)
    assert len(stream.check_end()) == 64


@pytest.mark.parametrize("compression", list(Compression))
def test_what_is_written_is_what_the_plain_reader_reads(compression: Compression) -> None:
    data = encode_segment(PLAIN, SegmentHeader(compression, len(RECORDS), 7, 89))
    assert decode_segment(data) == ((len(RECORDS), 7, 89), RECORDS)
    assert read(data) == PLAIN


@pytest.mark.parametrize("compression", [NONE, ZSTD, LZ4])
def test_any_changed_byte_is_an_error(compression: int) -> None:
    data = plain_segment(RECORDS, compression)
    for at in {*range(6), *range(8, 60), *range(60, len(data), 41), *range(len(data) - 9, len(data))}:
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(FormatError):
            read(bytes(changed))


@pytest.mark.parametrize("compression", [NONE, ZSTD, LZ4])
def test_a_segment_that_ends_early_is_an_error(compression: int) -> None:
    data = plain_segment(RECORDS, compression)
    for end in (0, 8, 39, 40, 50, len(data) - 8, len(data) - 1):
        with pytest.raises(FormatError):
            read(data[:end])
        with pytest.raises(FormatError, match="shorter than its listed size"):
            stream = SegmentStream(blocks(data[: max(end, 32)], 100), len(data))
            list(stream.plain(100))
            stream.check_end()


def signed(body: bytes, compression: int) -> bytes:
    data = b"KBAK" + struct.pack("<BBHQqq", 1, compression, 0, 1, 0, 0) + body
    return data + struct.pack("<I", zlib.crc32(data)) + b"BKAE"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (signed(b"abc", LZ4), "has no size"),
        (signed(struct.pack("<I", 2**32 - 1) + b"abc", LZ4), "declares 4294967295 plain bytes"),
        (signed(struct.pack("<I", 100) + b"abc", LZ4), "cannot be decompressed"),
        (signed(b"no zstd", ZSTD), "cannot be decompressed"),
        (signed(b"", 3), "unknown segment compression 3"),
        (signed(b"", NONE).replace(b"KBAK\x01", b"KBAK\x02"), "unknown segment version 2"),
        (b"[{" + b" " * 50, "begins with"),
    ],
)
def test_an_error_says_what_is_wrong(data: bytes, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        read(data)


def test_a_wrong_checksum_is_named() -> None:
    data = bytearray(plain_segment(RECORDS, NONE))
    data[70] ^= 1
    with pytest.raises(FormatError, match=r"fails its CRC \(stored 0x"):
        read(bytes(data))
