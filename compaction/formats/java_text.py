"""Text as Java reads and produces it: lines, malformed UTF-8, JSON as Jackson writes it, ``.properties`` files.

The rules are those of ``java.util.Properties.load``: ``#`` and ``!`` start a comment line, an odd number of backslashes at
the end of a line joins the next one without its leading blanks, the key ends at the first ``=``, ``:`` or blank that is not
escaped, blanks around the separator are ignored, ``\\t \\n \\r \\f \\uXXXX`` are escapes, and a backslash before any other
character is dropped. A later entry of the same key wins. Java reads the file as Latin-1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from io import StringIO
from typing import Any, NamedTuple

from compaction.errors import ConfigError, CorruptLogError
from compaction.formats.primitives import shown

Json = bool | int | float | str | list[Any] | dict[str, Any] | None

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPED = re.compile(r'["\\\x00-\x1f]')
_PLAIN_DOUBLE = (1e-3, 1e7)


def java_lines(text: str) -> Iterator[str]:
    """Lines as by ``BufferedReader.readLine``: any line end, none needed after the last. Lazy: each byte may be a line."""
    return (line.removesuffix("\n") for line in StringIO(text, newline=None))


def json_text(value: Json) -> str:
    """Compact JSON as Jackson's ``JsonNode.toString`` writes it."""
    if isinstance(value, str):
        return f'"{_ESCAPED.sub(_escape, value)}"'
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(name)}:{json_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _double_text(value) if isinstance(value, float) else str(value)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _ESCAPES.get(char, f"\\u{ord(char):04X}")


def _double_text(value: float) -> str:
    """As ``Double.toString``: plain between 10⁻³ and 10⁷, else with an exponent."""
    if value != value or value in (float("inf"), float("-inf")):
        return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or _PLAIN_DOUBLE[0] <= abs(value) < _PLAIN_DOUBLE[1]:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    first, rest = str(digits[0]), "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{first}.{rest}E{len(digits) - 1 + int(exponent)}"


def java_text(raw: bytes) -> str:
    """``new String(raw, UTF_8)``: malformed bytes become U+FFFD, an encoded surrogate only one."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return _SURROGATE.sub(b"\xff", raw).decode("utf-8", "replace")


_BLANKS = " \t\f"
_SEPARATORS = "=:"
_COMMENTS = ("#", "!")
_PROPERTY_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_PROPERTY_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.?)", re.DOTALL)
_NODE_ID = re.compile(r"[+-]?[0-9]{1,19}")
_META_VERSIONS = {"0": "broker.id", "1": "node.id"}


class Property(NamedTuple):
    """One entry; ``line`` is the number of the line that it starts on, from 1."""

    key: str
    value: str
    line: int


class MetaProperties(NamedTuple):
    """``meta.properties``: the cluster and the node of a log directory; ``None`` for missing entries."""

    cluster_id: str | None = None
    node_id: int | None = None


def parse_properties(text: str, source: object) -> list[Property]:
    """The entries in file order; ``ConfigError`` with source and line for a malformed ``\\uXXXX``."""
    entries = []
    for line, logical in _logical_lines(text):
        end = _key_end(logical)
        value = logical[end:].lstrip(_BLANKS)
        if value.startswith(tuple(_SEPARATORS)):
            value = value[1:].lstrip(_BLANKS)
        try:
            entries.append(Property(_unescape(logical[:end]), _unescape(value), line))
        except ValueError as error:
            raise ConfigError(f"line {line}: {error}", path=source) from None
    return entries


def parse_meta_properties(text: str, source: object) -> MetaProperties:
    """Mirrors ``MetaProperties.Builder``; ``CorruptLogError`` for an unknown version or a bad node id."""
    try:
        values = as_dict(parse_properties(text, source))
    except ConfigError as error:
        # a file of the broker, not a configuration of the user
        raise CorruptLogError(error.message, path=source) from None
    version = values.get("version", "0")
    if version not in _META_VERSIONS:
        raise CorruptLogError(f"unknown version {shown(version)}", path=source)
    node_id = values.get(_META_VERSIONS[version])
    if node_id is not None and not _NODE_ID.fullmatch(node_id):
        raise CorruptLogError(f"{_META_VERSIONS[version]}: {shown(node_id)} is not an integer", path=source)
    return MetaProperties(values.get("cluster.id"), None if node_id is None else int(node_id))


def as_dict(entries: Iterable[Property]) -> dict[str, str]:
    """Values by key, the last entry of a key wins."""
    return {entry.key: entry.value for entry in entries}


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    parts, first = "", 0
    for number, natural in enumerate(java_lines(text), start=1):
        line = natural.lstrip(_BLANKS)
        if not parts:
            if not line or line.startswith(_COMMENTS):
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            parts += line[:-1]
            continue
        yield first, parts + line
        parts = ""
    if parts:
        yield first, parts


def _key_end(line: str) -> int:
    escaped = False
    for pos, char in enumerate(line):
        if not escaped and char in _SEPARATORS + _BLANKS:
            return pos
        escaped = char == "\\" and not escaped
    return len(line)


def _unescape(text: str) -> str:
    def unescaped(match: re.Match[str]) -> str:
        if match[1] == "u":
            raise ValueError(f"malformed \\uxxxx in {shown(text)}")
        return _PROPERTY_ESCAPES.get(match[1], match[1]) if len(match[1]) <= 1 else chr(int(match[1][1:], 16))

    return _PROPERTY_ESCAPE.sub(unescaped, text)
