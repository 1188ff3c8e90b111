"""Snappy as Kafka reads and writes it: raw snappy blocks in the framing of the xerial library.

The framing is a 16-byte header (magic, version 1, compatible version 1), then blocks of a big-endian length and raw snappy.
Mirrors ``SnappyInputStream`` and ``SnappyOutputStream`` (snappy-java 1.1.10.7, which Kafka 4.3.0 uses): a payload that does not
start with the header is one raw block; the versions in the first header are not checked; the header may be repeated before a
block, with version 1 or newer; up to three bytes after the last block are ignored. A repeated header with a broken magic is an
error here; in Kafka the outcome depends on the sizes of its reads.
"""

from __future__ import annotations

import struct

import cramjam

from compaction.formats.primitives import Buffer, BufferTooSmall, CodecError

_MAGIC = b"\x82SNAPPY\x00"
_VERSION = 1
_HEADER = _MAGIC + struct.pack(">ii", _VERSION, _VERSION)
_LENGTH = struct.Struct(">i")
_BLOCK_BYTES = 32 * 1024
_MAX_BLOCK_BYTES = 512 << 20


def decompress_into(data: Buffer, out: memoryview) -> int:
    """Decompress into ``out`` and return the number of bytes written; ``CodecError`` or ``BufferTooSmall`` on failure."""
    view = memoryview(data)
    if not len(view):
        raise CodecError("snappy payload is empty", 0)
    if len(view) < len(_HEADER) or view[: len(_MAGIC)] != _MAGIC:
        return _inflate(view, out)
    pos, written = len(_HEADER), 0
    while len(view) - pos >= _LENGTH.size:
        if view[pos : pos + _LENGTH.size] == _MAGIC[: _LENGTH.size]:
            pos = _skip_repeated_header(view, pos)
            continue
        (size,) = _LENGTH.unpack_from(view, pos)
        pos += _LENGTH.size
        if not 0 <= size <= len(view) - pos:
            raise CodecError(f"snappy block of {size} bytes, {len(view) - pos} left", pos)
        if size > _MAX_BLOCK_BYTES:
            raise CodecError(f"snappy block of {size} bytes, at most {_MAX_BLOCK_BYTES} are read", pos)
        written += _inflate(view[pos : pos + size], out[written:])
        pos += size
    return written


def compress(data: Buffer) -> bytes:
    """One framed stream with blocks of 32 KiB of input."""
    out = bytearray(_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _BLOCK_BYTES):
        block = memoryview(cramjam.snappy.compress_raw(view[start : start + _BLOCK_BYTES]))
        out += _LENGTH.pack(len(block))
        out += block
    return bytes(out)


def _skip_repeated_header(view: memoryview, pos: int) -> int:
    header = view[pos : pos + len(_HEADER)]
    if len(header) < len(_HEADER) or header[: len(_MAGIC)] != _MAGIC:
        raise CodecError("snappy framing is broken", pos)
    (version,) = _LENGTH.unpack_from(header, len(_MAGIC))
    if version < _VERSION:
        raise CodecError(f"snappy framing of version {version} is not supported", pos)
    return pos + len(_HEADER)


def _inflate(block: memoryview, out: memoryview) -> int:
    needed = cramjam.snappy.decompress_raw_len(block)
    if needed > len(out):
        raise BufferTooSmall
    return int(cramjam.snappy.decompress_raw_into(block, out))
