"""Listings of an export's objects, and small objects read as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from compaction.errors import CorruptLogError
from compaction.storage.filesystem import OBJECTS, FileStat, ReadableFileSystem, join, storage_of
from compaction.storage.object_store import read_whole
from compaction.storage.text_files import MAX_SMALL_BYTES

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16
#: a topic's name and 22 characters of URL-safe base64
TOPIC_AND_ID = r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<id>[A-Za-z0-9_-]{22})"


def directories(files: ReadableFileSystem, path: str) -> Iterator[str]:
    """The names of the directories in a directory, sorted."""
    for name in files.listdir(path):
        stat = files.stat(join(path, name))
        if stat is not None and stat.is_dir:
            yield name


def objects(files: ReadableFileSystem, path: str) -> dict[str, FileStat]:
    """The files of a directory, by name."""
    stats = {name: files.stat(join(path, name)) for name in files.listdir(path)}
    return {name: stat for name, stat in stats.items() if stat is not None and stat.is_file}


def read_object(files: ReadableFileSystem, path: str, limit_bytes: int = MAX_SMALL_BYTES) -> bytes:
    """All bytes of a small object; for several threads.

    :raises CorruptLogError: it is larger than ``limit_bytes``
    :raises StorageError: it cannot be read
    """
    stat = files.stat(path)
    if stat is not None and stat.size > limit_bytes:
        message = f"is larger than {limit_bytes >> 20} MiB, the limit for such objects"
        raise CorruptLogError(message, path=path, hint="restore the object from another copy")
    return read_whole(path) if storage_of(path) is OBJECTS else files.read_bytes(path)


def in_parallel(read: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results of a call for each, in order."""
    if len(items) < 2:
        return [read(one) for one in items]
    with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
        return list(pool.map(read, items))


def match_of(pattern: re.Pattern[str], names: Iterable[str]) -> Iterator[re.Match[str]]:
    """The matches of the names that match."""
    return (match for match in map(pattern.fullmatch, sorted(names)) if match is not None)


def matching_directories(
    files: ReadableFileSystem, path: str, pattern: re.Pattern[str], prefix: str
) -> Iterator[re.Match[str]]:
    """The matches of the names of directories, after a prefix that all of them have."""
    names = directories(files, path)
    return match_of(pattern, [name[len(prefix) :] for name in names if name.startswith(prefix)])


def require_one_topic(place: str, names: Sequence[str]) -> None:
    """:raises CorruptLogError: there are directories of several topics of one name"""
    if len(names) > 1:
        message = f"has objects of several topics of one name: {', '.join(names)}"
        hint = "the topic was created again; copy the directory of one of them elsewhere"
        raise CorruptLogError(message, path=place, hint=hint)
