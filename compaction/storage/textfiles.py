"""Reads and writes the small text files of a call: configuration in, reports out."""

from __future__ import annotations

import os
from pathlib import Path

from compaction.errors import StorageError, UsageError


def read_text(path: str, encoding: str = "utf-8") -> str:
    """The whole text of a file that the user named.

    :raises UsageError: missing, no file, not readable, not in that encoding
    """
    try:
        return Path(path).read_text(encoding)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=path, hint="check the name and its permissions") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"is not {encoding} text", path=path, position=error.start, hint=f"save it as {encoding}") from None


def check_writable(path: str) -> None:
    """Checks before a run that a file can be written at its end.

    :raises UsageError: the directory is missing or not writable, or there is a directory of that name
    """
    target = Path(path)
    if target.is_dir():
        raise UsageError("is a directory", path=path, hint="give the name of a file")
    if not target.parent.is_dir():
        raise UsageError("its directory does not exist", path=path, hint=f"make {target.parent} or choose another place")
    if not os.access(target.parent, os.W_OK):
        raise UsageError("its directory cannot be written to", path=path, hint="choose another place")


def write_text(path: str, text: str) -> None:
    """Puts a file in place in one step, so that a reader sees the old one or the whole new one.

    :raises StorageError: the file system refused
    """
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            beside.write_text(text, "utf-8")
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", path=path) from None
