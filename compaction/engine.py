"""The interface of the engines that run the tasks of a command (``Engine``), and the values that tasks exchange.

``compaction.engines.local`` runs tasks in worker processes of this machine, ``compaction.engines.spark`` as Spark jobs; the
results are equal. Functions are sent to other processes: those of a module, or ``partial`` objects of them. They must be small:
Spark writes large ones to files, and those of pass 1 have the run's secret. Everything that grows with the number of logs is
a part of a task, or ``known`` to all of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from compaction.screen.progress import Progress

T = TypeVar("T")
R = TypeVar("R")

#: jobs of a certification or a count that read less are short, and are not shown as passes
SHOWN_BYTES = 32 << 20

#: the address of a value: the number of a log, map or topic, and a part of it
Place = tuple[int, Any]
#: a value for another task
Item = tuple[Place, Any]
#: a value that a task emits; without a place it is for the driver
Emission = tuple[Place | None, Any]
#: values by place
Items = Iterable[tuple[Place, Iterable[Any]]]


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

    @contextmanager
    def shown(self, progress: Progress | None) -> Iterator[Progress | None]:
        """The progress that shows the job in the block, if it is a pass; all of its bytes count at the end, not after an
        error."""
        if self.name is None or progress is None:
            yield None
            return
        progress.start(self.name, sum(self.task_bytes))
        yield progress
        progress.done(self.name)


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


class Shuffle(Protocol):
    """The values that tasks have emitted, in parts. An engine may run the tasks when its results or its parts are needed, and
    again if parts are lost."""

    @property
    def parts(self) -> int:
        """Their number."""

    @property
    def results(self) -> list[Any]:
        """What was emitted for the driver, in no order."""

    def close(self) -> None:
        """Its values are not needed any more."""


@dataclass(frozen=True)
class Source:
    """What tasks get. Their function is called with those of the three that are given, in this order.

    :ivar tasks: a value for each task; with ``items`` one for each part
    :ivar items: a shuffle of the same engine: each task gets the ``Items`` of one part
    :ivar known: the same for all tasks; it may be large
    """

    tasks: Sequence[Any] | None = None
    items: Shuffle | None = None
    known: Any = None

    def of(self, function: Callable[..., R]) -> Callable[[Any, Any, Any], R]:
        """``function`` with all three arguments."""
        given = self.tasks is not None, self.items is not None, self.known is not None
        return partial(_call, function, given)

    def __len__(self) -> int:
        """The number of tasks."""
        return len(self.tasks or ()) if self.items is None else self.items.parts

    @staticmethod
    def over(source: Inputs) -> Source:
        return source if isinstance(source, Source) else Source(source)


def _call(function: Callable[..., R], given: tuple[bool, bool, bool], *arguments: Any) -> R:
    return function(*(argument for argument, is_given in zip(arguments, given, strict=True) if is_given))


#: what tasks get: a source, or the values of its tasks alone
Inputs = Source | Sequence[Any]
#: emits values for each task
Emit = Callable[..., Iterable[Emission]]


class Places(Protocol):
    """The part of each place; it is sent to tasks."""

    @property
    def parts(self) -> int:
        """Their number."""

    def __call__(self, place: Place) -> int:
        """Below ``parts``."""


class Engine(Protocol):
    """Runs tasks.

    :raises CompactionError: the engine fails; errors of tasks are raised as they are, if the engine does not repeat the tasks
    """

    @property
    def cores(self) -> int:
        """Number of tasks that run concurrently."""

    def run(self, job: Job, source: Inputs, work: Callable[..., R]) -> list[R]:
        """The result of ``work`` for each task, in order."""

    def shuffle(self, job: Job, source: Inputs, emit: Emit, places: Places, *, merges: bool = False) -> Shuffle:
        """Brings the values that ``emit`` emits for each task together by place. No named file contains them.

        :param merges: each place comes once, with all of its values; else it may come several times
        """


@dataclass(frozen=True)
class ByPlace:
    """The part of a place by its numbers. Consecutive parts of a large log have different ones."""

    parts: int

    def __call__(self, place: Place) -> int:
        number, part = place
        return int((31 * number + part) % self.parts)


def exchange(
    engine: Engine,
    job: Job,
    tasks: Sequence[T],
    emit: Callable[[T], Iterable[Item]],
    join: Callable[[Iterable[Item]], Iterable[R]],
    reducers: int,
) -> list[R]:
    """The results of ``join`` over the items that ``emit`` emits for each of ``tasks``, in no order.

    :param join: called with all items of some places, in no order; the items are read one at a time
    :param reducers: number of calls of ``join``
    """
    shuffle = engine.shuffle(job, tasks, emit, ByPlace(reducers))
    try:
        joined = engine.run(Job(job.description), Source(items=shuffle), partial(_join, join))
    finally:
        shuffle.close()
    return [result for results in joined for result in results]


def _join(join: Callable[[Iterable[Item]], Iterable[R]], items: Items) -> list[R]:
    return list(join((place, value) for place, values in items for value in values))


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
