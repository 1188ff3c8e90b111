"""Files of this machine and of remote places side by side: which file system a run's paths need."""

from __future__ import annotations

from collections.abc import Iterable

from compaction.fs.filesystem import ByteSource, FileRange, FileStat, FileSystem, Output, ReadableFileSystem
from compaction.fs.local import LocalFileSystem
from compaction.fs.local_output import LocalOutput
from compaction.fs.uri import any_remote, is_remote
from compaction.stores.remote import RemoteFileSystem, read_only
from compaction.stores.streams import COPY_BYTES, ObjectOutput, RangeReader


def file_system(paths: Iterable[str]) -> FileSystem:
    """The file system for these paths and addresses, and all below them."""
    return MixedFileSystem() if any_remote(paths) else LocalFileSystem()


class MixedFileSystem(LocalFileSystem):
    """Paths lead to this machine, addresses to their stores. An address is read, or an object is created there; what is copied
    from there becomes a file of whoever runs this."""

    def __init__(self) -> None:
        self._remote = RemoteFileSystem()

    def __reduce__(self) -> tuple[type[MixedFileSystem], tuple[()]]:
        """Open objects and listings stay in this process."""
        return MixedFileSystem, ()

    def _of(self, path: str) -> ReadableFileSystem:
        return self._remote if is_remote(path) else _LOCAL

    def listdir(self, path: str) -> list[str]:
        return self._of(path).listdir(path)

    def stat(self, path: str) -> FileStat | None:
        return self._of(path).stat(path)

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self._of(path).read_bytes(path, start, length)

    def reader(self, path: str, start: int, end: int, *, uncached: bool = False) -> ByteSource:
        return self._of(path).reader(path, start, end, uncached=uncached)

    def real_path(self, path: str) -> FileRange | None:
        return self._of(path).real_path(path)

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        _local_only(path)
        super().write_file(path, data, like=like, mtime_ns=mtime_ns)

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> Output:
        return ObjectOutput(path) if is_remote(path) else super().create(path, like, write_behind=write_behind)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        _local_only(target)
        if is_remote(source):
            self._download(source, target, start, length)
        else:
            super().copy(source, target, start, length)

    def _download(self, source: str, target: str, start: int, length: int | None) -> None:
        found = self._remote.stat(source)
        end = start + length if length is not None else 0 if found is None else found.size
        reader = RangeReader(source, start, end)
        output = LocalOutput(target, None)
        try:
            buffer = memoryview(bytearray(min(COPY_BYTES, max(1, end - start))))
            at = start
            while at < end and (n := reader.read_into(buffer[: end - at], at, at)):
                output.write([buffer[:n]])
                at += n
            output.close(sync=False, mtime_ns=None if found is None else found.mtime_ns)
        except BaseException:
            output.remove()
            raise
        finally:
            reader.close()

    def rename(self, source: str, target: str) -> None:
        _local_only(target)
        super().rename(source, target)

    def link(self, source: str, target: str) -> bool:
        _local_only(target)
        return super().link(source, target)

    def unlink(self, path: str) -> None:
        _local_only(path)
        super().unlink(path)

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        _local_only(path)
        super().mkdir(path, None if like is None or is_remote(like) else like, private=private)

    def remove_tree(self, path: str) -> None:
        _local_only(path)
        super().remove_tree(path)


_LOCAL = LocalFileSystem()


def _local_only(path: str) -> None:
    """:raises StorageError: an address, which nothing changes in place"""
    if is_remote(path):
        raise read_only(path)
