"""Reads small files of either side of a certificate: ``None`` for a missing or malformed one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from compaction.certifier.checks.log_pair import LogPair
from compaction.errors import CorruptLogError
from compaction.formats.primitives import FormatError
from compaction.storage.filesystem import FileSystem
from compaction.storage.text_files import read_small_text

T = TypeVar("T")
HINT = "restore it"


def directories(pair: LogPair) -> tuple[str, str]:
    """The partition directories of before and after; the same one for a log that was cleaned in place."""
    return pair.before.segments[0].directory, pair.after.segments[0].directory


def parsed(read: Callable[[FileSystem, str], T | None], fs: FileSystem, directory: str) -> T | None:
    """The content of a file in a directory; ``None`` if it is missing or malformed."""
    try:
        return read(fs, directory)
    except (CorruptLogError, FormatError):
        return None


def parsed_pair(read: Callable[[FileSystem, str], T | None], fs: FileSystem, old: str, new: str) -> tuple[T | None, T | None]:
    """``parsed`` of two directories."""
    return parsed(read, fs, old), parsed(read, fs, new)


def text_of(fs: FileSystem, path: str, encoding: str = "utf-8") -> str | None:
    """The text of a file; ``None`` if it is missing."""
    return None if fs.stat(path) is None else read_small_text(fs, path, HINT, encoding)
