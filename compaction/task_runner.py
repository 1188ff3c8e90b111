"""The interface of engines that run the tasks of a command (``TaskRunner``), and the values that tasks exchange.

``compaction.engines.processes`` runs them in worker processes of this machine, ``compaction.spark.pipeline`` as Spark jobs; the
results are equal. Functions are sent to other processes: those of a module, or ``partial`` objects of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
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
