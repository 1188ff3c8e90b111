"""Processes that share one disk and its locks, one operation at a time: threads that take turns.

Exactly one runs at a time; a seeded random choice selects it at every operation. A kill loses nothing that was written, and
leaves half of a write.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from compaction.errors import LockedError
from compaction.files.filesystem import Chunk
from tests.disk import FaultyFileSystem, WatchedFileSystem, WatchedOutput


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

    def __init__(self, disk: FaultyFileSystem, locks: LockTable, who: str, domain: Hashable, turn: Callable[[], None]) -> None:
        super().__init__(disk, lambda _: turn())
        self.disk, self.locks, self.who, self.domain = disk, locks, who, domain

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> ActorOutput:
        return ActorOutput(self, path, self.do("create", path, lambda: self.disk.create(path, like)))

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        output = self.create(path, like)
        output.write([data])
        output.close(sync=False, mtime_ns=mtime_ns)

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

    def lock(self, log_dir: str, *, shared: bool = False) -> ExitStack:
        self.do("lock", log_dir, lambda: self.locks.take(self.domain, log_dir, self.who, shared=shared))
        held = ExitStack()
        held.callback(self.do, "unlock", log_dir, lambda: self.locks.drop(self.who, log_dir))
        return held

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


class Actor:
    """One process: ``work`` returns its outcome. It starts at operation ``starts_at`` of all actors, or when no other is left,
    and is killed at its own operation ``killed_at``."""

    def __init__(self, name: str, *, starts_at: int = 0, killed_at: int | None = None) -> None:
        self.name, self.starts_at, self.killed_at = name, starts_at, killed_at
        self.work: Callable[[], Any] = lambda: None
        self.steps = 0
        self.killed = self.ended = self.uninterrupted = False
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.gate = threading.Semaphore(0)

    @property
    def over(self) -> bool:
        return self.killed or self.ended


class Schedule:
    """Runs actors to their ends.

    :param switch: the probability that the turn passes on at an operation
    :param at_end: called with the name of each actor that ends or is killed
    """

    def __init__(self, chance: random.Random, switch: float, at_end: Callable[[str], None]) -> None:
        self._chance, self._switch, self._at_end = chance, switch, at_end
        self.actors: list[Actor] = []
        self.steps = 0
        self._done = threading.Semaphore(0)

    @contextmanager
    def uninterrupted(self, actor: Actor) -> Iterator[None]:
        """The actor keeps its turn."""
        actor.uninterrupted = True
        try:
            yield
        finally:
            actor.uninterrupted = False

    def run(self) -> None:
        """Run all actors until the last one has ended."""
        threads = [threading.Thread(target=self._live, args=(actor,), name=actor.name) for actor in self.actors]
        for thread in threads:
            thread.start()
        self._next().gate.release()
        self._done.acquire()
        for thread in threads:
            thread.join()

    def take_turn(self, actor: Actor) -> None:
        """Called by an actor before each operation."""
        if actor.killed:
            raise Dead
        self.steps += 1
        actor.steps += 1
        if not actor.uninterrupted and self._chance.random() < self._switch:
            chosen = self._next()
            if chosen is not actor:
                chosen.gate.release()
                actor.gate.acquire()
        if actor.killed_at == actor.steps:
            actor.killed = True
            self._at_end(actor.name)
            raise Killed

    def _next(self) -> Actor:
        alive = [actor for actor in self.actors if not actor.ended]
        ready = [actor for actor in alive if actor.starts_at <= self.steps]
        return self._chance.choice(ready) if ready else min(alive, key=lambda actor: actor.starts_at)

    def _live(self, actor: Actor) -> None:
        actor.gate.acquire()
        try:
            actor.outcome = actor.work()
        except BaseException as error:
            actor.error = error
        actor.ended = True
        self._at_end(actor.name)
        if all(each.ended for each in self.actors):
            self._done.release()
        else:
            self._next().gate.release()
