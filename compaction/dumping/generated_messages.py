"""Reads messages by Kafka's message schemas, such as records of its internal topics, and converts them to its tools' JSON.

Mirrors the code that Kafka 4.3.1 generates from its message definitions. Numbers are big-endian. Strings, bytes and arrays
start with their length (16 bits for strings, 32 for the others), or in flexible versions with length + 1 as an unsigned varint
(0: null). A nullable structure starts with a byte (-1: null), a tagged one with a varint (0: null). Flexible structures end
with tagged fields. In JSON, fields are in the order of their definition; tagged fields with their default value are omitted;
bytes are base64, ids Kafka's text form.
"""

from __future__ import annotations

import base64
import re
import struct
from typing import Any, NamedTuple

from compaction.formats.checkpoints import topic_id_text
from compaction.formats.java_text import Json, java_text
from compaction.formats.primitives import FormatError, decode_unsigned

Values = dict[str, Any]
Value = Json | bytes

_INFINITE = 1 << 15
_NUMBERS = {
    name: struct.Struct(">" + code)
    for name, code in {
        "bool": "?", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float64": "d",
    }.items()
}  # fmt: skip
_UUID_BYTES = 16
_LONGEST_STRING = 0x7FFF
_TOKEN = re.compile(r"[\[\]{},?]|[^\s\[\]{},?]+")


class MessageError(FormatError):
    """A malformed message. ``java`` is the message of Java's exception."""

    def __init__(self, message: str, position: int | None = None, java: str | None = None) -> None:
        super().__init__(message, position)
        self.java = message if java is None else java


class Versions(NamedTuple):
    """A range of versions, both ends inclusive."""

    first: int
    last: int

    def includes(self, version: int) -> bool:
        """Whether the range includes a version."""
        return self.first <= version <= self.last

    @classmethod
    def parse(cls, text: str) -> Versions:
        """From ``3``, ``1-2`` or ``1+``."""
        first, dash, last = text.rstrip("+").partition("-")
        return cls(int(first), _INFINITE if text.endswith("+") else int(last if dash else first))


_ALWAYS = Versions(-_INFINITE, _INFINITE)


class Field(NamedTuple):
    """A field. ``kind`` is a number's type, ``string``, ``bytes``, ``uuid``, ``[`` (array of ``parts[0]``) or ``{`` (structure
    of ``parts``)."""

    name: str
    kind: str
    parts: tuple[Field, ...] = ()
    nullable: bool = False
    versions: Versions = _ALWAYS
    tag: int | None = None
    tagged: Versions = _ALWAYS
    default: str | None = None

    def is_tagged(self, version: int) -> bool:
        return self.tag is not None and self.tagged.includes(version)

    def default_value(self) -> Value:
        if self.default == "null":
            return None
        if self.kind in _NUMBERS:
            return self.default == "true" if self.kind == "bool" else int(self.default or 0)
        if self.kind == "uuid":
            return topic_id_text(bytes(_UUID_BYTES))
        if self.kind == "{":
            return {part.name: part.default_value() for part in self.parts}
        empty: dict[str, Value] = {"string": "", "bytes": b"", "[": []}
        return empty[self.kind]


class Message(NamedTuple):
    """The schema of one message."""

    type: int
    name: str
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]

    def read(self, data: bytes, version: int) -> tuple[Values, int]:
        """The values at the start of ``data`` and the position after them.

        :raises MessageError: the message is malformed
        """
        reader = _Reader(data, version, self.flexible.includes(version), is_known_version=version <= self.versions.last)
        return reader.structure(self.fields), reader.pos

    def to_json(self, values: Values, version: int) -> dict[str, Json]:
        return _json_structure(self.fields, values, version)


def read_table(text: str) -> dict[tuple[int, str], Message]:
    """Parses a table of ``compaction.dumping.message_schemas``; messages by type and name."""
    messages = {}
    for paragraph in re.split(r"\n(?=\S)", text.strip()):
        head, _, fields = paragraph.partition(":")
        kind, name, versions, flexible = head.split()
        parser = _FieldParser(_TOKEN.findall(fields))
        messages[int(kind), name] = Message(
            int(kind),
            name,
            Versions.parse(versions),
            Versions(_INFINITE, _INFINITE) if flexible == "-" else Versions(int(flexible), _INFINITE),
            parser.fields(""),
        )
    return messages


class _FieldParser:
    """Parses the field syntax of a table."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens

    def _take(self, *tokens: str) -> bool:
        if self._tokens and self._tokens[0] in tokens:
            del self._tokens[0]
            return True
        return False

    def fields(self, end: str) -> tuple[Field, ...]:
        """Fields up to ``end``: a bracket, or empty for the end of the text."""
        parsed: list[Field] = []
        while self._tokens and self._tokens[0] != end:
            parsed.append(self._field(self._tokens.pop(0)))
            self._take(",")
        return tuple(parsed)

    def _field(self, name: str) -> Field:
        field = self._type(name)._replace(nullable=self._take("?"))
        while self._tokens and self._tokens[0] not in (",", "]", "}"):
            note = self._tokens.pop(0)
            if note.startswith("="):
                field = field._replace(default=note[1:])
            elif note.startswith("#"):
                tag, _, versions = note[1:].partition("@")
                field = field._replace(tag=int(tag), tagged=Versions.parse(versions) if versions else _ALWAYS)
            else:
                field = field._replace(versions=Versions.parse(note))
        return field

    def _type(self, name: str) -> Field:
        kind = self._tokens.pop(0)
        parts: tuple[Field, ...] = ()
        if kind == "[":
            parts = (self._type(name),)
            self._take("]")
        elif kind == "{":
            parts = self.fields("}")
            self._take("}")
        return Field(name, kind, parts)


class _Reader:
    """Reads values of one version of a message from a buffer."""

    def __init__(self, data: bytes, version: int, flexible: bool, *, is_known_version: bool) -> None:
        self._data, self._version, self._flexible, self._is_known_version = data, version, flexible, is_known_version
        self.pos = 0

    def structure(self, fields: tuple[Field, ...]) -> Values:
        present = [field for field in fields if field.versions.includes(self._version)]
        values = {field.name: self._value(field) for field in present if not field.is_tagged(self._version)}
        if self._flexible:
            by_tag = {field.tag: field for field in present if field.is_tagged(self._version)}
            for _ in range(self._unsigned()):
                tag, size = self._unsigned(), self._unsigned()
                if tag in by_tag:
                    values[by_tag[tag].name] = self._value(by_tag[tag])
                else:
                    self._array(size)
        return values

    def _value(self, field: Field) -> Value:
        number = _NUMBERS.get(field.kind)
        if number is not None:
            value: bool | int | float = number.unpack(self._take(number.size))[0]
            return value
        if field.kind == "uuid":
            return topic_id_text(self._take(_UUID_BYTES))
        if field.kind == "{":
            # a tagged structure starts with an unsigned varint instead of a byte
            if field.nullable and (self._unsigned() <= 0 if field.is_tagged(self._version) else self._take(1)[0] > 0x7F):
                return None
            if not self._is_known_version:
                # of a later version Kafka reads the message itself, but no structure in it
                raise MessageError(f"cannot read version {self._version} of {field.name}", self.pos)
            return self.structure(field.parts)
        length = self._length(2 if field.kind == "string" else 4)
        if length < 0:
            if not field.nullable:
                raise MessageError(f"non-nullable field {field.name} was serialized as null", self.pos)
            return None
        if field.kind == "[":
            available = len(self._data) - self.pos
            if length > available:
                message = f"Tried to allocate a collection of size {length}, but there are only {available} bytes remaining."
                raise MessageError(message, self.pos)
            return [self._value(field.parts[0]) for _ in range(length)]
        if field.kind == "string" and length > _LONGEST_STRING:
            raise MessageError(f"string field {field.name} had invalid length {length}", self.pos)
        raw = self._array(length)
        return raw if field.kind == "bytes" else java_text(raw)

    def _length(self, width: int) -> int:
        if self._flexible:
            return self._unsigned() - 1
        return int.from_bytes(self._take(width), "big", signed=True)

    def _unsigned(self) -> int:
        """An unsigned varint, converted to Java's signed ``int``."""
        try:
            value, self.pos = decode_unsigned(self._data, self.pos)
        except FormatError as error:
            raise MessageError(error.message, self.pos, _java_reason(self._data[self.pos : self.pos + 5])) from None
        return value - (1 << 32) if value >> 31 else value

    def _array(self, size: int) -> bytes:
        available = len(self._data) - self.pos
        if size > available:
            raise MessageError(f"Error reading byte array of {size} byte(s): only {available} byte(s) available", self.pos)
        return self._take(size)

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self.pos:
            raise MessageError(f"message ends within a field of {size} bytes", self.pos, "null")
        self.pos += size
        return self._data[self.pos - size : self.pos]


def _java_reason(varint: bytes) -> str:
    """The message of Java's exception for a malformed unsigned varint: none if the buffer ends within it."""
    if len(varint) < 5:
        return "null"
    value = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(varint[:4])) | varint[4] << 28
    return f"Varint is too long, the most significant bit in the 5th byte is set, converted value: {value & 0xFFFFFFFF:x}"


def _json_structure(fields: tuple[Field, ...], values: Values, version: int) -> dict[str, Json]:
    out: dict[str, Json] = {}
    for field in fields:
        if not field.versions.includes(version):
            continue
        default = field.default_value()
        value = values.get(field.name, default)
        if not (field.is_tagged(version) and value == default):
            out[field.name] = _json_value(field, value, version)
    return out


def _json_value(field: Field, value: Value, version: int) -> Json:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, list):
        return [_json_value(field.parts[0], element, version) for element in value]
    if isinstance(value, dict):
        return _json_structure(field.parts, value, version)
    return value
