"""The errors of this package: each is one line that says what is wrong, where, and what to do about it.

``UsageError`` and its kin mean that the call is wrong and nothing was touched (exit code 2). ``LogError`` and its kin concern
one log: that log is left as it was and the others go on (exit code 1).
"""

from __future__ import annotations

from compaction.printable import printable


class CompactionError(Exception):
    """Base of every error that this package raises on purpose.

    :param what: what is wrong, e.g. ``"batch fails its CRC (stored 0x1, computed 0x2)"``
    :param path: the file or directory concerned
    :param position: byte position in that file
    :param hint: what the user can do
    """

    def __init__(self, what: str, *, path: object = None, position: int | None = None, hint: str | None = None) -> None:
        self.what = what
        self.path = None if path is None else str(path)
        self.position = position
        self.hint = hint
        super().__init__(self.describe())

    def describe(self) -> str:
        """The one line shown to the user, whatever the path and the file's contents hold."""
        where = "" if self.path is None else f"{self.path}: "
        if self.path is not None and self.position is not None:
            where = f"{self.path} at byte {self.position}: "
        tail = "" if self.hint is None else f"; {self.hint}"
        return printable(" ".join(f"{where}{self.what}{tail}".split("\n")))

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross from Spark tasks to the driver by pickle; keyword-only arguments need help there."""
        return (_rebuild, (type(self), self.what, self.path, self.position, self.hint))


def _rebuild(
    kind: type[CompactionError], what: str, path: str | None, position: int | None, hint: str | None
) -> CompactionError:
    return kind(what, path=path, position=position, hint=hint)


class UsageError(CompactionError):
    """The call is wrong (option, directory, lock, configuration): nothing was touched, exit code 2."""


class ConfigError(UsageError):
    """A configuration name is unknown or its value is bad; ``path`` names the source, ``what`` the line and key."""


class LockedError(UsageError):
    """A live broker or another run holds the log directory's ``.lock``."""


class LogError(CompactionError):
    """One log cannot be handled: it is left exactly as it was, marked ``failed``, and the other logs go on."""


class CorruptLogError(LogError):
    """Bytes of a segment, index, snapshot or checkpoint are not what the format says; carries path and position."""


class UnsupportedLogError(LogError):
    """The log is sound but holds something that cannot be cleaned faithfully."""


class PolicyUnknownError(LogError):
    """Nothing says the topic's ``cleanup.policy``, and nothing is deleted on a guess."""


class StorageError(LogError):
    """The file system refused: no space, no permission, read-only, vanished."""


class UnforeseenError(LogError):
    """Work on one log met something that this package has no name for; it is that log's failure and nobody else's."""


def of_log(error: Exception, path: object, position: int | None = None) -> LogError:
    """What went wrong with one log, as an error of that log.

    :param path, position: where the work was, for errors that do not say so themselves
    """
    if isinstance(error, LogError):
        return error
    if isinstance(error, MemoryError):
        hint = "give the processes more memory; nothing was changed"
        return UnsupportedLogError("does not fit into memory", path=path, position=position, hint=hint)
    what = error.describe() if isinstance(error, CompactionError) else f"{type(error).__name__}: {error}"
    return UnforeseenError(f"unforeseen failure ({what})", path=path, position=position, hint="nothing was changed")
