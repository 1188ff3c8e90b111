"""A file system that tells of each operation before it happens: to note them, to fail them, or to change files in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from compaction.fs.filesystem import ByteSource, Chunk, DiskFileSystem, FileRange, FileStat, Lock, Output


class Operation(NamedTuple):
    """One operation of a file system, of an open file (``read``) or of an output (``append``, ``close``, ``remove``)."""

    name: str
    path: str
    target: str = ""


Before = Callable[[Operation], None]
#: operations that change something; what is appended to an output counts when it is closed
CHANGES = frozenset("write_file link_new create close remove copy rename unlink mkdir remove_tree fsync fsync_dir".split(" "))


class WatchedFiles:
    """``files``, with ``before`` called before each operation; what it raises is raised in its place."""

    def __init__(self, files: DiskFileSystem, before: Before) -> None:
        self._files, self._before = files, before

    def _tell(self, name: str, path: str, target: str = "") -> DiskFileSystem:
        self._before(Operation(name, path, target))
        return self._files

    def listdir(self, path: str) -> list[str]:
        return self._tell("listdir", path).listdir(path)

    def stat(self, path: str) -> FileStat | None:
        return self._tell("stat", path).stat(path)

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self._tell("read_bytes", path).read_bytes(path, start, length)

    def reader(self, path: str, start: int, end: int, *, uncached: bool = False) -> ByteSource:
        name = "reader of the device" if uncached else "reader"
        return _WatchedSource(self._tell(name, path).reader(path, start, end, uncached=uncached), path, self._before)

    def real_path(self, path: str) -> FileRange | None:
        return self._tell("real_path", path).real_path(path)

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        self._tell("write_file", path).write_file(path, data, like=like, mtime_ns=mtime_ns)

    def link_new(self, path: str, data: bytes, like: str) -> bool:
        return self._tell("link_new", path).link_new(path, data, like)

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> Output:
        return _WatchedOutput(self._tell("create", path).create(path, like, write_behind=write_behind), path, self._before)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        self._tell("copy", source, target).copy(source, target, start, length)

    def rename(self, source: str, target: str) -> None:
        self._tell("rename", source, target).rename(source, target)

    def link(self, source: str, target: str) -> bool:
        return self._tell("link", source, target).link(source, target)

    def unlink(self, path: str) -> None:
        self._tell("unlink", path).unlink(path)

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        self._tell("mkdir", path).mkdir(path, like, private=private)

    def remove_tree(self, path: str) -> None:
        self._tell("remove_tree", path).remove_tree(path)

    def fsync(self, path: str) -> None:
        self._tell("fsync", path).fsync(path)

    def fsync_dir(self, path: str) -> None:
        self._tell("fsync_dir", path).fsync_dir(path)

    def lock(self, log_dir: str, *, shared: bool = False) -> Lock:
        return self._tell("lock", log_dir).lock(log_dir, shared=shared)

    def lock_holder(self, log_dir: str) -> str | None:
        return self._tell("lock_holder", log_dir).lock_holder(log_dir)


class _WatchedSource:
    def __init__(self, source: ByteSource, path: str, before: Before) -> None:
        self._source, self._path, self._before = source, path, before

    def size(self) -> int:
        return self._source.size()

    def read_into(self, view: memoryview, position: int, floor: int) -> int:
        self._before(Operation("read", self._path))
        return self._source.read_into(view, position, floor)

    def close(self) -> None:
        self._source.close()


class _WatchedOutput:
    def __init__(self, output: Output, path: str, before: Before) -> None:
        self._output, self._path, self._before = output, path, before

    def write(self, chunks: Sequence[Chunk]) -> None:
        self._before(Operation("append", self._path))
        self._output.write(chunks)

    def copy_from(self, path: str) -> None:
        self._before(Operation("append", self._path, path))
        self._output.copy_from(path)

    def start_writeback(self) -> None:
        self._output.start_writeback()

    def close(self, *, sync: bool, mtime_ms: int | None = None) -> None:
        self._before(Operation("close", self._path))
        self._output.close(sync=sync, mtime_ms=mtime_ms)

    def abandon(self) -> None:
        self._output.abandon()

    def remove(self) -> None:
        self._before(Operation("remove", self._path))
        self._output.remove()
