"""Compression of record batches: writes what Kafka writes at its default levels, and reads everything that Kafka reads.

==========  =============================================================  ==================================================
codec       written                                                        also read
==========  =============================================================  ==================================================
``GZIP``    one member, level 6, header as the JDK (16 and later) has it   several members; trailing bytes are ignored
``SNAPPY``  xerial framing 1/1, blocks of 32 KiB                           several streams; one raw block without framing
``LZ4``     one frame, independent 64-KiB blocks, no checksums             block checksums (verified), a content size, larger
                                                                           blocks; v0: any header checksum
``ZSTD``    one frame, level 3, no checksum, no size, empty last block     checksums, a content size; several frames
==========  =============================================================  ==================================================

Mirrors ``org.apache.kafka.common.compress`` and the libraries that it uses. Anything else raises ``CodecError``.
The caller bounds the output, so that a small payload cannot exhaust memory.

cramjam compresses and decompresses: it writes into the caller's buffer and need not know the size; pyarrow takes as long. zlib
does gzip, and python-zstandard compresses zstd because it reuses its context, whose clearing dominates the time for small
batches (2,000 bytes: 15 µs, cramjam 37 µs; 16 KiB: 87 µs, cramjam 172 µs).

Snappy is raw blocks in the framing of the xerial library: a 16-byte header (magic, version 1, compatible version 1), then
blocks of a big-endian length and raw snappy. Mirrors ``SnappyInputStream`` and ``SnappyOutputStream`` (snappy-java 1.1.10.7,
which Kafka 4.3.0 uses): a payload that does not start with the header is one raw block; the versions in the first header are
not checked; the header may be repeated before a block, with version 1 or newer; up to three bytes after the last block are
ignored. A repeated header with a broken magic is an error here; in Kafka the outcome depends on the sizes of its reads.

An lz4 frame is the magic number (little-endian), FLG, BD, an optional content size, a header checksum byte, blocks (a
little-endian length, whose top bit marks a stored block, and the data), and a zero length. Mirrors ``Lz4BlockInputStream`` and
``Lz4BlockOutputStream``: blocks are independent, bytes after the end mark are ignored, and a content checksum is not verified.
Frame libraries do not fit: cramjam writes block checksums and rejects trailing bytes, pyarrow links blocks of more than 64 KiB,
python-lz4 verifies content checksums.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from enum import IntEnum

import cramjam
import numpy as np
import xxhash
import zstandard

from compaction.formats.primitives import Buffer, BufferTooSmall, CodecError

__all__ = ["BufferTooSmall", "Codec", "CodecError", "compress", "decompress", "decompress_into"]

_GZIP_LEVEL = 6
_ZSTD_LEVEL = 3
#: deflate, no flags, no time, no extra flags, unknown system, as the JDK writes
_GZIP_HEADER = b"\x1f\x8b\x08" + b"\x00" * 6 + b"\xff"
_GZIP_OVERHEAD_BYTES = 18
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_GZIP_STEP_BYTES = 4096
_FIRST_GUESS_BYTES = 64 * 1024
_GUESS_RATIO = 4


class Codec(IntEnum):
    """The codec bits (0 to 2) of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of(cls, attributes: int) -> Codec:
        """The codec of a batch's attributes; ``CodecError`` if it is unknown."""
        try:
            return cls(attributes & 0x07)
        except ValueError:
            raise CodecError(f"unknown compression codec {attributes & 0x07}") from None


def decompress(codec: Codec, data: Buffer, *, limit_bytes: int, magic: int = 2) -> memoryview:
    """The decompressed bytes, at most ``limit_bytes`` of them.

    :param magic: the batch's; in v0, the header checksum of lz4 frames is not verified (KAFKA-3160)
    :raises CodecError: the payload cannot be decompressed, or to more than ``limit_bytes``
    """
    if codec is Codec.NONE:
        return memoryview(data)
    capacity = min(limit_bytes, max(_FIRST_GUESS_BYTES, _GUESS_RATIO * len(data)))
    while True:
        out = np.empty(capacity, np.uint8).data
        try:
            return out[: decompress_into(codec, data, out, magic=magic)]
        except BufferTooSmall:
            if capacity >= limit_bytes:
                raise CodecError(f"{codec.name.lower()} payload of {len(data)} bytes gives more than {limit_bytes}") from None
            capacity = min(limit_bytes, capacity * _GUESS_RATIO)


def decompress_into(codec: Codec, data: Buffer, out: memoryview, *, magic: int = 2) -> int:
    """Decompress into ``out`` (writable, contiguous bytes) and return the number of bytes written.

    Bytes of ``out`` after the result may have been overwritten.

    :raises BufferTooSmall: ``out`` cannot hold the result
    :raises CodecError: the payload cannot be decompressed
    """
    try:
        if codec is Codec.LZ4:
            return _unlz4_into(data, out, ignore_header_checksum=magic == 0)
        return _DECOMPRESSORS[codec](data, out)
    except cramjam.DecompressionError as error:
        raise CodecError(f"{codec.name.lower()} payload of {len(data)} bytes cannot be decompressed: {error}") from None


def compress(codec: Codec, data: Buffer, *, magic: int = 2) -> bytes:
    """The payload of a batch as Kafka writes it at the codec's default level.

    :param magic: the batch's; in v0, the header checksum of lz4 frames covers too much (KAFKA-3160)
    """
    if codec is Codec.LZ4 and magic == 0:
        return _lz4(data, checksum_from=0)
    return _COMPRESSORS[codec](data)


def _gzip(data: Buffer) -> bytes:
    member = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return _GZIP_HEADER + (member.compress(data) + member.flush())[len(_GZIP_HEADER) :]


class _Contexts(threading.local):
    """Compression contexts that a thread reuses."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_content_size=False)


_contexts = _Contexts()


def _zstd(data: Buffer) -> bytes:
    frame = _contexts.zstd.compressobj()
    # Kafka flushes its stream before it closes it, which adds an empty last block
    return frame.compress(data) + frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + frame.flush()


def _copy_into(data: Buffer, out: memoryview) -> int:
    if len(data) > len(out):
        raise BufferTooSmall
    out[: len(data)] = data
    return len(data)


def _gunzip_into(data: Buffer, out: memoryview) -> int:
    view, pos, written = memoryview(data), 0, 0
    while True:
        # zlib copies input that follows a member: pass everything to the first, usually the only one, then small steps
        step = _GZIP_STEP_BYTES if pos else len(view)
        member = zlib.decompressobj(_GZIP_WINDOW)
        while not member.eof:
            if pos == len(view):
                raise CodecError(f"gzip payload of {len(view)} bytes ends early")
            try:
                # one byte more than fits distinguishes a full buffer from one that is too small
                chunk = member.decompress(view[pos : pos + step], len(out) - written + 1)
            except zlib.error as error:
                raise CodecError(f"gzip payload of {len(view)} bytes cannot be decompressed: {error}") from None
            if len(chunk) > len(out) - written:
                raise BufferTooSmall
            out[written : written + len(chunk)] = chunk
            written += len(chunk)
            pos = min(pos + step, len(view)) - len(member.unused_data)
            step *= 2
        # the JDK reads another member only if a header and a trailer fit into the remaining bytes
        if len(view) - pos <= _GZIP_OVERHEAD_BYTES or view[pos : pos + 3] != _GZIP_HEADER[:3]:
            return written


def _unzstd_into(data: Buffer, out: memoryview) -> int:
    try:
        return int(cramjam.zstd.decompress_into(data, out))
    except cramjam.DecompressionError as error:
        if "whole buffer" in str(error):
            raise BufferTooSmall from None
        raise


_SNAPPY_MAGIC = b"\x82SNAPPY\x00"
_SNAPPY_VERSION = 1
_SNAPPY_HEADER = _SNAPPY_MAGIC + struct.pack(">ii", _SNAPPY_VERSION, _SNAPPY_VERSION)
_SNAPPY_LENGTH = struct.Struct(">i")
_SNAPPY_BLOCK_BYTES = 32 * 1024
_MAX_SNAPPY_BLOCK_BYTES = 512 << 20


def _unsnappy_into(data: Buffer, out: memoryview) -> int:
    view = memoryview(data)
    if not len(view):
        raise CodecError("snappy payload is empty", 0)
    if len(view) < len(_SNAPPY_HEADER) or view[: len(_SNAPPY_MAGIC)] != _SNAPPY_MAGIC:
        return _unsnappy_block_into(view, out)
    pos, written = len(_SNAPPY_HEADER), 0
    while len(view) - pos >= _SNAPPY_LENGTH.size:
        if view[pos : pos + _SNAPPY_LENGTH.size] == _SNAPPY_MAGIC[: _SNAPPY_LENGTH.size]:
            pos = _skip_repeated_header(view, pos)
            continue
        (size,) = _SNAPPY_LENGTH.unpack_from(view, pos)
        pos += _SNAPPY_LENGTH.size
        if not 0 <= size <= len(view) - pos:
            raise CodecError(f"snappy block of {size} bytes, {len(view) - pos} left", pos)
        if size > _MAX_SNAPPY_BLOCK_BYTES:
            raise CodecError(f"snappy block of {size} bytes, at most {_MAX_SNAPPY_BLOCK_BYTES} are read", pos)
        written += _unsnappy_block_into(view[pos : pos + size], out[written:])
        pos += size
    return written


def _snappy(data: Buffer) -> bytes:
    """One framed stream with blocks of 32 KiB of input."""
    out = bytearray(_SNAPPY_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _SNAPPY_BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + _SNAPPY_BLOCK_BYTES]))
        out += _SNAPPY_LENGTH.pack(len(block))
        out += block
    return bytes(out)


def _skip_repeated_header(view: memoryview, pos: int) -> int:
    header = view[pos : pos + len(_SNAPPY_HEADER)]
    if len(header) < len(_SNAPPY_HEADER) or header[: len(_SNAPPY_MAGIC)] != _SNAPPY_MAGIC:
        raise CodecError("snappy framing is broken", pos)
    (version,) = _SNAPPY_LENGTH.unpack_from(header, len(_SNAPPY_MAGIC))
    if version < _SNAPPY_VERSION:
        raise CodecError(f"snappy framing of version {version} is not supported", pos)
    return pos + len(_SNAPPY_HEADER)


def _unsnappy_block_into(block: memoryview, out: memoryview) -> int:
    needed = cramjam.snappy.decompress_raw_len(block)
    if needed > len(out):
        raise BufferTooSmall
    return int(cramjam.snappy.decompress_raw_into(block, out))


_LZ4_MAGIC = 0x184D2204
_LZ4_HEADER = struct.Struct("<IBB")
_LZ4_LENGTH = struct.Struct("<I")
_CONTENT_SIZE_BYTES = 8
_STORED = 0x80000000
_BLOCK_64_KIB = 4
_BLOCK_4_MIB = 7
#: version 1, independent blocks
_FLG = 0x60
_FLG_BLOCK_CHECKSUM = 0x10
_FLG_CONTENT_SIZE = 0x08
_FLG_VERSION_MASK = 0xC0
_FLG_INDEPENDENT = 0x20
_FLG_RESERVED = 0x03


def _unlz4_into(data: Buffer, out: memoryview, *, ignore_header_checksum: bool) -> int:
    view = memoryview(data)
    pos, max_block_bytes, block_checksums = _read_lz4_header(view, ignore_header_checksum)
    written = 0
    while True:
        length = _lz4_length(view, pos)
        size = length & ~_STORED
        pos += _LZ4_LENGTH.size
        if size == 0:
            return written
        if size > max_block_bytes:
            raise CodecError(f"lz4 block of {size} bytes, at most {max_block_bytes} expected", pos)
        block = view[pos : pos + size]
        if len(block) < size:
            raise CodecError("lz4 frame ends inside a block", pos)
        pos += size
        if block_checksums:
            if xxhash.xxh32_intdigest(block) != _lz4_length(view, pos):
                raise CodecError("lz4 block fails its checksum", pos)
            pos += _LZ4_LENGTH.size
        if length & _STORED:
            written += _copy_into(block, out[written:])
        else:
            written += _unlz4_block_into(block, out[written:], max_block_bytes)


def _lz4(data: Buffer, *, checksum_from: int = _LZ4_LENGTH.size) -> bytes:
    """One frame of 64-KiB blocks; blocks that do not shrink are stored uncompressed.

    :param checksum_from: the first byte that the header checksum covers; 0 for messages of magic 0 (KAFKA-3160)
    """
    header = _LZ4_HEADER.pack(_LZ4_MAGIC, _FLG, _BLOCK_64_KIB << 4)
    out = bytearray(header)
    out.append(xxhash.xxh32_intdigest(header[checksum_from:]) >> 8 & 0xFF)
    view = memoryview(data)
    block_bytes = _lz4_block_bytes(_BLOCK_64_KIB)
    for start in range(0, len(view), block_bytes):
        block = view[start : start + block_bytes]
        packed = memoryview(cramjam.lz4.compress_block(block, store_size=False))
        if len(packed) < len(block):
            out += _LZ4_LENGTH.pack(len(packed))
            out += packed
        else:
            out += _LZ4_LENGTH.pack(len(block) | _STORED)
            out += block
    out += _LZ4_LENGTH.pack(0)
    return bytes(out)


def _lz4_block_bytes(code: int) -> int:
    return 1 << 2 * code + 8


def _lz4_length(view: memoryview, pos: int) -> int:
    try:
        return int(_LZ4_LENGTH.unpack_from(view, pos)[0])
    except struct.error:
        raise CodecError("lz4 frame ends before its end mark", pos) from None


def _read_lz4_header(view: memoryview, ignore_checksum: bool) -> tuple[int, int, bool]:
    """The position of the first block, the size of the largest, and whether blocks have checksums."""
    if len(view) <= _LZ4_HEADER.size:
        raise CodecError(f"lz4 frame of {len(view)} bytes is too short", 0)
    magic, flg, bd = _LZ4_HEADER.unpack_from(view)
    if magic != _LZ4_MAGIC:
        raise CodecError(f"no lz4 frame (magic number {magic:#x})", 0)
    if flg & (_FLG_RESERVED | _FLG_VERSION_MASK | _FLG_INDEPENDENT) != _FLG:
        raise CodecError(f"lz4 frame flags {flg:#x} are not supported", _LZ4_LENGTH.size)
    if bd & 0x8F or not _BLOCK_64_KIB <= bd >> 4 <= _BLOCK_4_MIB:
        raise CodecError(f"lz4 block descriptor {bd:#x} is not supported", _LZ4_LENGTH.size + 1)
    end = _LZ4_HEADER.size + (_CONTENT_SIZE_BYTES if flg & _FLG_CONTENT_SIZE else 0)
    if len(view) <= end:
        raise CodecError("lz4 frame ends inside its header", len(view))
    if not ignore_checksum and view[end] != xxhash.xxh32_intdigest(view[_LZ4_LENGTH.size : end]) >> 8 & 0xFF:
        raise CodecError("lz4 frame header fails its checksum", end)
    return end + 1, _lz4_block_bytes(bd >> 4), bool(flg & _FLG_BLOCK_CHECKSUM)


def _unlz4_block_into(block: memoryview, out: memoryview, max_block_bytes: int) -> int:
    target = out[:max_block_bytes]
    try:
        return int(cramjam.lz4.decompress_block_into(block, target, len(target)))
    except cramjam.DecompressionError:
        if len(target) == max_block_bytes:
            raise
    # the error is the same for a small buffer and a malformed block; a buffer of the maximum size distinguishes them
    largest = np.empty(max_block_bytes, np.uint8).data
    written = int(cramjam.lz4.decompress_block_into(block, largest, max_block_bytes))
    return _copy_into(largest[:written], out)


_COMPRESSORS: dict[Codec, Callable[[Buffer], bytes]] = {
    Codec.NONE: bytes,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
_DECOMPRESSORS: dict[Codec, Callable[[Buffer, memoryview], int]] = {
    Codec.NONE: _copy_into,
    Codec.GZIP: _gunzip_into,
    Codec.SNAPPY: _unsnappy_into,
    Codec.ZSTD: _unzstd_into,
}
