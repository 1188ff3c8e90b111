"""One file system for local paths and URIs: each operation is dispatched by its path."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from compaction.files.contents import read_range
from compaction.files.filesystem import (
    DISK,
    EXPORTS,
    NO_LOCK,
    DiskFileSystem,
    File,
    FileRange,
    FileStat,
    Lock,
    Output,
    ReadableFileSystem,
    removed_on_failure,
    storage_of,
)
from compaction.files.local import LocalFileSystem
from compaction.files.local_output import LocalOutput
from compaction.files.object_store import ObjectOutput
from compaction.files.remote import RemoteFileSystem
from compaction.files.uri import layouts, place_of


def file_system(paths: Iterable[str]) -> DiskFileSystem:
    """The file system for these paths and URIs, and everything below them."""
    return LocalFileSystem() if all(storage_of(path) is DISK for path in paths) else MixedFileSystem()


class MixedFileSystem(LocalFileSystem):
    """Paths name local files, URIs name objects or files of exports. Objects are read and created, never changed in place; they
    have no locks, and are durable once they are closed. A file copied from a URI belongs to the current user."""

    def __init__(self) -> None:
        self._remote = RemoteFileSystem()

    def __reduce__(self) -> tuple[type[MixedFileSystem], tuple[()]]:
        """Open objects and listings are not pickled."""
        return MixedFileSystem, ()

    @cached_property
    def _exports(self) -> ReadableFileSystem:
        return layouts().file_system(self)

    def _of(self, path: str) -> ReadableFileSystem:
        storage = storage_of(path)
        return _LOCAL if storage is DISK else self._exports if storage is EXPORTS else self._remote

    def listdir(self, path: str) -> list[str]:
        return self._of(path).listdir(path)

    def stat(self, path: str) -> FileStat | None:
        return self._of(path).stat(path)

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        return self._of(path).open(path, start, end, uncached=uncached)

    def real_path(self, path: str) -> FileRange | None:
        return self._of(path).real_path(path)

    def fsync(self, path: str) -> None:
        if not storage_of(path).appears_whole:
            super().fsync(path)

    def lock(self, log_dir: str, *, shared: bool = False) -> Lock:
        return super().lock(log_dir, shared=shared) if storage_of(log_dir).locks else NO_LOCK

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> Output:
        return super().create(path, like, write_behind=write_behind) if storage_of(path) is DISK else ObjectOutput(path)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        if storage_of(source) is DISK:
            super().copy(source, target, start, length)
        else:
            self._download(source, target, start, length)

    def copy_inside(self, source: str, target: str) -> bool:
        return storage_of(source) is DISK and super().copy_inside(source, target)

    def _download(self, source: str, target: str, start: int, length: int | None) -> None:
        stat = self.stat(source)
        size = length if length is not None else 0 if stat is None else stat.size - start
        with removed_on_failure(LocalOutput(target, None)) as output:
            for block in read_range(self, FileRange(source, start, size)):
                output.write([block])
            output.close(sync=False, mtime_ns=None if stat is None else stat.mtime_ns)

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        place = None if like is None else place_of(like)
        super().mkdir(path, place if place is not None and storage_of(place).attributes else None, private=private)


_LOCAL = LocalFileSystem()
