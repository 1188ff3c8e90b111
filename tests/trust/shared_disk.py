"""A disk in memory as one of several processes sees it that share it, one operation at a time, and their locks on it.

Before every operation a process waits for its turn. A kill loses nothing that was written, and leaves half of a write.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from compaction.errors import LockedError
from compaction.files.filesystem import Chunk, Lock
from tests.files.faults import FaultyFileSystem
from tests.trust.watched import WatchedFileSystem, WatchedOutput

#: waits for the turn; takes the operation's name and its path
Turn = Callable[[str, str], None]


class Killed(BaseException):
    """The process ends here; not an ``Exception``, so that nothing handles it."""


class Dead(Killed):
    """The process has already ended."""


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


class ActorFiles(WatchedFileSystem):
    """The disk as one process sees it. What a kernel does in several steps takes several turns."""

    def __init__(self, disk: FaultyFileSystem, locks: LockTable, who: str, domain: Hashable, turn: Turn) -> None:
        super().__init__(disk, lambda operation: turn(operation.name, operation.path))
        self.disk, self.locks, self.who, self.domain = disk, locks, who, domain

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> ActorOutput:
        return ActorOutput(self, path, self.do("create", path, lambda: self.disk.create(path, like)))

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        output = self.create(path, like)
        output.write([data])
        output.close(sync=False, mtime_ms=None if mtime_ns is None else mtime_ns // 1_000_000)

    def link_new(self, path: str, data: bytes, like: str) -> bool:
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        self.write_file(temporary, data)
        try:
            return self.link(temporary, path)
        finally:
            self.unlink(temporary)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        data = self.read_bytes(source, start, length)
        found = self.stat(source)
        self.write_file(target, data, mtime_ns=None if found is None else found.mtime_ns)

    def fsync_dir(self, path: str) -> None:
        """Nothing is lost here. No turn is taken: the operation has no visible effect."""

    def lock(self, log_dir: str, *, shared: bool = False) -> Lock:
        self.do("lock", log_dir, lambda: self.locks.take(self.domain, log_dir, self.who, shared=shared))
        return HeldLock(self, log_dir)

    def lock_holder(self, log_dir: str) -> str | None:
        return self.do("lock?", log_dir, lambda: self.locks.holder(self.domain, log_dir, self.who))


class ActorOutput(WatchedOutput):
    """A file being written."""

    def write(self, chunks: Sequence[Chunk]) -> None:
        try:
            super().write(chunks)
        except Dead:
            raise
        except Killed:
            data = b"".join(chunks)
            self._inner.write([data[: len(data) // 2]])
            raise

    def copy_from(self, path: str) -> None:
        self.write([self._fs.read_bytes(path)])


class HeldLock:
    """A lock of the table."""

    def __init__(self, files: ActorFiles, log_dir: str) -> None:
        self._files, self._log_dir = files, log_dir

    def release(self) -> None:
        files = self._files
        files.do("unlock", self._log_dir, lambda: files.locks.drop(files.who, self._log_dir))
