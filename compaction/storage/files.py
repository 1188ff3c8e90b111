"""Files of this machine and of remote places side by side: which file system a run's paths need."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from compaction.storage.filesystem import Extent, FileStat, FileSystem, LocalFileSystem, storage_errors, take_after
from compaction.storage.places import any_remote, is_remote
from compaction.storage.ranges import View
from compaction.storage.remote import RemoteFileSystem
from compaction.storage.streams import COPY_BYTES, RangeReader


def file_system(paths: Iterable[str]) -> FileSystem:
    """The file system for these paths and addresses, and all below them."""
    return MixedFileSystem() if any_remote(paths) else LocalFileSystem()


class MixedFileSystem:
    """Paths go to this machine, addresses to where they lead. Addresses are only read; what is copied from there becomes a file
    of whoever runs this."""

    def __init__(self) -> None:
        self._local, self._remote = LocalFileSystem(), RemoteFileSystem()

    def _of(self, path: str) -> FileSystem:
        return self._remote if is_remote(path) else self._local

    def listdir(self, path: str) -> list[str]:
        return self._of(path).listdir(path)

    def stat(self, path: str) -> FileStat | None:
        return self._of(path).stat(path)

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self._of(path).read_bytes(path, start, length)

    def view(self, path: str) -> View:
        return self._of(path).view(path)

    def real_path(self, path: str) -> Extent:
        return self._of(path).real_path(path)

    def in_memory(self, path: str) -> bool:
        return False

    def write_file(self, path: str, data: bytes, like: FileStat | None = None) -> None:
        self._of(path).write_file(path, data, like)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        if is_remote(source) and not is_remote(target):
            self._download(source, target, start, length)
        else:
            self._of(target).copy(source, target, start, length)

    def _download(self, source: str, target: str, start: int, length: int | None) -> None:
        found = self._remote.stat(source)
        end = start + length if length is not None else 0 if found is None else found.size
        reader = RangeReader(source, start, end)
        try:
            buffer = memoryview(bytearray(min(COPY_BYTES, max(1, end - start))))
            with storage_errors(target, f"copy {source} here"), Path(target).open("wb") as file:
                at = start
                while at < end and (n := reader.read_into(buffer[: end - at], at, at)):
                    file.write(buffer[:n])
                    at += n
        finally:
            reader.close()
        with storage_errors(target, "set the mode of"):
            take_after(Path(target), found)
        if found is not None:
            self._local.utime(target, found.mtime_ns)

    def rename(self, source: str, target: str) -> None:
        self._of(target).rename(source, target)

    def unlink(self, path: str) -> None:
        self._of(path).unlink(path)

    def mkdir(self, path: str, like: FileStat | None = None) -> None:
        self._of(path).mkdir(path, like)

    def rmdir(self, path: str) -> None:
        self._of(path).rmdir(path)

    def utime(self, path: str, mtime_ns: int) -> None:
        self._of(path).utime(path, mtime_ns)

    def fsync(self, path: str) -> None:
        self._of(path).fsync(path)

    def fsync_dir(self, path: str) -> None:
        self._of(path).fsync_dir(path)
