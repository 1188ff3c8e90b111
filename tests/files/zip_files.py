"""Files in zip archives, by URIs ``zip:///DIRECTORY/ARCHIVE.zip/PATH``. They have the modification time of the archive."""

from __future__ import annotations

import os
import re
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from stat import S_ISLNK
from zipfile import BadZipFile, ZipFile, ZipInfo

from compaction.errors import StorageError
from compaction.files.filesystem import File, FileStat, ReadableFileSystem, storage_errors
from compaction.files.local import LocalFileSystem
from compaction.files.object_store import object_stat

_LOCAL = LocalFileSystem()


@contextmanager
def _zip_errors(path: str) -> Iterator[None]:
    with storage_errors(path, "read the archive"):
        try:
            yield
        # zlib's error; an unknown method, a password
        except (BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise StorageError(f"the archive is damaged ({error})", path=path, hint="restore the archive") from error


def _checked(archive: ZipFile, name: str, path: str) -> ZipInfo:
    if S_ISLNK(archive.NameToInfo[name].external_attr >> 16):
        raise StorageError("is a symbolic link, which is not followed", path=path, hint="archive the file itself")
    return archive.NameToInfo[name]


class _Member(File):
    """Threads may share it: they read one after the other."""

    def __init__(self, path: str, archive: ZipFile, name: str) -> None:
        self._path, self._size, self._lock = path, archive.getinfo(name).file_size, threading.Lock()
        with _zip_errors(path):
            self._file = archive.open(name)

    def size(self) -> int:
        return self._size

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        with _zip_errors(self._path), self._lock:
            self._file.seek(start)
            return self._file.read(-1 if length is None else length)

    def close(self) -> None:
        self._file.close()


class ZipFileSystem(ReadableFileSystem):
    """An archive is opened once in each process, and again if it has changed."""

    def __init__(self) -> None:
        self._archives: dict[tuple[int, str, FileStat], ZipFile] = {}

    def listdir(self, path: str) -> list[str]:
        archive, _, name = self._located(path)
        below = f"{name}/" if name else ""
        names = {each[len(below) :].partition("/")[0] for each in archive.namelist() if each.startswith(below)} - {""}
        if not names:
            raise StorageError("no such directory in the archive", path=path)
        return sorted(names)

    def stat(self, path: str) -> FileStat | None:
        archive, mtime_ns, name = self._located(path)
        if name in archive.NameToInfo:
            return object_stat(_checked(archive, name, path).file_size, mtime_ns, is_dir=False)
        is_dir = not name or any(each.startswith(f"{name}/") for each in archive.namelist())
        return object_stat(0, mtime_ns, is_dir=True) if is_dir else None

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        archive, _, name = self._located(path)
        if name not in archive.NameToInfo:
            raise StorageError("no such file in the archive", path=path)
        _checked(archive, name, path)
        return _Member(path, archive, name)

    def _located(self, path: str) -> tuple[ZipFile, int, str]:
        """The archive of a path, its modification time, and the name in it."""
        address = path.removeprefix("zip://")
        for end in (match.end() for match in re.finditer(r"\.zip(?=/|$)", address)):
            place = address[:end]
            found = _LOCAL.stat(place)
            if found is None or not found.is_file:
                continue
            # a fork shares the position of an open file with its parent
            key = os.getpid(), place, found
            if key not in self._archives:
                with _zip_errors(place):
                    self._archives[key] = ZipFile(place)
            return self._archives[key], found.mtime_ns, address[end:].strip("/")
        raise StorageError("no archive on this path", path=path, hint="check that it is there")
