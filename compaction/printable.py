"""Text for people's terminals and for files, whatever names and file contents it is made of.

Names of directories need not be UTF-8, and what a damaged file holds can be anything: escape sequences that a terminal obeys,
characters that turn the direction of writing, bytes that no encoding takes. Such characters are shown as Python would show
them: ``\\xNN`` for control characters (C0, DEL, C1), ``\\uNNNN`` for those that turn the direction or end a line or a
paragraph, ``\\udcNN`` for a byte ``NN`` of a name that is not UTF-8. Backslashes are not doubled.
"""

from __future__ import annotations

import codecs
import re
from typing import Protocol

_TURNING = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_SURROGATES = "\ud800-\udfff"
_NOT_SHOWN = re.compile(f"[\x00-\x1f\x7f-\x9f{_TURNING}{_SURROGATES}]")
_NOT_SHOWN_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_TURNING}{_SURROGATES}]")
_NOT_IN_JSON = re.compile(f"[\x7f-\x9f{_TURNING}]")
_SURROGATE = re.compile(f"[{_SURROGATES}]")


def printable(text: str) -> str:
    """One line of text with nothing in it that a terminal obeys."""
    return _NOT_SHOWN.sub(_escape, text)


def printable_lines(text: str) -> str:
    """The same of text whose line ends and tabs stay."""
    return _NOT_SHOWN_IN_LINES.sub(_escape, text)


def printable_json(document: str) -> str:
    """A JSON document (of ``json.dumps``) that is valid UTF-8 and does a terminal no harm.

    Strings keep their values, but that bytes which are not UTF-8 become the six characters that ``printable`` shows: parsers of
    other languages refuse a document, or lose the character, where half a surrogate pair stands.
    """
    return _SURROGATE.sub(lambda found: f"\\{_escape(found)}", _NOT_IN_JSON.sub(_json_escape, document))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _json_escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


class Output(Protocol):
    """Where bytes go."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take them."""

    def flush(self) -> None:
        """Hand on what is held back."""


class TerminalOutput:
    """Takes UTF-8 in pieces of any size and gives a terminal what ``printable_lines`` makes of it."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def write(self, data: bytes | memoryview, /) -> None:
        """Take a piece; a character that is cut waits for its rest."""
        self._out.write(printable_lines(self._decoder.decode(bytes(data))).encode())

    def flush(self) -> None:
        """Hand on what is held back, but for a cut character."""
        self._out.flush()
