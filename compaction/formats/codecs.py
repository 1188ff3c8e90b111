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

cramjam compresses and decompresses, zlib gzip. To decompress one batch of 16 KiB, cramjam and pyarrow both took 4 µs for lz4, 8
and 16 µs for snappy, 22 and 21 µs for zstd; cramjam writes into the caller's buffer and does not need the size in advance.
python-zstandard compresses zstd because it reuses its context: clearing a context dominates the time for small batches (2,000
bytes: 15 µs, cramjam 37 µs; 16 KiB: 87 µs, cramjam 172 µs).
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from enum import IntEnum

import cramjam
import numpy as np
import zstandard

from compaction.formats import lz4_frame, snappy_xerial
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
        except BufferTooSmall as error:
            if capacity >= limit_bytes:
                raise CodecError(f"{codec.name.lower()} payload of {len(data)} bytes gives more than {limit_bytes}") from None
            capacity = min(limit_bytes, error.needed_bytes or capacity * _GUESS_RATIO)


def decompress_into(codec: Codec, data: Buffer, out: memoryview, *, magic: int = 2) -> int:
    """Decompress into ``out`` (writable, contiguous bytes) and return the number of bytes written.

    Bytes of ``out`` after the result may have been overwritten.

    :raises BufferTooSmall: ``out`` cannot hold the result
    :raises CodecError: the payload cannot be decompressed
    """
    try:
        if codec is Codec.LZ4:
            return lz4_frame.decompress_into(data, out, ignore_header_checksum=magic == 0)
        return _DECOMPRESSORS[codec](data, out)
    except cramjam.DecompressionError as error:
        raise CodecError(f"{codec.name.lower()} payload of {len(data)} bytes cannot be decompressed: {error}") from None


def compress(codec: Codec, data: Buffer, *, magic: int = 2) -> bytes:
    """The payload of a batch as Kafka writes it at the codec's default level.

    :param magic: the batch's; in v0, the header checksum of lz4 frames covers too much (KAFKA-3160)
    """
    if codec is Codec.LZ4 and magic == 0:
        return lz4_frame.compress(data, checksum_from=0)
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
        raise BufferTooSmall(len(data))
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


_COMPRESSORS: dict[Codec, Callable[[Buffer], bytes]] = {
    Codec.NONE: bytes,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: snappy_xerial.compress,
    Codec.LZ4: lz4_frame.compress,
    Codec.ZSTD: _zstd,
}
_DECOMPRESSORS: dict[Codec, Callable[[Buffer, memoryview], int]] = {
    Codec.NONE: _copy_into,
    Codec.GZIP: _gunzip_into,
    Codec.SNAPPY: snappy_xerial.decompress_into,
    Codec.ZSTD: _unzstd_into,
}
