"""Listings of an export's objects, and small objects read as a whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from compaction.errors import CorruptLogError
from compaction.storage.filesystem import FileStat, ReadableFileSystem, join
from compaction.storage.kinds import OBJECTS, storage_of
from compaction.storage.listings import read_whole
from compaction.storage.text_files import MAX_SMALL_BYTES

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16
#: a topic's name and 22 characters of URL-safe base64
TOPIC_AND_ID = r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<id>[A-Za-z0-9_-]{22})"


def directories(files: ReadableFileSystem, path: str) -> Iterator[str]:
    """The names of the directories in a directory, sorted."""
    for name in files.listdir(path):
        found = files.stat(join(path, name))
        if found is not None and found.is_dir:
            yield name


def objects(files: ReadableFileSystem, path: str) -> dict[str, FileStat]:
    """The files of a directory, by name."""
    found = {name: files.stat(join(path, name)) for name in files.listdir(path)}
    return {name: stat for name, stat in found.items() if stat is not None and stat.is_file}


def read_object(files: ReadableFileSystem, path: str, limit_bytes: int = MAX_SMALL_BYTES) -> bytes:
    """All bytes of a small object; for several threads.

    :raises CorruptLogError: it is larger than ``limit_bytes``
    :raises StorageError: it cannot be read
    """
    found = files.stat(path)
    if found is not None and found.size > limit_bytes:
        what = f"is larger than {limit_bytes >> 20} MiB, the limit for such objects"
        raise CorruptLogError(what, path=path, hint="restore the object from another copy")
    return read_whole(path) if storage_of(path) is OBJECTS else files.read_bytes(path)


def in_parallel(read: Callable[[T], R], each: Sequence[T]) -> list[R]:
    """The results of a call for each, in order."""
    if len(each) < 2:
        return [read(one) for one in each]
    with ThreadPoolExecutor(min(_THREADS, len(each))) as pool:
        return list(pool.map(read, each))


def match_of(pattern: re.Pattern[str], names: Iterable[str]) -> Iterator[re.Match[str]]:
    """The matches of the names that match."""
    return (found for found in map(pattern.fullmatch, sorted(names)) if found is not None)


def matching_directories(
    files: ReadableFileSystem, path: str, pattern: re.Pattern[str], prefix: str
) -> Iterator[re.Match[str]]:
    """The matches of the names of directories, after a prefix that all of them have."""
    names = directories(files, path)
    return match_of(pattern, [name[len(prefix) :] for name in names if name.startswith(prefix)])


def require_one_topic(place: str, names: Sequence[str]) -> None:
    """:raises CorruptLogError: there are directories of several topics of one name"""
    if len(names) > 1:
        what = f"has objects of several topics of one name: {', '.join(names)}"
        raise CorruptLogError(what, path=place, hint="the topic was created again; copy the directory of one of them elsewhere")
