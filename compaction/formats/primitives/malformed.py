"""Errors of the format readers. They carry a position in a buffer but no file.

Callers convert them into ``compaction.errors.CorruptLogError`` with path and position.
"""

from __future__ import annotations

#: characters of a text that an error shows
_SHOWN = 80


class FormatError(ValueError):
    """The bytes violate the format.

    :param what: the violation, e.g. ``"unknown magic 9"``
    :param position: byte position in the given buffer, if known; callers add path and base position
    """

    def __init__(self, what: str, position: int | None = None) -> None:
        super().__init__(what if position is None else f"{what} (at byte {position} of the buffer)")
        self.what = what
        self.position = position

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles with both fields."""
        return (type(self), (self.what, self.position))


def shown(text: str) -> str:
    """A text as an error shows it: quoted, and shortened if it is long."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


class CodecError(FormatError):
    """A compressed payload cannot be decompressed, has an unknown codec, or exceeds the caller's limit."""


class BufferTooSmall(Exception):
    """The caller's buffer cannot hold the result.

    :param needed_bytes: the size needed, if known before decompressing
    """

    def __init__(self, needed_bytes: int | None = None) -> None:
        super().__init__("buffer too small" if needed_bytes is None else f"buffer too small, {needed_bytes} bytes needed")
        self.needed_bytes = needed_bytes

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles with its field."""
        return (type(self), (self.needed_bytes,))
