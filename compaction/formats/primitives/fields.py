"""Field tables: one per on-disk format, shared by its reader and writer; field offsets are computed.

All fields are big-endian and of fixed size. A table is declared by a ``NamedTuple`` class, whose fields have one of the types
below, in file order.
"""

from __future__ import annotations

import struct
from typing import Annotated, Generic, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from compaction.formats.primitives.malformed import FormatError

Buffer = bytes | bytearray | memoryview

Row = TypeVar("Row", bound=tuple[object, ...])

# integers by size and sign, with numpy's code
Int8 = Annotated[int, "i1"]
Int16 = Annotated[int, "i2"]
Int32 = Annotated[int, "i4"]
Int64 = Annotated[int, "i8"]
UInt32 = Annotated[int, "u4"]

#: field code (numpy's) -> struct code
_STRUCT_CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u4": "I"}


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
        offsets = {name: int(place[1]) for name, place in (self.dtype.fields or {}).items()}
        self._by_name = {name: (offsets[name], struct.Struct(">" + _STRUCT_CODES[code])) for name, code in codes.items()}

    def offset(self, name: str) -> int:
        """Byte offset of a field in the record."""
        return self._by_name[name][0]

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
        offset, code = self._by_name[name]
        try:
            return int(code.unpack_from(buf, pos + offset)[0])
        except struct.error:
            raise FormatError(f"{self.row.__name__}.{name} is past the end of the buffer", pos + offset) from None

    def put(self, buf: bytearray | memoryview, name: str, value: int, pos: int = 0) -> None:
        """Overwrite one field of the record at ``pos``."""
        offset, code = self._by_name[name]
        try:
            code.pack_into(buf, pos + offset, value)
        except struct.error as error:
            raise FormatError(f"{self.row.__name__}.{name} cannot be written: {error}", pos + offset) from None

    def array(self, buf: Buffer) -> npt.NDArray[np.void]:
        """The complete records of ``buf`` as a big-endian view, shape (n,), without a copy."""
        return np.frombuffer(buf, dtype=self.dtype, count=len(buf) // self.size)
