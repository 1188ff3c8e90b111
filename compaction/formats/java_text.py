"""Text as Java reads and produces it: lines, strings decoded from possibly malformed UTF-8, and JSON as Jackson writes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from io import StringIO
from typing import Any

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
