"""A disk in memory that several processes share, one operation at a time, and their locks on it.

Semantics are those of POSIX: a name is created once, a rename replaces its target at once, an open file outlives its name.
Every operation first waits for the actor's turn. A kill loses nothing that was written.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

from compaction.errors import LockedError, StorageError
from compaction.files.filesystem import File, FileRange, FileStat, base_name, parent, storage_errors
from tests.files.faults import ReadAnywhere

#: waits for the turn; takes the operation's name and its path
Turn = Callable[[str, str], None]


class Killed(BaseException):
    """The process ends here; not an ``Exception``, so that nothing handles it."""


class Dead(Killed):
    """The process has already ended."""


@dataclass(eq=False)
class Inode:
    """A file: its bytes, times and inode number."""

    number: int
    data: bytes = b""
    mtime_ns: int = 0
    ctime_ns: int = 0

    def stat(self) -> FileStat:
        """The result of ``stat``."""
        times = {"mtime_ns": self.mtime_ns, "ctime_ns": self.ctime_ns}
        owner = {"mode": 0o644, "uid": os.geteuid(), "gid": os.getegid()}
        return FileStat(len(self.data), inode=self.number, is_dir=False, is_file=True, device=1, **times, **owner)


class Disk:
    """Directories of files; ``None`` is a directory."""

    def __init__(self) -> None:
        self.directories: dict[str, dict[str, Inode | None]] = {"/": {}}
        self._numbers: dict[str, int] = {}
        self._count = 100
        self._clock = 1_650_000_000_000_000_000

    def now(self) -> int:
        """The time, which advances with each change."""
        self._clock += 1_000_000
        return self._clock

    def new_inode(self) -> Inode:
        self._count += 1
        moment = self.now()
        return Inode(self._count, b"", moment, moment)

    def names(self, directory: str) -> dict[str, Inode | None]:
        found = self.directories.get(directory)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return found

    def file(self, path: str) -> Inode:
        inode = self.names(parent(path)).get(base_name(path))
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return inode

    def link(self, path: str, inode: Inode) -> None:
        names, name = self.names(parent(path)), base_name(path)
        if name in names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        names[name] = inode
        inode.ctime_ns = self.now()

    def make_directory(self, path: str) -> None:
        if path not in self.directories:
            self.make_directory(parent(path))
            self.directories[path] = {}
            self.names(parent(path))[base_name(path)] = None
            self._count += 1
            self._numbers[path] = self._count

    def stat(self, path: str) -> FileStat | None:
        if path in self.directories:
            number = self._numbers.get(path, 1)
            return FileStat(0, 0, 0o755, os.geteuid(), os.getegid(), number, is_dir=True, is_file=False, device=1)
        inode = self.directories.get(parent(path), {}).get(base_name(path))
        return None if inode is None else inode.stat()

    def rename(self, source: str, target: str) -> None:
        if source in self.directories:
            for path in [path for path in self.directories if path == source or path.startswith(source + "/")]:
                self.directories[target + path[len(source) :]] = self.directories.pop(path)
                self._numbers[target + path[len(source) :]] = self._numbers.pop(path)
            del self.names(parent(source))[base_name(source)]
            self.names(parent(target))[base_name(target)] = None
            return
        inode = self.file(source)
        if self.names(parent(target)).get(base_name(target)) is inode:
            # renaming one hard link to another of the same file does nothing
            return
        inode.ctime_ns = self.now()
        del self.names(parent(source))[base_name(source)]
        self.names(parent(target))[base_name(target)] = inode

    def remove_tree(self, path: str) -> None:
        for each in [each for each in self.directories if f"{each}/".startswith(f"{path}/")]:
            del self.directories[each]
        self.directories.get(parent(path), {}).pop(base_name(path), None)


@dataclass
class LockTable:
    """Locks within a domain: other domains do not see them."""

    held: dict[tuple[Hashable, str], list[tuple[str, bool]]] = field(default_factory=dict)

    def take(self, domain: Hashable, log_dir: str, who: str, *, shared: bool) -> None:
        """:raises LockedError: another actor of the domain holds it"""
        holders = self.held.setdefault((domain, log_dir), [])
        if any(not (shared and theirs) for _, theirs in holders):
            raise LockedError(f"log directory is in use: {holders[0][0]} holds .lock", path=log_dir)
        holders.append((who, shared))

    def holder(self, domain: Hashable, log_dir: str, who: str) -> str | None:
        """The other actor that holds it."""
        return next((other for other, _ in self.held.get((domain, log_dir), []) if other != who), None)

    def drop(self, who: str, log_dir: str | None = None) -> None:
        """Release the locks of an actor, as its end does."""
        for (_, path), holders in self.held.items():
            if log_dir in (None, path):
                holders[:] = [each for each in holders if each[0] != who]


class ActorFiles:
    """The disk as one process sees it; see ``compaction.files.filesystem.FileSystem``."""

    def __init__(self, disk: Disk, locks: LockTable, who: str, domain: Hashable, turn: Turn) -> None:
        self.disk, self.locks, self.who, self.domain = disk, locks, who, domain
        self.turn: Final = turn

    # reading

    def listdir(self, path: str) -> list[str]:
        self.turn("list", path)
        with storage_errors(path, "list the directory"):
            return sorted(self.disk.names(path))

    def stat(self, path: str) -> FileStat | None:
        self.turn("stat", path)
        return self.disk.stat(path)

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        self.turn("read", path)
        with storage_errors(path, "read"):
            data = self.disk.file(path).data
        return data[start:] if length is None else data[start : start + length]

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        if end is None:
            return ReadAnywhere(self.read_bytes, path)
        self.turn("open", path)
        with storage_errors(path, "open"):
            return Reader(self.disk.file(path), lambda: self.turn("read", path))

    def real_path(self, path: str) -> FileRange:
        self.turn("stat", path)
        found = self.disk.stat(path)
        return FileRange(path, 0, 0 if found is None else found.size)

    # changing

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        output = Writer(self, path)
        output.write([data])
        output.close(sync=False, mtime_ms=None if mtime_ns is None else mtime_ns // 1_000_000)

    def link_new(self, path: str, data: bytes, like: str) -> bool:
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        self.write_file(temporary, data)
        try:
            self.turn("link", path)
            with storage_errors(path, "make"):
                self.disk.link(path, self.disk.file(temporary))
        except StorageError as error:
            if isinstance(error.__cause__, FileExistsError):
                return False
            raise
        finally:
            self.unlink(temporary)
        return True

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> Writer:
        return Writer(self, path)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        data = self.read_bytes(source, start, length)
        found = self.stat(source)
        self.write_file(target, data, mtime_ns=None if found is None else found.mtime_ns)

    def rename(self, source: str, target: str) -> None:
        self.turn("rename", source)
        with storage_errors(source, f"rename to {base_name(target)}"):
            self.disk.rename(source, target)

    def link(self, source: str, target: str) -> bool:
        self.turn("second name", source)
        with storage_errors(source, f"link as {base_name(target)}"):
            try:
                self.disk.link(target, self.disk.file(source))
            except FileExistsError:
                return False
        return True

    def unlink(self, path: str) -> None:
        self.turn("unlink", path)
        self.disk.directories.get(parent(path), {}).pop(base_name(path), None)

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        self.turn("mkdir", path)
        self.disk.make_directory(path)

    def remove_tree(self, path: str) -> None:
        self.turn("remove", path)
        self.disk.remove_tree(path)

    def fsync(self, path: str) -> None:
        self.turn("fsync", path)
        with storage_errors(path, "flush to disk"):
            self.disk.file(path)

    def fsync_dir(self, path: str) -> None:
        """Nothing is lost here. No turn is taken: the operation has no visible effect."""

    def lock(self, log_dir: str, *, shared: bool = False) -> HeldLock:
        self.turn("lock", log_dir)
        self.locks.take(self.domain, log_dir, self.who, shared=shared)
        return HeldLock(self, log_dir)

    def copy_inside(self, source: str, target: str) -> bool:
        return False

    def exchange(self, first: str, second: str) -> bool:
        return False

    def lock_holder(self, log_dir: str) -> str | None:
        self.turn("lock?", log_dir)
        return self.locks.holder(self.domain, log_dir, self.who)


class HeldLock:
    """A lock of the table."""

    def __init__(self, files: ActorFiles, log_dir: str) -> None:
        self._files, self._log_dir = files, log_dir

    def release(self) -> None:
        self._files.turn("unlock", self._log_dir)
        self._files.locks.drop(self._files.who, self._log_dir)


class Reader(File):
    """An open file: it can be read even after its name was removed."""

    def __init__(self, inode: Inode, turn: Callable[[], None]) -> None:
        self._inode, self._turn = inode, turn

    def size(self) -> int:
        return len(self._inode.data)

    def pread(self, view: memoryview, position: int) -> int:
        self._turn()
        data = self._inode.data[position : position + len(view)]
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Nothing to release."""


class Writer:
    """A file being written; a kill during a write leaves half of its bytes."""

    def __init__(self, files: ActorFiles, path: str) -> None:
        self._files, self._path = files, path
        files.turn("create", path)
        self._inode = files.disk.new_inode()
        with storage_errors(path, "write"):
            files.disk.link(path, self._inode)

    def write(self, chunks: Sequence[bytes | memoryview]) -> None:
        data = b"".join(chunks)
        try:
            self._files.turn("write", self._path)
        except Dead:
            raise
        except Killed:
            self._append(data[: len(data) // 2])
            raise
        self._append(data)

    def _append(self, data: bytes) -> None:
        self._inode.data += data
        self._inode.mtime_ns = self._inode.ctime_ns = self._files.disk.now()

    def copy_from(self, path: str) -> None:
        self.write([self._files.read_bytes(path)])

    def start_writeback(self) -> None:
        """Nothing."""

    def close(self, *, sync: bool, mtime_ms: int | None = None) -> None:
        self._files.turn("close", self._path)
        if mtime_ms is not None:
            self._inode.mtime_ns, self._inode.ctime_ns = mtime_ms * 1_000_000, self._files.disk.now()

    def abandon(self) -> None:
        """Nothing to release."""

    def remove(self) -> None:
        self._files.unlink(self._path)
