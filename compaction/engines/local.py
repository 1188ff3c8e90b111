"""Runs tasks in worker processes on this machine, without Java.

Tasks exchange values through the spools of the workers; the driver gives each task the positions of its values. A task needs
the same memory as on Spark; between tasks all data is in unnamed files. Small jobs run in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from compaction.engine import Emission, Items, Job, Place, Source
from compaction.engines.limits import usable_cores
from compaction.engines.spool import Piece, Spool
from compaction.engines.workers import Workers

if TYPE_CHECKING:
    from compaction.screen.progress import Progress

R = TypeVar("R")

#: jobs that read less run in this process: a worker takes as long to start
INLINE_BYTES = 32 << 20

#: places with the positions of their values
Placed = list[tuple[Place, Piece]]


class _Shuffled(NamedTuple):
    """See ``compaction.engine.Shuffle``. The values are in the spools of the processes, which end with the engine."""

    results: list[Any]
    placed: Sequence[Placed]

    @property
    def parts(self) -> int:
        return len(self.placed)

    def close(self) -> None: ...


class LocalEngine:
    """Implements ``compaction.engine.Engine``; a context manager that ends the workers.

    :param cores: number of worker processes; by default the cores that this process may use
    :param progress: shows the bytes that the tasks of each pass have read
    """

    def __init__(self, cores: int | None = None, progress: Progress | None = None, inline_bytes: int = INLINE_BYTES) -> None:
        #: number of tasks that run concurrently
        self.cores = cores or usable_cores()
        self._inline_bytes = inline_bytes
        #: shows the bytes that the tasks of each pass have read
        self.progress = progress
        self._workers: Workers | None = None
        #: of the tasks that run in this process
        self._spool = Spool.on_disk()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers and removes all spools. Kills running tasks, too: their results are no longer needed."""
        workers, self._workers = self._workers, None
        self._spool.close()
        if workers is not None:
            workers.close()

    def run(self, job: Job, source: Source | Sequence[Any], work: Callable[..., R]) -> list[R]:
        """The result of ``work`` for each task, in order."""
        return self._map(job, _Run(Source.over(source), work), Source.over(source))

    def shuffle(
        self,
        job: Job,
        source: Source | Sequence[Any],
        emit: Callable[..., Iterable[Emission]],
        place: Callable[[Place], int],
        parts: int,
        *,
        merges: bool = False,
    ) -> _Shuffled:
        """Runs the tasks; the driver has the positions of their values. Each place comes once in any case."""
        shuffled = _Shuffled([], [[] for _ in range(parts)])
        for results, placed in self._map(job, _Emit(Source.over(source), emit), Source.over(source)):
            shuffled.results.extend(results)
            for place_of_piece, piece in placed:
                shuffled.placed[place(place_of_piece)].append((place_of_piece, piece))
        return shuffled

    def _map(self, job: Job, work: Callable[[Any, Spool], R], source: Source) -> list[R]:
        """``work`` of the inputs of each task, in order."""
        with self._shown(job):
            nothing = [None] * len(source)
            placed = nothing if source.items is None else cast(_Shuffled, source.items).placed
            inputs = list(zip(nothing if source.tasks is None else source.tasks, placed, strict=True))
            sizes = job.task_bytes if len(job.task_bytes) == len(inputs) else [0] * len(inputs)
            if self._workers is None:
                if not job.in_workers and sum(job.task_bytes) < self._inline_bytes:
                    return [self._advanced(work(task, self._spool), size) for task, size in zip(inputs, sizes, strict=True)]
                self._workers = Workers(self.cores)
            return self._results(self._workers, inputs, work, sizes)

    @contextmanager
    def _shown(self, job: Job) -> Iterator[None]:
        shown = job.name is not None and self.progress is not None
        if shown:
            self.progress.start(job.name, sum(job.task_bytes))  # type: ignore[union-attr, arg-type]
        try:
            yield
        except BaseException:
            self.close()
            raise
        if shown:
            self.progress.done(job.name)  # type: ignore[union-attr, arg-type]

    def _results(
        self, workers: Workers, inputs: Sequence[Any], work: Callable[[Any, Spool], R], sizes: Sequence[int]
    ) -> list[R]:
        """The results of workers, given the bytes that each task reads. Shows the bytes read so far."""
        results: dict[int, R] = {}
        ended, shown, before = 0, 0, workers.read_bytes()
        for found in workers.results(work, inputs):
            if found is not None:
                number, result = found
                results[number] = result
                ended += sizes[number]
            reached = min(sum(sizes), max(ended, workers.read_bytes() - before))
            if reached > shown:
                self._advanced(None, reached - shown)
                shown = reached
        return [results[number] for number in range(len(inputs))]

    def _advanced(self, result: R, size: int) -> R:
        if size and self.progress is not None:
            self.progress.advance(size)
        return result


class _Run:
    """Runs a task."""

    def __init__(self, source: Source, function: Callable[..., Any]) -> None:
        self._function, self._known = source.of(function), source.known

    def __call__(self, inputs: tuple[Any, Placed | None], _: Spool) -> Any:
        task, placed = inputs
        return self._function(task, None if placed is None else _by_place(placed), self._known)


class _Emit(_Run):
    """Runs a task that emits values: returns those for the driver, and the positions of the others."""

    def __call__(self, inputs: tuple[Any, Placed | None], spool: Spool) -> tuple[list[Any], Placed]:
        results, placed = list[Any](), Placed()
        for place, value in super().__call__(inputs, spool):
            if place is None:
                results.append(value)
            else:
                placed.append((place, spool.put(value)))
        return results, placed


def _by_place(placed: Placed) -> Items:
    """The values of each place, one in memory at a time."""
    pieces: dict[Place, list[Piece]] = {}
    for place, piece in placed:
        pieces.setdefault(place, []).append(piece)
    for place, of_place in pieces.items():
        yield place, map(Piece.load, of_place)
