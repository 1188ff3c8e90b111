"""The errors of this package: one line with the fault, its place and the remedy.

A ``UsageError`` means that the call is wrong and nothing was changed (exit code 2). A ``LogError`` fails one log: that log is
unchanged, and the run continues with the others (exit code 1).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

from compaction.printable import printable

#: puts a text with flags of options in the words of the caller: calls of the Python API have keywords
wording: ContextVar[Callable[[str], str]] = ContextVar("wording", default=str)


class CompactionError(Exception):
    """Base class of this package's errors.

    :param message: the fault, e.g. ``"batch fails its CRC (stored 0x1, computed 0x2)"``
    :param path: the file or directory
    :param position: byte position in that file
    :param hint: the remedy
    """

    def __init__(self, message: str, *, path: object = None, position: int | None = None, hint: str | None = None) -> None:
        self.message = message
        self.path = None if path is None else str(path)
        self.position = position
        self.hint = hint
        super().__init__(self.describe())

    def describe(self) -> str:
        """The one line shown to the user: printable, without line breaks; a path in ``message`` is not repeated."""
        named = self.path is not None and re.search(rf"(?<![\w./-]){re.escape(self.path)}(?![\w/-])", self.message)
        where = "" if self.path is None or named else f"{self.path}: "
        if self.path is not None and self.position is not None:
            where = f"{self.path} at byte {self.position}: "
        tail = "" if self.hint is None else f"; {self.hint}"
        return printable(" ".join(f"{where}{self.message}{tail}".split("\n")))

    def reword(self, change: Callable[[str], str]) -> None:
        """Changes the words of the message and the hint."""
        self.message, self.hint = change(self.message), None if self.hint is None else change(self.hint)
        self.args = (self.describe(),)

    def __reduce__(self) -> tuple[object, ...]:
        """Spark pickles errors from tasks to the driver; ``Exception`` does not pickle keyword-only arguments."""
        return partial(type(self), self.message, path=self.path, position=self.position, hint=self.hint), ()


class UsageError(CompactionError):
    """The call is wrong (option, directory, lock, configuration); nothing was changed, exit code 2."""


class ConfigError(UsageError):
    """An unknown configuration name or a bad value; ``path`` is the source, ``message`` has the line and key."""


class LockedError(UsageError):
    """A live broker or another run holds the log directory's ``.lock``."""


class LogError(CompactionError):
    """One log cannot be processed: it is unchanged and reported as ``failed``; other logs are not affected."""


class CorruptLogError(LogError):
    """A segment, index, snapshot or checkpoint is malformed; has path and position."""


class UnsupportedLogError(LogError):
    """The log is valid but contains something that cannot be cleaned as Kafka would."""


class PolicyUnknownError(LogError):
    """The topic's ``cleanup.policy`` is not known, so the log is not changed."""


class StorageError(LogError):
    """A file system operation failed: no space, no permission, read-only, file missing."""


class UnforeseenError(LogError):
    """An unexpected exception while processing one log; it fails only that log."""


def as_log_error(error: Exception, path: object, position: int | None = None) -> LogError:
    """Any exception as an error of the log that was being processed.

    :param path, position: the file being processed, for errors without a path
    """
    if isinstance(error, LogError):
        return error
    if isinstance(error, MemoryError):
        hint = "give the processes more memory; nothing was changed"
        return UnsupportedLogError("does not fit into memory", path=path, position=position, hint=hint)
    message = error.describe() if isinstance(error, CompactionError) else f"{type(error).__name__}: {error}"
    return UnforeseenError(f"unforeseen failure ({message})", path=path, position=position, hint="nothing was changed")
