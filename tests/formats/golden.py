"""What Kafka's own classes wrote and read, and the inputs that ``MakeFormats.java`` gave them."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

from compaction.formats.primitives import FieldTable
from compaction.formats.record_batch import Header, Record

_DIRECTORY = Path(__file__).resolve().parent.parent / "golden" / "formats"
_WORDS = (b"segment ", b"offset ", b"tombstone-and-marker ", b"key ")

#: the clock and the retention that the golden filter ran with
FILTER_HORIZON_MS = 1_700_000_000_000 + 50 + 1000
FIRST_TWO = frozenset((1000, 1001, 500, 501))


def golden(name: str) -> Any:
    """The parsed content of ``golden/formats/<name>.json``."""
    return json.loads((_DIRECTORY / f"{name}.json").read_text(encoding="utf-8"))


def comparable(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases whose bytes must come out the same here: gzip's only where zlib is the classic one, as the JDK's was."""
    return [case for case in cases if "gzip" not in case["name"] or "ng" not in zlib.ZLIB_RUNTIME_VERSION]


def unbase64(text: str) -> bytes:
    """The bytes of a field."""
    return base64.b64decode(text, validate=True)


def nullable(text: str | None) -> bytes | None:
    """The bytes of a field that may be null."""
    return None if text is None else unbase64(text)


def record(row: dict[str, Any]) -> Record:
    """A record as Kafka read it."""
    headers = tuple(Header(key, nullable(value)) for key, value in row["headers"])
    key, value = nullable(row["key"]), nullable(row["value"])
    return Record(row["offset"], row["timestamp"], key, value, headers, row["sequence"])


def text(size: int) -> bytes:
    """The same words in the same pseudo-random order as ``MakeFormats.text``."""
    out, state = bytearray(), 1
    while len(out) < size:
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        out += _WORDS[state >> 16 & 3] * (1 + (state >> 20) % 24)
    return bytes(out[:size])


def noise(size: int) -> bytes:
    """The same bytes as ``MakeFormats.noise``: they do not compress."""
    out, state = bytearray(), 7
    for _ in range(size):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        out.append(state >> 16 & 0xFF)
    return bytes(out)


def changed(table: FieldTable[Any], data: bytes, **fields: int) -> bytes:
    """The bytes with other fields in the record that they begin with."""
    out = bytearray(data)
    for name, value in fields.items():
        table.put(out, name, value)
    return bytes(out)
