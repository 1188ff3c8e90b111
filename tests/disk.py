"""One disk for the tests: files in memory, with their states after a kill or a power loss, and hooks on every operation.

The model is the strictest that POSIX allows: a file's bytes are safe after ``fsync`` of the file, a directory's names after
``fsync_dir``. After a kill everything is there. After a power loss, of the changes to a directory since its last
``fsync_dir`` any subset may have reached the disk (a rename is one change), and a file that was not synced has its old bytes,
half of the new ones, or all of them. After a failed flush the bytes of a file are never durable, even if a later flush succeeds
(Linux marks the pages clean). Renaming a directory is durable at once.

A file that is written in several steps exists from its creation on. It keeps its number over a crash, also under two names;
its ``ctime`` changes with every change, renames included. An open file is read as it is now, even after its name was removed.

``FaultyFileSystem`` stops or fails before a change. ``WatchedFileSystem`` is a hook on every operation, reads included, of this
disk or of real files: it watches, stops, fails, and, overridden, lies.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from compaction.errors import StorageError
from compaction.files.filesystem import (
    Chunk,
    DiskFileSystem,
    File,
    FileStat,
    Output,
    base_name,
    join,
    normal,
    parent,
)

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Names = dict[str, "Inode"]

_DEVICE = 1


class Stopped(BaseException):
    """The process ends here; not an ``Exception``, so that nothing handles it."""


@dataclass(eq=False)
class Inode:
    """A file: its bytes now, and those that are safe; ``poisoned`` ones are never safe."""

    data: bytes
    safe: bytes
    mtime_ns: int
    mode: int = 0o644
    synced: bool = False
    number: int = 0
    ctime_ns: int = 0
    poisoned: bool = False


class Change(NamedTuple):
    """Of a directory's names, in one step: ``removed`` goes, ``added`` is one of the file."""

    removed: str | None
    added: str | None = None
    inode: Inode | None = None

    def apply(self, names: Names) -> None:
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None and self.inode is not None:
            names[self.added] = self.inode


@dataclass
class Directory:
    """A directory: its names now, those that are safe, and the changes in between."""

    names: Names = field(default_factory=dict)
    safe: Names = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


class MemorySource(File):
    """An open file."""

    def __init__(self, inode: Inode) -> None:
        self._inode = inode

    def size(self) -> int:
        return len(self._inode.data)

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        return self._inode.data[start : None if length is None else start + length]


class MemoryOutput(Output):
    """A file being written."""

    def __init__(self, fs: FaultyFileSystem, path: str) -> None:
        self._fs, self.path = fs, path

    def write(self, chunks: Sequence[Chunk]) -> None:
        self._fs.append(self.path, b"".join(chunks))

    def close(self, *, sync: bool, mtime_ns: int | None = None) -> None:
        if mtime_ns is not None:
            self._fs.inode(self.path).mtime_ns = mtime_ns
        if sync:
            self._fs.fsync(self.path)

    def remove(self) -> None:
        self._fs.unlink(self.path)


class FaultyFileSystem(DiskFileSystem):
    """Files in memory. ``stop_before`` is the number of the change (from 0) that does not happen any more."""

    def __init__(self) -> None:
        self.stop_before: int | None = None
        self.done = 0
        self.log: list[str] = []
        self.fail: Callable[[str, str], str | None] = lambda operation, path: None
        self._directories: dict[str, Directory] = {}
        self._clock, self._numbers = 1_600_000_000_000_000_000, 0

    # reading

    def listdir(self, path: str) -> list[str]:
        directory = normal(path)
        below = {base_name(other) for other in self._directories if other != "/" and parent(other) == directory}
        return sorted({*self._dir(path).names, *below})

    def stat(self, path: str) -> FileStat | None:
        if normal(path) in self._directories:
            return FileStat(0, 0, 0o755, os.geteuid(), 0, is_dir=True, is_file=False)
        directory = self._directories.get(parent(path))
        inode = None if directory is None else directory.names.get(base_name(path))
        if inode is None:
            return None
        return FileStat(
            len(inode.data), inode.mtime_ns, inode.mode, 0, inode.number, is_dir=False, is_file=True, device=_DEVICE,
            ctime_ns=inode.ctime_ns,
        )  # fmt: skip

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        data = self.inode(path).data
        return data[start:] if length is None else data[start : start + length]

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        return MemorySource(self.inode(path))

    # changing

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        self._step("write", path)
        directory, name = self._dir(parent(path)), base_name(path)
        if name in directory.names:
            raise StorageError("cannot write (File exists)", path=path)
        now = self._tick()
        self._numbers += 1
        inode = Inode(data, b"", now if mtime_ns is None else mtime_ns, number=self._numbers, ctime_ns=now)
        found = None if like is None else self.stat(like)
        if found is not None and found.is_file:
            inode.mode = found.mode
        self._change(directory, Change(None, name, inode))

    def put(self, path: str, data: bytes) -> None:
        """Give a file these bytes, whatever it held before, as no run does."""
        if self.stat(path) is None:
            self.write_file(path, data)
        else:
            self._step("put", path)
            self.write(self.inode(path), data)

    def append(self, path: str, data: bytes) -> None:
        """Append bytes to a file that is being written."""
        inode = self.inode(path)
        self.write(inode, inode.data + data)

    def link_new(self, path: str, data: bytes, like: str) -> bool:
        if self.stat(path) is not None:
            return False
        self.write_file(path, data)
        self.fsync(path)
        self.fsync_dir(parent(path))
        return True

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> MemoryOutput:
        self.write_file(path, b"", like=like)
        return MemoryOutput(self, path)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        self.write_file(target, self.read_bytes(source, start, length), like=source, mtime_ns=self.inode(source).mtime_ns)

    def rename(self, source: str, target: str) -> None:
        self._step("rename", source)
        if normal(source) in self._directories:
            self._rename_directory(normal(source), normal(target))
            return
        inode, directory = self.inode(source), self._dir(parent(source))
        assert parent(source) == parent(target)
        # a rename between two names of one file has no effect
        if directory.names.get(base_name(target)) is not inode:
            self._change(directory, Change(base_name(source), base_name(target), inode))
            inode.ctime_ns = self._tick()

    def link(self, source: str, target: str) -> bool:
        self._step("second name", source)
        if self.stat(target) is not None:
            return False
        inode = self.inode(source)
        self._change(self._dir(parent(target)), Change(None, base_name(target), inode))
        inode.ctime_ns = self._tick()
        return True

    def unlink(self, path: str) -> None:
        self._step("unlink", path)
        if self.stat(path) is not None:
            self._change(self._dir(parent(path)), Change(base_name(path)))

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        self._step("mkdir", path)
        for part in [*reversed(Path(path).parents), Path(path)]:
            self._directories.setdefault(str(part), Directory())

    def remove_tree(self, path: str) -> None:
        self._step("remove_tree", path)
        for each in [each for each in self._directories if f"{each}/".startswith(f"{normal(path)}/")]:
            del self._directories[each]
        self._dir(parent(path)).names.pop(base_name(path), None)

    def lock(self, log_dir: str, *, shared: bool = False) -> ExitStack:
        return ExitStack()

    def lock_holder(self, log_dir: str) -> str | None:
        return None

    def fsync(self, path: str) -> None:
        self._step("fsync", path)
        inode = self.inode(path)
        if not inode.poisoned:
            inode.safe, inode.synced = inode.data, True

    def fsync_dir(self, path: str) -> None:
        self._step("fsync_dir", path)
        directory = self._dir(path)
        directory.safe, directory.changes = dict(directory.names), []

    def run_until(self, step: int | None, work: Callable[[Self], object]) -> Self:
        """Run ``work``, stopped before its change number ``step``; returns the files."""
        self.stop_before, self.done = step, 0
        with suppress(Stopped):
            work(self)
        return self

    # after the end

    def after_kill(self) -> Self:
        """As a new process finds the files after ``kill -9``."""
        return self._reborn(lambda directory: directory.names, lambda inode: inode.data)

    def after_power_loss(self, seed: int | None) -> Self:
        """A state after a power loss: with ``None`` only durable changes are left, else also a random choice of the others."""
        chance = random.Random(seed)

        def names(directory: Directory) -> Names:
            found = dict(directory.safe)
            for change in directory.changes:
                if seed is not None and chance.random() < 0.5:
                    change.apply(found)
            return found

        def data(inode: Inode) -> bytes:
            if inode.synced:
                return inode.data
            return inode.safe if seed is None else chance.choice((inode.safe, inode.data[: len(inode.data) // 2], inode.data))

        return self._reborn(names, data)

    def content(self) -> frozenset[tuple[str, str, bytes]]:
        """All files (directory, name, bytes) with the other properties that recovery reads, and empty directories."""
        return frozenset(
            (path, f"{name} {inode.mtime_ns}", inode.data)
            for path, directory in self._directories.items()
            for name, inode in [("", Inode(b"", b"", 0)), *directory.names.items()]
        )

    def paths(self) -> list[str]:
        """All files, sorted."""
        return sorted(join(path, name) for path, directory in self._directories.items() for name in directory.names)

    def inodes(self) -> list[Inode]:
        """Of all files, each once, whatever names it has."""
        found = {inode.number: inode for directory in self._directories.values() for inode in directory.names.values()}
        return [*found.values()]

    def copy_out(self, path: str, target: Path) -> None:
        """Write the files of a directory to one on disk, with their mtimes."""
        target.mkdir(parents=True)
        for name, inode in self._dir(path).names.items():
            (target / name).write_bytes(inode.data)
            os.utime(target / name, ns=(inode.mtime_ns, inode.mtime_ns))

    def clone(self) -> Self:
        """A copy of the files, synced or not."""
        assert not any(directory.changes for directory in self._directories.values()), "only what is settled can be cloned"
        return self._copy(lambda directory: directory.names, replace)

    def settle(self) -> Self:
        """Make everything safe: the starting point of a test."""
        for directory in self._directories.values():
            directory.safe, directory.changes = dict(directory.names), []
            for inode in directory.names.values():
                inode.safe, inode.synced = inode.data, True
        return self

    def _reborn(self, names: Callable[[Directory], Names], data: Callable[[Inode], bytes]) -> Self:
        def reborn(inode: Inode) -> Inode:
            content = data(inode)
            return replace(inode, data=content, safe=content, synced=True, poisoned=False)

        other = self._copy(names, reborn)
        other._clock += 10**9
        return other

    def _copy(self, names: Callable[[Directory], Names], twin: Callable[[Inode], Inode]) -> Self:
        """A file with two names has one twin."""
        other, twins = type(self)(), dict[int, Inode]()
        other._clock, other._numbers = self._clock, self._numbers
        for path, directory in self._directories.items():
            fresh: Names = {}
            for name, inode in names(directory).items():
                if inode.number not in twins:
                    twins[inode.number] = twin(inode)
                fresh[name] = twins[inode.number]
            other._directories[path] = Directory(fresh, dict(fresh))
        return other

    def _step(self, operation: str, path: str) -> None:
        if self.done == self.stop_before:
            raise Stopped
        reason = self.fail(operation, path)
        if reason is not None:
            raise StorageError(f"cannot {operation}: {reason}", path=path)
        self.done += 1
        self.log.append(f"{operation} {base_name(path)}")

    def write(self, inode: Inode, data: bytes) -> None:
        """Change the bytes of an open file, whatever its name is now."""
        inode.data, inode.synced = data, False
        inode.mtime_ns = inode.ctime_ns = self._tick()

    def _change(self, directory: Directory, change: Change) -> None:
        change.apply(directory.names)
        directory.changes.append(change)

    def _rename_directory(self, source: str, target: str) -> None:
        for path in [path for path in self._directories if path == source or path.startswith(source + "/")]:
            self._directories[target + path[len(source) :]] = self._directories.pop(path)

    def _dir(self, path: str) -> Directory:
        found = self._directories.get(normal(path))
        if found is None:
            raise StorageError("no such directory", path=path)
        return found

    def inode(self, path: str) -> Inode:
        """A file, for tests to change."""
        inode = self._dir(parent(path)).names.get(base_name(path))
        if inode is None:
            raise StorageError("no such file", path=path)
        return inode

    def _tick(self) -> int:
        self._clock += 1_000_000
        return self._clock


def crash_states(make: Callable[[int | None], FaultyFileSystem], seeds: int = 3) -> Iterator[tuple[str, FaultyFileSystem]]:
    """What is left after a stop before every step of a run: a name, and the files after a kill or a power loss, each once.

    :param make: runs to the given step, or to the end, and returns the files; must be deterministic
    """
    seen = set()
    for step in range(make(None).done + 1):
        stopped = make(step)
        states = [(f"kill before step {step}", stopped.after_kill())]
        for seed in [None, *range(seeds)]:
            states.append((f"power loss before step {step}, choice {seed}", stopped.after_power_loss(seed)))
        for name, state in states:
            if (content := state.content()) not in seen:
                seen.add(content)
                yield name, state


# hooks


#: the operations that change something
CHANGES = frozenset(
    ("create", "append", "close", "copy", "fsync", "fsync_dir", "link", "link_sync", "mkdir", "release")
    + ("remove", "remove_tree", "rename", "unlink", "write_file")
)
#: those that take space
GROWS = frozenset(("create", "append", "close", "copy", "fsync", "link", "mkdir", "write_file", "rename"))


class Operation(NamedTuple):
    """One operation of a run, by its number; ``target`` is a second path."""

    number: int
    name: str
    path: str
    target: str = ""

    def __str__(self) -> str:
        return f"#{self.number} {self.name} {self.path}" + (f" -> {self.target}" if self.target else "")


Before = Callable[[Operation], None]


def _hooked(method: F, name: str = "", *, target: bool = False) -> F:
    """An operation that the inner file system carries out, as ``name``; with a second path if ``target``."""
    of_inner = method.__name__

    def call(self: WatchedFileSystem, path: str, *given: Any, **named: Any) -> Any:
        action = partial(getattr(self.inner, of_inner), path, *given, **named)
        return self.do(name or of_inner, path, action, given[0] if target else "")

    return cast(F, call)


class WatchedFileSystem:
    """A file system with a hook; ``log`` has the operations so far.

    :param before: called before each operation; what it raises is raised in its place
    """

    def __init__(self, inner: DiskFileSystem, before: Before = lambda _: None) -> None:
        self.inner, self._before = inner, before
        self.log: list[Operation] = []

    def carry_out(self, operation: Operation, action: Callable[[], T]) -> T:
        """Carry an operation out."""
        self._before(operation)
        return action()

    def do(self, name: str, path: str, action: Callable[[], T], target: str = "") -> T:
        """Carry out what is to be counted."""
        operation = Operation(len(self.log), name, path, target)
        self.log.append(operation)
        return self.carry_out(operation, action)

    def pread(self, path: str, source: File, view: memoryview, position: int) -> int:
        """One read of a file opened to be read sequentially."""
        return self.do("pread", path, lambda: source.pread(view, position))

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        if end is None:
            return ReadAnywhere(self, path)
        name = "open uncached" if uncached else "open"
        return WatchedSource(self, path, self.do(name, path, lambda: self.inner.open(path, start, end, uncached=uncached)))

    def link_new(self, path: str, data: bytes, like: str) -> bool:
        made = self.do("link", path, lambda: self.inner.link_new(path, data, like))
        self.do("link_sync", parent(path), lambda: None)
        return made

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> Output:
        made = self.do("create", path, lambda: self.inner.create(path, like, write_behind=write_behind))
        return WatchedOutput(self, path, made)

    listdir = _hooked(DiskFileSystem.listdir)
    stat = _hooked(DiskFileSystem.stat)
    read_bytes = _hooked(DiskFileSystem.read_bytes, "read")
    real_path = _hooked(DiskFileSystem.real_path, "stat")
    write_file = _hooked(DiskFileSystem.write_file)
    copy = _hooked(DiskFileSystem.copy, target=True)
    copy_inside = _hooked(DiskFileSystem.copy_inside, "copy", target=True)
    rename = _hooked(DiskFileSystem.rename, target=True)
    link = _hooked(DiskFileSystem.link, "second name", target=True)
    unlink = _hooked(DiskFileSystem.unlink)
    mkdir = _hooked(DiskFileSystem.mkdir)
    remove_tree = _hooked(DiskFileSystem.remove_tree)
    fsync = _hooked(DiskFileSystem.fsync)
    fsync_dir = _hooked(DiskFileSystem.fsync_dir)
    lock = _hooked(DiskFileSystem.lock)
    lock_holder = _hooked(DiskFileSystem.lock_holder)
    exchange = _hooked(DiskFileSystem.exchange)


class ReadAnywhere(File):
    """A file opened to be read at any position: each read is one ``read_bytes`` of its file system."""

    def __init__(self, fs: WatchedFileSystem, path: str) -> None:
        self._fs, self._path = fs, path

    def size(self) -> int:
        return len(self.read())

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        return self._fs.read_bytes(self._path, start, length)


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


class WatchedOutput(Output):
    """A file being written whose operations are counted."""

    def __init__(self, fs: WatchedFileSystem, path: str, inner: Output) -> None:
        self._fs, self._path, self._inner = fs, path, inner

    def write(self, chunks: Sequence[Chunk]) -> None:
        data = b"".join(chunks)
        self._fs.do("append", self._path, lambda: self._inner.write([data]))

    def close(self, *, sync: bool, mtime_ns: int | None = None) -> None:
        self._fs.do("close", self._path, lambda: self._inner.close(sync=sync, mtime_ns=mtime_ns))

    def remove(self) -> None:
        """As of real files: a file that cannot be removed stays, without an error."""
        self._fs.do("remove", self._path, self._inner.remove)
