"""A file system around another one: every operation of a run, in driver and tasks, passes through one method, ``_do``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from compaction.files.filesystem import Chunk, DiskFileSystem, File, FileRange, FileStat, Lock, Output, parent
from tests.files.faults import ReadAnywhere

T = TypeVar("T")

#: the operations that change something
CHANGES = frozenset(
    ("create", "append", "append_copy", "close", "copy", "fsync", "fsync_dir", "link", "link_sync", "mkdir", "release")
    + ("remove", "remove_tree", "rename", "unlink", "write_file")
)
#: those that take space
GROWS = frozenset(("create", "append", "append_copy", "close", "copy", "fsync", "link", "mkdir", "write_file", "rename"))


class Operation(NamedTuple):
    """One operation of a run, by its number; ``target`` is a second path."""

    number: int
    name: str
    path: str
    target: str = ""

    def __str__(self) -> str:
        return f"#{self.number} {self.name} {self.path}" + (f" -> {self.target}" if self.target else "")


Before = Callable[[Operation], None]


class WatchedFileSystem:
    """See ``compaction.files.filesystem.DiskFileSystem``; ``log`` has the operations so far.

    :param before: called before each operation; what it raises is raised in its place
    """

    def __init__(self, inner: DiskFileSystem, before: Before = lambda _: None) -> None:
        self.inner, self._before = inner, before
        self.log: list[Operation] = []

    def _do(self, operation: Operation, action: Callable[[], T]) -> T:
        """Carry an operation out."""
        self._before(operation)
        return action()

    def do(self, name: str, path: str, action: Callable[[], T], target: str = "") -> T:
        """Carry out what is to be counted."""
        operation = Operation(len(self.log), name, path, target)
        self.log.append(operation)
        return self._do(operation, action)

    # reading

    def listdir(self, path: str) -> list[str]:
        return self.do("listdir", path, lambda: self.inner.listdir(path))

    def stat(self, path: str) -> FileStat | None:
        return self.do("stat", path, lambda: self.inner.stat(path))

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.do("read", path, lambda: self.inner.read_bytes(path, start, length))

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        if end is None:
            return ReadAnywhere(self.read_bytes, path)
        name = "open uncached" if uncached else "open"
        return WatchedSource(self, path, self.do(name, path, lambda: self.inner.open(path, start, end, uncached=uncached)))

    def pread(self, path: str, source: File, view: memoryview, position: int) -> int:
        """One read of an open file."""
        return self.do("pread", path, lambda: source.pread(view, position))

    def real_path(self, path: str) -> FileRange | None:
        return self.do("stat", path, lambda: self.inner.real_path(path))

    # changing

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        self.do("write_file", path, lambda: self.inner.write_file(path, data, like=like, mtime_ns=mtime_ns))

    def link_new(self, path: str, data: bytes, like: str) -> bool:
        made = self.do("link", path, lambda: self.inner.link_new(path, data, like))
        self.do("link_sync", parent(path), lambda: None)
        return made

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> Output:
        made = self.do("create", path, lambda: self.inner.create(path, like, write_behind=write_behind))
        return WatchedOutput(self, path, made)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        self.do("copy", source, lambda: self.inner.copy(source, target, start, length), target)

    def copy_inside(self, source: str, target: str) -> bool:
        return self.do("copy", source, lambda: self.inner.copy_inside(source, target), target)

    def rename(self, source: str, target: str) -> None:
        self.do("rename", source, lambda: self.inner.rename(source, target), target)

    def link(self, source: str, target: str) -> bool:
        return self.do("second name", source, lambda: self.inner.link(source, target), target)

    def unlink(self, path: str) -> None:
        self.do("unlink", path, lambda: self.inner.unlink(path))

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        self.do("mkdir", path, lambda: self.inner.mkdir(path, like, private=private))

    def remove_tree(self, path: str) -> None:
        self.do("remove_tree", path, lambda: self.inner.remove_tree(path))

    def fsync(self, path: str) -> None:
        self.do("fsync", path, lambda: self.inner.fsync(path))

    def fsync_dir(self, path: str) -> None:
        self.do("fsync_dir", path, lambda: self.inner.fsync_dir(path))

    def lock(self, log_dir: str, *, shared: bool = False) -> Lock:
        return self.do("lock", log_dir, lambda: self.inner.lock(log_dir, shared=shared))

    def exchange(self, first: str, second: str) -> bool:
        return self.do("exchange", first, lambda: self.inner.exchange(first, second))

    def lock_holder(self, log_dir: str) -> str | None:
        return self.do("lock_holder", log_dir, lambda: self.inner.lock_holder(log_dir))


class WatchedSource(File):
    """An open file whose reads are counted."""

    def __init__(self, fs: WatchedFileSystem, path: str, inner: File) -> None:
        self._fs, self._path, self._inner = fs, path, inner

    def size(self) -> int:
        return self._fs.do("size", self._path, self._inner.size)

    def pread(self, view: memoryview, position: int) -> int:
        return self._fs.pread(self._path, self._inner, view, position)

    def close(self) -> None:
        self._inner.close()


class WatchedOutput:
    """A file being written whose operations are counted."""

    def __init__(self, fs: WatchedFileSystem, path: str, inner: Output) -> None:
        self._fs, self._path, self._inner = fs, path, inner

    def write(self, chunks: Sequence[Chunk]) -> None:
        data = b"".join(chunks)
        self._fs.do("append", self._path, lambda: self._inner.write([data]))

    def copy_from(self, path: str) -> None:
        self._fs.do("append_copy", path, lambda: self._inner.copy_from(path), self._path)

    def start_writeback(self) -> None:
        self._inner.start_writeback()

    def close(self, *, sync: bool, mtime_ms: int | None = None) -> None:
        self._fs.do("close", self._path, lambda: self._inner.close(sync=sync, mtime_ms=mtime_ms))

    def abandon(self) -> None:
        self._inner.abandon()

    def remove(self) -> None:
        """As of real files: a file that cannot be removed stays, without an error."""
        self._fs.do("remove", self._path, self._inner.remove)
