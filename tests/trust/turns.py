"""Threads that take turns: exactly one runs at a time; a seeded random choice selects it at every operation."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.trust.shared_disk import Dead, Killed


class Actor:
    """One process: ``work`` returns its outcome. It starts at operation ``starts_at`` of all actors, or when no other is left,
    and is killed at its own operation ``killed_at``."""

    def __init__(self, name: str, *, starts_at: int = 0, killed_at: int | None = None) -> None:
        self.name, self.starts_at, self.killed_at = name, starts_at, killed_at
        self.work: Callable[[], Any] = lambda: None
        self.steps = 0
        self.over = False
        self.killed = False
        self.ended = False
        self.uninterrupted = False
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.gate = threading.Semaphore(0)


class Schedule:
    """Runs actors to their ends. ``trace``, if it is a list, records every operation.

    :param switch: the probability that the turn passes on at an operation
    :param at_end: called with the name of each actor that ends or is killed
    """

    def __init__(self, chance: random.Random, switch: float, at_end: Callable[[str], None]) -> None:
        self._chance, self._switch, self._at_end = chance, switch, at_end
        self.actors: list[Actor] = []
        self.steps = 0
        self.trace: list[str] | None = None
        self._done = threading.Semaphore(0)

    def turn_of(self, actor: Actor) -> Callable[[str, str], None]:
        """Called by an actor before each operation."""

        def turn(operation: str, path: str) -> None:
            self._turn(actor, operation, path)

        return turn

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

    def _turn(self, actor: Actor, operation: str, path: str) -> None:
        if actor.killed:
            raise Dead
        self.steps += 1
        actor.steps += 1
        if not actor.uninterrupted and self._chance.random() < self._switch:
            chosen = self._next()
            if chosen is not actor:
                chosen.gate.release()
                actor.gate.acquire()
        if self.trace is not None:
            self.trace.append(f"{actor.name:8} {operation:7} {path}")
        if actor.killed_at == actor.steps:
            actor.killed = actor.over = True
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
        actor.ended = actor.over = True
        self._at_end(actor.name)
        if all(each.ended for each in self.actors):
            self._done.release()
        else:
            self._next().gate.release()
