"""Complete runs in memory: the file system of ``tests.fs.faults``, closer to a disk where a run that continues after an error
can see the difference.

A file keeps its inode number over a crash; its ``ctime`` changes with every change, renames included. A file that is written in
several steps exists from its creation on. After a failed flush the bytes of a file are never durable, even if a later flush
succeeds (Linux marks the pages clean). Renaming a directory is durable at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compaction.errors import StorageError
from compaction.fs.filesystem import FileStat, base_name, join, normal, parent
from tests.fs.faults import Directory, FaultyFileSystem, Inode, MemorySource, Names

_DEVICE = 1


@dataclass(eq=False)
class File(Inode):
    """A file with an inode number and a ctime, ns."""

    number: int = 0
    ctime_ns: int = 0
    poisoned: bool = False


class MemoryDisk(FaultyFileSystem):
    """See the module's docstring. ``clone`` and ``after_…`` return copies."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = 0

    # reading

    def stat(self, path: str) -> FileStat | None:
        path = normal(path)
        if path in self._directories:
            return FileStat(0, 0, 0o755, os.geteuid(), os.getegid(), 0, is_dir=True, is_file=False)
        directory = self._directories.get(parent(path))
        file = None if directory is None else directory.names.get(base_name(path))
        if not isinstance(file, File):
            return None
        return FileStat(
            len(file.data), file.mtime_ns, file.mode, 0, 0, file.number, is_dir=False, is_file=True, device=_DEVICE,
            ctime_ns=file.ctime_ns,
        )  # fmt: skip

    def reader(self, path: str, start: int, end: int, *, uncached: bool = False) -> MemorySource:
        return LiveSource(self.file(path))

    def file(self, path: str) -> File:
        """:raises StorageError: the file does not exist"""
        path = normal(path)
        file = self._dir(parent(path)).names.get(base_name(path))
        if not isinstance(file, File):
            raise StorageError("no such file", path=path)
        return file

    _inode = file

    def paths(self) -> list[str]:
        """All files, sorted."""
        return sorted(join(path, name) for path, directory in self._directories.items() for name in directory.names)

    def copy_out(self, path: str, target: Path) -> None:
        """Write the files of a directory to one on disk, with their mtimes."""
        target.mkdir(parents=True)
        for name, file in self._dir(path).names.items():
            (target / name).write_bytes(file.data)
            os.utime(target / name, ns=(file.mtime_ns, file.mtime_ns))

    # changing

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        self._step("write", path)
        directory, name = self._dir(parent(path)), base_name(path)
        if name in directory.names:
            raise StorageError("cannot write (File exists)", path=path)
        now = self._tick()
        file = File(data, b"", now if mtime_ns is None else mtime_ns, number=self._number(), ctime_ns=now)
        found = None if like is None else self.stat(like)
        if found is not None and found.is_file:
            file.mode = found.mode
        self._change(directory, _linked(name, file))

    def append(self, path: str, data: bytes) -> None:
        """Append bytes to a file, which may have lost its name."""
        file = self.file(path)
        file.data, file.synced = file.data + data, False
        file.mtime_ns = file.ctime_ns = self._tick()

    def put(self, path: str, data: bytes) -> None:
        if self.stat(path) is None:
            self.write_file(path, data)
        else:
            file = self.file(path)
            file.data, file.synced = data, False
            file.mtime_ns = file.ctime_ns = self._tick()

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> MemoryStream:  # type: ignore[override]
        self.write_file(path, b"", like=like)
        return MemoryStream(self, path)

    def rename(self, source: str, target: str) -> None:
        super().rename(normal(source), normal(target))
        if self.stat(target) is not None and normal(target) not in self._directories:
            self.file(target).ctime_ns = self._tick()

    def fsync(self, path: str) -> None:
        self._step("fsync", path)
        file = self.file(path)
        if not file.poisoned:
            file.safe, file.synced = file.data, True

    # what happens to a disk

    def clone(self) -> MemoryDisk:
        """A copy of the files, synced or not."""
        other = MemoryDisk()
        other._clock, other._numbers = self._clock, self._numbers
        twins: dict[int, File] = {}
        for path, directory in self._directories.items():
            names: Names = {name: _twin(file, twins) for name, file in directory.names.items()}
            assert not directory.changes, "only what is settled can be cloned"
            other._directories[path] = Directory(names, dict(names))
        return other

    def _reborn(self, names: Callable[[Directory], Names], data: Callable[[Inode], bytes]) -> MemoryDisk:
        other = MemoryDisk()
        other._clock, other._numbers = self._clock + 10**9, self._numbers
        for path, directory in self._directories.items():
            fresh: Names = {}
            for name, file in names(directory).items():
                assert isinstance(file, File)
                content = data(file)
                fresh[name] = File(content, content, file.mtime_ns, file.mode, True, file.number, file.ctime_ns)
            other._directories[path] = Directory(fresh, dict(fresh))
        return other

    def content(self) -> frozenset[tuple[str, str, bytes]]:
        """All files (directory, name, bytes) with the other properties that recovery reads, and empty directories."""
        return frozenset(
            (path, f"{name} {file.mtime_ns}", file.data)
            for path, directory in self._directories.items()
            for name, file in [("", Inode(b"", b"", 0)), *directory.names.items()]
        )

    def _step(self, operation: str, path: str) -> None:
        """Nothing: faults are injected around this file system."""

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


class LiveSource(MemorySource):
    """An open file: it reads the current bytes, even after the name was removed."""

    def __init__(self, file: File) -> None:
        super().__init__(b"")
        self._file = file

    def size(self) -> int:
        return len(self._file.data)

    def read_into(self, view: memoryview, position: int, floor: int) -> int:
        data = self._file.data[position : position + len(view)]
        view[: len(data)] = data
        return len(data)


class MemoryStream:
    """A file being written; see ``compaction.fs.filesystem.Output``."""

    def __init__(self, fs: MemoryDisk, path: str) -> None:
        self._fs, self.path = fs, path

    def write(self, chunks: Sequence[bytes | memoryview]) -> None:
        self._fs.append(self.path, b"".join(chunks))

    def copy_from(self, path: str) -> None:
        self._fs.append(self.path, self._fs.read_bytes(path))

    def start_writeback(self) -> None:
        """Nothing."""

    def close(self, *, sync: bool, mtime_ms: int | None = None) -> None:
        if mtime_ms is not None:
            self._fs.file(self.path).mtime_ns = mtime_ms * 1_000_000
        if sync:
            self._fs.fsync(self.path)

    def abandon(self) -> None:
        """Nothing."""

    def remove(self) -> None:
        self._fs.unlink(self.path)


def _twin(file: Inode, twins: dict[int, File]) -> File:
    assert isinstance(file, File)
    twin = File(file.data, file.safe, file.mtime_ns, file.mode, file.synced, file.number, file.ctime_ns)
    return twins.setdefault(file.number, twin)


def _linked(name: str, file: File) -> Callable[[Names], None]:
    def change(names: Names) -> None:
        names[name] = file

    return change
