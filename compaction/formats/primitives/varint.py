"""Variable-length integers: zig-zag in records, unsigned in metadata records.

Mirrors ``ByteUtils`` (Kafka 4.4.0): at most 5 bytes for 32 bits and 10 for 64; excess high bits of the last byte are dropped,
as by Java's shifts. Every decoder returns ``(value, next position)``, and raises ``FormatError`` if the buffer ends inside a
number or the number is longer.
"""

from __future__ import annotations

from compaction.formats.primitives.fields import Buffer
from compaction.formats.primitives.malformed import FormatError

_MAX_BYTES = {32: 5, 64: 10}


def encode_unsigned(value: int, bits: int = 32) -> bytes:
    """``value`` (0 ≤ value < 2**bits), seven bits a byte, lowest first."""
    if not 0 <= value < 1 << bits:
        raise FormatError(f"{value} does not fit {bits} unsigned bits")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_unsigned(buf: Buffer, pos: int, bits: int = 32) -> tuple[int, int]:
    """An unsigned varint at ``pos``."""
    value = shift = 0
    start = pos
    try:
        while True:
            byte = buf[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & ((1 << bits) - 1), pos
            shift += 7
            if pos - start == _MAX_BYTES[bits]:
                raise FormatError(f"varint does not end within {_MAX_BYTES[bits]} bytes", start)
    except IndexError:
        raise FormatError("buffer ends inside a varint", start) from None


def _signed(raw: int) -> int:
    return (raw >> 1) ^ -(raw & 1)


def _zigzag(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise FormatError(f"{value} does not fit {bits} signed bits")
    return (value << 1) ^ (value >> bits - 1)


def encode_varint(value: int) -> bytes:
    """A signed 32-bit integer, zig-zag."""
    return encode_unsigned(_zigzag(value, 32), 32)


def encode_varlong(value: int) -> bytes:
    """A signed 64-bit integer, zig-zag."""
    return encode_unsigned(_zigzag(value, 64), 64)


def decode_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """A zig-zag 32-bit integer at ``pos``."""
    raw, pos = decode_unsigned(buf, pos, 32)
    return _signed(raw), pos


def decode_varlong(buf: Buffer, pos: int) -> tuple[int, int]:
    """A zig-zag 64-bit integer at ``pos``."""
    raw, pos = decode_unsigned(buf, pos, 64)
    return _signed(raw), pos
