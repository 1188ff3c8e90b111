"""What the readers of this package raise: ``ValueError``s that know a position in a buffer but no file.

Callers that know the file turn them into ``compaction.errors.CorruptLogError`` with path and position.
"""

from __future__ import annotations


class FormatError(ValueError):
    """Bytes are not what the format says.

    :param what: what is wrong, e.g. ``"unknown magic 9"``
    :param position: byte position in the buffer that was given, where known; callers add path and base position
    """

    def __init__(self, what: str, position: int | None = None) -> None:
        super().__init__(what if position is None else f"{what} (at byte {position} of the buffer)")
        self.what = what
        self.position = position

    def __reduce__(self) -> tuple[object, ...]:
        """Survive pickling between processes with both fields."""
        return (type(self), (self.what, self.position))


class CodecError(FormatError):
    """A compressed payload cannot be decompressed, names an unknown codec, or gives more than the caller allows."""


class BufferTooSmall(Exception):
    """The caller's buffer cannot hold the result.

    :param needed_bytes: the room that would do, where it is known before decompressing
    """

    def __init__(self, needed_bytes: int | None = None) -> None:
        super().__init__("buffer too small" if needed_bytes is None else f"buffer too small, {needed_bytes} bytes needed")
        self.needed_bytes = needed_bytes

    def __reduce__(self) -> tuple[object, ...]:
        """Survive pickling between processes."""
        return (type(self), (self.needed_bytes,))
