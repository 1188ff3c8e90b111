"""Segment files of a backup set: a header, the records, compressed as one stream, and a footer.

All fields are little-endian. Header: ``KBAK``, version 1, compression (0 none, 1 zstd, 2 lz4), two unused bytes, record count
(uint64), first and last offset (int64). Footer: CRC-32 of all bytes before it (uint32), ``BKAE``. zstd is one frame, or
several; lz4 is one block after its plain size (uint32).

Mirrors ``segment/format.rs``, ``segment/reader.rs`` and ``compression.rs`` of kafka-backup-core 0.25.2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from hashlib import sha256
from typing import NamedTuple

import cramjam
import zstandard

from compaction.formats.primitives import Buffer, CodecError, FormatError

MAGIC, END_MAGIC = b"KBAK", b"BKAE"
VERSION = 1
_HEADER = struct.Struct("<4sBB2xQqq")
_FOOTER = struct.Struct("<I4s")
HEADER_BYTES, FOOTER_BYTES = _HEADER.size, _FOOTER.size
_ZSTD_LEVEL = 3
_PLAIN_SIZE = struct.Struct("<I")
#: bounds memory: an lz4 segment is decompressed as a whole; kafka-backup's default size is 128 MiB
MAX_LZ4_BYTES = 1 << 30
#: lz4 cannot compress further
_LZ4_RATIO = 255


class Compression(IntEnum):
    """The compression of a segment."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2

    @property
    def extension(self) -> str:
        """The suffix after ``.bin`` in names of segments."""
        return {Compression.NONE: "", Compression.ZSTD: ".zst", Compression.LZ4: ".lz4"}[self]


class SegmentHeader(NamedTuple):
    """The header's fields; offsets are those of the first and last record, -1 without records."""

    compression: Compression
    record_count: int
    start_offset: int
    end_offset: int


class SegmentStream:
    """A segment being read, sequentially and once.

    :param blocks: the bytes of the file, in blocks of any size, each valid until the next
    :param size: of the file
    :raises FormatError: the header is malformed
    """

    def __init__(self, blocks: Iterable[Buffer], size: int) -> None:
        if size < HEADER_BYTES + FOOTER_BYTES:
            raise FormatError(f"segment of {size} bytes, at least {HEADER_BYTES + FOOTER_BYTES} expected", 0)
        self._blocks = iter(blocks)
        self._remaining = size - FOOTER_BYTES
        self._buffer = memoryview(b"")
        self._crc, self._sha256 = 0, sha256()
        self.header = _parse_header(self.read(HEADER_BYTES))

    def read(self, size: int = -1) -> bytes:
        """The next ``size`` bytes, at most those before the footer; all of them if ``size`` is negative."""
        parts: list[bytes] = []
        remaining = self._remaining if size < 0 else min(size, self._remaining)
        while remaining:
            part = self._take(remaining)
            self._remaining -= len(part)
            remaining -= len(part)
            parts.append(part)
            self._crc = zlib.crc32(part, self._crc)
        return b"".join(parts)

    def _take(self, max_bytes: int) -> bytes:
        while not len(self._buffer):
            block = next(self._blocks, None)
            if block is None:
                raise FormatError("segment is shorter than its listed size")
            self._buffer = memoryview(block)
        part = bytes(self._buffer[:max_bytes])
        self._buffer = self._buffer[max_bytes:]
        self._sha256.update(part)
        return part

    def plain(self, step_bytes: int) -> Iterator[memoryview]:
        """The records' bytes, up to ``step_bytes`` at a time.

        :raises FormatError: they cannot be decompressed, or the checksum is wrong
        """
        if self.header.compression is Compression.NONE:
            while data := self.read(step_bytes):
                yield memoryview(data)
        elif self.header.compression is Compression.ZSTD:
            yield from self._unzstd(step_bytes)
        else:
            plain = _decompress_lz4(self.read())
            for start in range(0, len(plain), step_bytes):
                yield plain[start : start + step_bytes]

    def _unzstd(self, step_bytes: int) -> Iterator[memoryview]:
        with zstandard.ZstdDecompressor().stream_reader(self, read_across_frames=True, closefd=False) as reader:  # type: ignore[arg-type]
            while True:
                try:
                    data = reader.read(step_bytes)
                except zstandard.ZstdError as error:
                    raise CodecError(f"zstd stream cannot be decompressed: {error}") from None
                if not data:
                    return
                yield memoryview(data)

    def check_end(self) -> str:
        """Read the rest and check the footer; returns the SHA-256 of the file, in hex.

        :raises FormatError: the checksum is wrong, or there is no footer
        """
        while self.read(1 << 20):
            pass
        footer = b""
        while len(footer) < FOOTER_BYTES:
            footer += self._take(FOOTER_BYTES - len(footer))
        stored, magic = _FOOTER.unpack(footer)
        if magic != END_MAGIC:
            raise FormatError(f"segment ends with {magic!r}, {END_MAGIC!r} expected: it is incomplete, or no segment")
        if stored != self._crc:
            raise FormatError(f"segment fails its CRC (stored {stored:#x}, computed {self._crc:#x})")
        return self._sha256.hexdigest()


def _parse_header(data: bytes) -> SegmentHeader:
    if len(data) < HEADER_BYTES:
        raise FormatError("segment header is incomplete", 0)
    magic, version, compression, count, start, end = _HEADER.unpack(data)
    if magic != MAGIC:
        raise FormatError(f"segment begins with {magic!r}, {MAGIC!r} expected", 0)
    if version != VERSION:
        raise FormatError(f"unknown segment version {version}, {VERSION} expected", 4)
    if compression not in set(Compression):
        raise FormatError(f"unknown segment compression {compression}", 5)
    return SegmentHeader(Compression(compression), count, start, end)


def _decompress_lz4(data: bytes) -> memoryview:
    if len(data) < _PLAIN_SIZE.size:
        raise CodecError(f"lz4 block of {len(data)} bytes has no size")
    (size,) = _PLAIN_SIZE.unpack_from(data)
    if size > MAX_LZ4_BYTES or size > _LZ4_RATIO * len(data):
        raise CodecError(f"lz4 block of {len(data)} bytes declares {size} plain bytes; at most {MAX_LZ4_BYTES} are supported")
    try:
        plain = memoryview(cramjam.lz4.decompress_block(memoryview(data)[_PLAIN_SIZE.size :], output_len=size))
    except cramjam.DecompressionError as error:
        raise CodecError(f"lz4 block cannot be decompressed: {error}") from None
    if len(plain) != size:
        raise CodecError(f"lz4 block has {len(plain)} plain bytes, {size} expected")
    return plain


def encode_segment(plain: Buffer, header: SegmentHeader) -> bytes:
    """A segment file with the records' bytes ``plain``, compressed at kafka-backup's default level."""
    if header.compression is Compression.ZSTD:
        stored = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(plain)
    elif header.compression is Compression.LZ4:
        stored = _PLAIN_SIZE.pack(len(plain)) + bytes(cramjam.lz4.compress_block(plain, store_size=False))
    else:
        stored = bytes(plain)
    head = _HEADER.pack(MAGIC, VERSION, header.compression, *header[1:])
    return b"".join((head, stored, _FOOTER.pack(zlib.crc32(stored, zlib.crc32(head)), END_MAGIC)))
