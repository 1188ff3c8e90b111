"""Escapes text from file names and file contents for terminals, reports and JSON.

Directory names need not be UTF-8, and damaged files contain anything: terminal escape sequences, bidirectional controls,
undecodable bytes. Such characters are escaped as in Python: ``\\xNN`` for control characters (C0, DEL, C1), ``\\uNNNN`` for
bidirectional controls and line or paragraph separators, ``\\udcNN`` for a byte ``NN`` that is not UTF-8. Backslashes are not
doubled.
"""

from __future__ import annotations

import codecs
import re
from typing import Protocol

_BIDI_AND_SEPARATORS = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_SURROGATES = "\ud800-\udfff"
_NOT_SHOWN = re.compile(f"[\x00-\x1f\x7f-\x9f{_BIDI_AND_SEPARATORS}{_SURROGATES}]")
_NOT_SHOWN_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI_AND_SEPARATORS}{_SURROGATES}]")
_NOT_IN_JSON = re.compile(f"[\x7f-\x9f{_BIDI_AND_SEPARATORS}]")
_SURROGATE = re.compile(f"[{_SURROGATES}]")


def printable(text: str) -> str:
    """``text`` on one line, without control characters."""
    return _NOT_SHOWN.sub(_escape, text)


def printable_lines(text: str) -> str:
    return _NOT_SHOWN_IN_LINES.sub(_escape, text)


def printable_json(document: str) -> str:
    """A JSON document (of ``json.dumps``) as valid UTF-8 without control characters.

    String values are unchanged, except that a byte that is not UTF-8 becomes the six characters of ``printable``: other
    languages' parsers refuse a document with an unpaired surrogate, or lose the character.
    """
    escaped = _NOT_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", document)
    return _SURROGATE.sub(lambda match: f"\\{_escape(match)}", escaped)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class Output(Protocol):
    """A binary stream to write to."""

    def write(self, data: bytes | memoryview, /) -> object: ...
    def flush(self) -> None: ...


class TerminalOutput:
    """Writes UTF-8 to a terminal through ``printable_lines``, in chunks of any size."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def write(self, data: bytes | memoryview, /) -> None:
        """Write a chunk; an incomplete character at its end is held until the next chunk."""
        self._out.write(printable_lines(self._decoder.decode(bytes(data))).encode())

    def flush(self) -> None:
        """Flush the stream; an incomplete character is still held."""
        self._out.flush()
