"""The interface of engines that run the tasks of a command (``TaskRunner``), and the values that tasks exchange.

``compaction.engines.processes`` runs them in worker processes of this machine, ``compaction.spark.pipeline`` as Spark jobs; the
results are equal. Functions are sent to other processes: those of a module, or ``partial`` objects of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: jobs of a certification or a count that read less are short, and are not shown as passes
SHOWN_BYTES = 32 << 20

#: the address of an item: the number of a log or topic, and of a part of it
Place = tuple[int, int]
#: a value that a task emits for other tasks
Item = tuple[Place, Any]


class Part(Protocol):
    """The input that a task reads without interruption."""

    @property
    def id(self) -> Hashable:
        """Identifies the part within its pass."""

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""


def size_of(part: Part) -> int:
    return part.size_bytes


@dataclass(frozen=True)
class Job:
    """The display of a job: ``description`` in Spark's UI; the pass ``name``, if any, in the progress.

    :ivar task_bytes: bytes that each task reads
    :ivar writes: the tasks write files
    :ivar in_workers: the tasks take longer than the start of worker processes, however few bytes they read
    """

    description: str
    name: str | None = None
    task_bytes: Sequence[int] = ()
    writes: bool = False
    in_workers: bool = False

    @classmethod
    def reading(cls, name: str, description: str, tasks: Iterable[Iterable[Part]], *, writes: bool = False) -> Job:
        return cls(description, name, [sum(part.size_bytes for part in task) for task in tasks], writes)

    @classmethod
    def sized(cls, name: str, description: str, task_bytes: Sequence[int]) -> Job:
        """A job that is shown as a pass if it reads at least ``SHOWN_BYTES``."""
        return cls(description, name if sum(task_bytes) >= SHOWN_BYTES else None, task_bytes)


@dataclass(frozen=True)
class Reading:
    """What some tasks have read of one log, by one attempt of each.

    An engine may repeat a task whose items are lost, and attempts can differ: a read fails, or a file has changed. So each
    sends its reading with its items to every place that items of the log go to. If the sum of a place equals that of the
    driver, its items are those of the attempts whose results the driver has, or of others with the same results.

    :ivar digest: a hash of what was read; of several tasks the sum, modulo 2**64
    :ivar items: the number of items sent to this place, where they are counted
    :ivar error: why a task has not read everything
    """

    tasks: int = 0
    digest: int = 0
    items: int = 0
    path: str = ""
    error: str | None = None

    @classmethod
    def of(cls, path: str, read: object, error: str | None = None) -> Reading:
        """The reading of a task; ``read`` has a ``repr`` that identifies what was read."""
        digest = blake2b(repr((read, error is None)).encode(), digest_size=8).digest()
        return cls(1, int.from_bytes(digest), 0, path, error)

    def __add__(self, other: Reading) -> Reading:
        digest = (self.digest + other.digest) % 2**64
        errors = [error for error in (self.error, other.error) if error is not None]
        items = self.items + other.items
        return Reading(self.tasks + other.tasks, digest, items, self.path or other.path, min(errors, default=None))

    def difference(self, accepted: Reading) -> str | None:
        """Why the log fails, in one line, if this is the sum of a place and differs from that of the driver without error."""
        if accepted.error is not None or (self.tasks, self.digest) == (accepted.tasks, accepted.digest):
            return None
        if self.error is not None:
            return f"a repeated task failed: {self.error}"
        if self.tasks != accepted.tasks:
            return f"{accepted.path}: results of {self.tasks} tasks, expected those of {accepted.tasks}; run it again"
        hint = "make sure that nothing else writes here, and run again"
        return f"{accepted.path}: a repeated task read other batches than before; {hint}"


class TaskRunner(Protocol):
    """Runs tasks."""

    @property
    def cores(self) -> int:
        """Number of tasks that run concurrently."""

    def run(self, job: Job, tasks: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """The result of ``work`` for each of ``tasks``, in order."""

    def exchange(
        self,
        job: Job,
        tasks: Sequence[T],
        emit: Callable[[T], Iterable[Item]],
        join: Callable[[Iterable[Item]], Iterable[R]],
        reducers: int,
    ) -> list[R]:
        """The results of ``join`` over the items that ``emit`` emits for each of ``tasks``, in no order.

        :param join: called with all items of some places, in no order; the items are read one at a time
        :param reducers: the maximum number of calls of ``join``; ``reducer_of`` selects the call of an item
        """


def reducer_of(place: Place, reducers: int) -> int:
    """The number of the reducer that joins the items of a place. Consecutive parts of a large log have different reducers."""
    number, part = place
    return (31 * number + part) % reducers


def pack(items: Sequence[T], size_of: Callable[[T], int], target_bytes: int) -> list[list[T]]:
    """Groups adjacent items until each group reaches ``target_bytes``; items are not split."""
    packs: list[list[T]] = []
    filled = target_bytes
    for item in items:
        if filled >= target_bytes:
            packs.append([])
            filled = 0
        packs[-1].append(item)
        filled += size_of(item)
    return packs


class _Worker:
    """State of this worker process."""

    frozen = False


def freeze_gc() -> None:
    """Exclude all existing objects from later collections; called at the start of each task. Only the first call has an
    effect."""
    if not _Worker.frozen:
        _Worker.frozen = True
        gc.freeze()
