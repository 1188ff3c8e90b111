"""Shared by all formats: errors, field tables, checksums, variable-length integers.

A *field table* is one per on-disk format, shared by its reader and writer; field offsets are computed. All fields are
big-endian and of fixed size. A table is declared by a ``NamedTuple`` class, whose fields have one of the types
below, in file order.

Variable-length integers are zig-zag in records, unsigned in metadata records. They mirror ``ByteUtils``: at most
5 bytes for 32 bits and 10 for 64; excess high bits of the last byte are dropped, as by Java's shifts. Every decoder returns
``(value, next position)``, and raises ``FormatError`` if the buffer ends inside a number or the number is longer.
"""

from __future__ import annotations

import struct
from typing import Annotated, Generic, TypeVar, get_type_hints

import google_crc32c
import numpy as np
import numpy.typing as npt

#: characters of a text that an error shows
_SHOWN = 80
Buffer = bytes | bytearray | memoryview
Row = TypeVar("Row", bound=tuple[object, ...])
Int8 = Annotated[int, "i1"]
Int16 = Annotated[int, "i2"]
Int32 = Annotated[int, "i4"]
Int64 = Annotated[int, "i8"]
UInt32 = Annotated[int, "u4"]
#: field code (numpy's) -> struct code
_STRUCT_CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u4": "I"}
_MAX_BYTES = {32: 5, 64: 10}


class FormatError(ValueError):
    """The bytes violate the format.

    :param message: the violation, e.g. ``"unknown magic 9"``
    :param position: byte position in the given buffer, if known; callers add path and base position
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message if position is None else f"{message} (at byte {position} of the buffer)")
        self.message = message
        self.position = position

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.position))


def shown(text: str) -> str:
    """A text as an error shows it: quoted, and shortened if it is long."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


class CodecError(FormatError):
    """A compressed payload cannot be decompressed, has an unknown codec, or exceeds the caller's limit."""


class BufferTooSmall(Exception):
    """The caller's buffer cannot hold the result."""


class FieldTable(Generic[Row]):
    """A fixed-size big-endian record.

    :param row: the ``NamedTuple`` class of one record

    ``size`` is the record's size in bytes, ``dtype`` a packed big-endian numpy dtype of the same layout.
    """

    def __init__(self, row: type[Row]) -> None:
        self.row = row
        codes = {name: hint.__metadata__[0] for name, hint in get_type_hints(row, include_extras=True).items()}
        self._struct = struct.Struct(">" + "".join(_STRUCT_CODES[code] for code in codes.values()))
        self.dtype: np.dtype[np.void] = np.dtype([(name, ">" + code) for name, code in codes.items()])
        self.size: int = self._struct.size
        offsets = {name: int(field[1]) for name, field in (self.dtype.fields or {}).items()}
        self._by_name = {name: (offsets[name], struct.Struct(">" + _STRUCT_CODES[code])) for name, code in codes.items()}

    def offset(self, name: str) -> int:
        return self._by_name[name][0]

    def unpack(self, buf: Buffer, pos: int = 0) -> Row:
        """The record at byte ``pos``; ``FormatError`` if the buffer ends inside it."""
        try:
            return self.row(*self._struct.unpack_from(buf, pos))
        except struct.error:
            remaining = max(len(buf) - pos, 0)
            raise FormatError(f"{self.size} bytes of {self.row.__name__} expected, {remaining} left", pos) from None

    def pack(self, row: Row) -> bytes:
        """The bytes of a record; ``FormatError`` if a value does not fit its field."""
        try:
            return self._struct.pack(*row)
        except struct.error as error:
            raise FormatError(f"{self.row.__name__} cannot be written: {error}") from None

    def get(self, buf: Buffer, name: str, pos: int = 0) -> int:
        """One field of the record at ``pos``; ``FormatError`` if the buffer ends before it."""
        offset, code = self._by_name[name]
        try:
            return int(code.unpack_from(buf, pos + offset)[0])
        except struct.error:
            raise FormatError(f"{self.row.__name__}.{name} is past the end of the buffer", pos + offset) from None

    def put(self, buf: bytearray | memoryview, name: str, value: int, pos: int = 0) -> None:
        offset, code = self._by_name[name]
        try:
            code.pack_into(buf, pos + offset, value)
        except struct.error as error:
            raise FormatError(f"{self.row.__name__}.{name} cannot be written: {error}", pos + offset) from None

    def array(self, buf: Buffer) -> npt.NDArray[np.void]:
        """The complete records of ``buf`` as a big-endian view, shape (n,), without a copy."""
        return np.frombuffer(buf, dtype=self.dtype, count=len(buf) // self.size)


def crc32c(data: Buffer) -> int:
    """CRC-32C (Castagnoli), unsigned: v2 batches and producer snapshots."""
    # the package accepts arrays but not memoryviews
    return int(google_crc32c.value(np.frombuffer(data, dtype=np.uint8) if len(data) else b""))


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


def encode_varint(value: int, bits: int = 32) -> bytes:
    """A signed integer, zig-zag."""
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise FormatError(f"{value} does not fit {bits} signed bits")
    return encode_unsigned((value << 1) ^ (value >> bits - 1), bits)


def decode_varint(buf: Buffer, pos: int, bits: int = 32) -> tuple[int, int]:
    """A zig-zag integer at ``pos``."""
    raw, pos = decode_unsigned(buf, pos, bits)
    return (raw >> 1) ^ -(raw & 1), pos
