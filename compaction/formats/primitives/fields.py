"""Field tables: one per on-disk format, shared by its reader and writer; field offsets are computed.

All fields are big-endian and of fixed size. A table is declared by a ``NamedTuple`` class and one ``(name, code, doc)`` line
per field, in file order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from compaction.formats.primitives.malformed import FormatError

Buffer = bytes | bytearray | memoryview

Row = TypeVar("Row", bound=tuple[object, ...])

#: field code (numpy's) -> struct code
_STRUCT_CODES = {"i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q"}


class FieldSpec(NamedTuple):
    """One field: its name, numpy code (``"i8"``, ``"u4"``, …), meaning and byte offset in the record."""

    name: str
    code: str
    doc: str
    offset: int


class FieldTable(Generic[Row]):
    """A fixed-size big-endian record.

    :param row: the ``NamedTuple`` class of one record; it must have the fields of the table, in the same order
    :param fields: ``(name, code, doc)`` in file order

    ``size`` is the record's size in bytes, ``dtype`` a packed big-endian numpy dtype of the same layout.
    """

    def __init__(self, row: type[Row], fields: Sequence[tuple[str, str, str]]) -> None:
        self.row = row
        self._struct = struct.Struct(">" + "".join(_STRUCT_CODES[code] for _, code, _ in fields))
        self.dtype: np.dtype[np.void] = np.dtype([(name, ">" + code) for name, code, _ in fields])
        self.size: int = self._struct.size
        ends = accumulate((self.dtype[name].itemsize for name, _, _ in fields), initial=0)
        self.fields = tuple(FieldSpec(*field, offset) for field, offset in zip(fields, ends, strict=False))
        self._by_name = {spec.name: (spec, struct.Struct(">" + _STRUCT_CODES[spec.code])) for spec in self.fields}
        if getattr(row, "_fields", None) != tuple(self._by_name):
            raise TypeError(f"{row.__name__} and its field table disagree")

    def offset(self, name: str) -> int:
        """Byte offset of a field in the record."""
        return self._by_name[name][0].offset

    def unpack(self, buf: Buffer, pos: int = 0) -> Row:
        """The record at byte ``pos``; ``FormatError`` if the buffer ends inside it."""
        try:
            return self.row(*self._struct.unpack_from(buf, pos))
        except struct.error:
            left = max(len(buf) - pos, 0)
            raise FormatError(f"{self.size} bytes of {self.row.__name__} expected, {left} left", pos) from None

    def pack(self, row: Row) -> bytes:
        """The bytes of a record; ``FormatError`` if a value does not fit its field."""
        try:
            return self._struct.pack(*row)
        except struct.error as error:
            raise FormatError(f"{self.row.__name__} cannot be written: {error}") from None

    def get(self, buf: Buffer, name: str, pos: int = 0) -> int:
        """One field of the record at ``pos``; ``FormatError`` if the buffer ends before it."""
        spec, code = self._by_name[name]
        try:
            return int(code.unpack_from(buf, pos + spec.offset)[0])
        except struct.error:
            raise FormatError(f"{self.row.__name__}.{name} is past the end of the buffer", pos + spec.offset) from None

    def put(self, buf: bytearray | memoryview, name: str, value: int, pos: int = 0) -> None:
        """Overwrite one field of the record at ``pos``."""
        spec, code = self._by_name[name]
        try:
            code.pack_into(buf, pos + spec.offset, value)
        except struct.error as error:
            raise FormatError(f"{self.row.__name__}.{name} cannot be written: {error}", pos + spec.offset) from None

    def array(self, buf: Buffer) -> npt.NDArray[np.void]:
        """The complete records of ``buf`` as a big-endian view, shape (n,), without a copy."""
        return np.frombuffer(buf, dtype=self.dtype, count=len(buf) // self.size)
