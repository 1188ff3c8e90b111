"""Runs the tasks of ``run.passes.Passes`` in worker processes on this machine, without Java.

Tasks exchange values through the spools of the workers; the driver gives each task the positions of its values. Pass 1 scans
slices into packed entries of each shard. Pass 2 resolves each shard into survivor entries, exchanges them by part through the
same spools, and cleans the parts. A task needs the same memory as on Spark; between tasks all data is in unnamed files. Small
jobs run in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from compaction.engines.limits import usable_cores
from compaction.engines.spool import Spool
from compaction.engines.worker_tasks import Clean, Placed, Resolve, Scan, ShardWork, alone, emitted, joined
from compaction.engines.workers import Workers
from compaction.passes.merge import KEYS
from compaction.passes.tasks import Key
from compaction.run.passes import CleanedParts, CleanInputs, MapInputs, MapResult
from compaction.run.sizing import assign_shards
from compaction.task_runner import Item, Job, reducer_of

T = TypeVar("T")
R = TypeVar("R")

#: jobs that read less run in this process: a worker takes as long to start
INLINE_BYTES = 32 << 20


class ProgressDisplay(Protocol):
    """Shows the progress of passes; see ``compaction.spark.progress.Progress``."""

    def start(self, pass_name: str, total_bytes: int) -> None: ...

    def advance(self, done_bytes: int) -> None: ...

    def done(self, pass_name: str) -> None: ...


class _Merged(NamedTuple):
    """The shards of pass 1 by reducer."""

    reducers: Sequence[Placed]


class ProcessPasses:
    """Implements ``compaction.run.passes.Passes``; a context manager that ends the workers.

    :param cores: number of worker processes; by default the cores that this process may use
    :param progress: shows the bytes that the tasks of each pass have read
    """

    def __init__(
        self, cores: int | None = None, progress: ProgressDisplay | None = None, inline_bytes: int = INLINE_BYTES
    ) -> None:
        #: number of tasks that run concurrently
        self.cores = cores or usable_cores()
        self._inline_bytes = inline_bytes
        #: shows the bytes that the tasks of each pass have read
        self.progress = progress
        self._workers: Workers | None = None
        #: of the tasks that run in this process
        self._spool = Spool.on_disk()

    def __enter__(self) -> ProcessPasses:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers and removes all spools. Kills running tasks, too: their results are no longer needed."""
        workers, self._workers = self._workers, None
        self._spool.close()
        if workers is not None:
            workers.close()

    def run(self, job: Job, tasks: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """The result of ``work`` for each of ``tasks``, in order."""
        with self._shown(job):
            return self._map(job, tasks, partial(alone, work))

    def exchange(
        self,
        job: Job,
        tasks: Sequence[T],
        emit: Callable[[T], Iterable[Item]],
        join: Callable[[Iterable[Item]], Iterable[R]],
        reducers: int,
    ) -> list[R]:
        """The results of ``join`` for the items that ``emit`` emits for each of ``tasks``. No named file contains keys."""
        items: list[Placed] = [[] for _ in range(reducers)]
        with self._shown(job):
            for placed in self._map(job, tasks, partial(emitted, emit)):
                for key, piece in placed:
                    items[reducer_of(key, reducers)].append((key, piece))
            outputs = self._map(job, [item for item in items if item], partial(joined, join), counts=False)
        return [result for results in outputs for result in results]

    def build_offset_map(self, job: Job, inputs: MapInputs, task_entries: int) -> MapResult:
        """Pass 1. The shards stay in the spools of the workers."""
        tasks, first = assign_shards(inputs.shards, task_entries, 2 * self.cores)
        reducers: list[Placed] = [[] for _ in range(tasks)]
        summaries: list[Any] = []
        with self._shown(job):
            for task_summaries, placed in self._map(job, inputs.tasks, Scan(inputs)):
                summaries += task_summaries
                for key, piece in placed:
                    reducers[(first[key[0]] + key[1]) % tasks].append((key, piece))
        return MapResult(summaries, _Merged(reducers))

    def collect_shards(self, job: Job, merged: _Merged, work: Callable[[Key, list[Any]], Iterable[R]]) -> list[R]:
        """The results of ``work`` for each merged shard, in no order."""
        with self._shown(job):
            outputs = self._map(job, [reducer for reducer in merged.reducers if reducer], ShardWork(work))
        return [result for results in outputs for result in results]

    def clean_into_groups(self, job: Job, merged: _Merged, inputs: CleanInputs[R]) -> CleanedParts[R]:
        """Pass 2: resolves each shard into survivor entries, and cleans the parts that these belong to."""
        task_of = {part.id: number for number, task in enumerate(inputs.tasks) for part in task}
        items: list[Placed] = [[] for _ in inputs.tasks]
        with self._shown(job):
            resolved = self._map(job, [reducer for reducer in merged.reducers if reducer], Resolve(inputs), counts=False)
            for key, piece in (pair for placed in resolved for pair in placed):
                number, part = key
                # the count of keys goes to the task of the map's first part
                items[task_of[inputs.maps[number].ids[0] if part == KEYS else part]].append((key, piece))
            works = list(zip(inputs.tasks, items, strict=True))
            return CleanedParts.of(self._map(job, works, Clean(inputs)))

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

    def _map(self, job: Job, tasks: Sequence[T], work: Callable[[T, Spool], R], *, counts: bool = True) -> list[R]:
        """``work`` of each task, in order."""
        sizes = job.task_bytes if counts and len(job.task_bytes) == len(tasks) else [0] * len(tasks)
        if self._workers is None:
            if not job.in_workers and sum(job.task_bytes) < self._inline_bytes:
                return [self._advanced(work(task, self._spool), size) for task, size in zip(tasks, sizes, strict=True)]
            self._workers = Workers(self.cores)
        return self._results(self._workers, tasks, work, sizes)

    def _results(self, workers: Workers, tasks: Sequence[T], work: Callable[[T, Spool], R], sizes: Sequence[int]) -> list[R]:
        """The results of workers, given the bytes that each task reads. Shows the bytes read so far."""
        results: dict[int, R] = {}
        ended, shown, before = 0, 0, workers.read_bytes()
        for found in workers.results(work, tasks):
            if found is not None:
                number, result = found
                results[number] = result
                ended += sizes[number]
            reached = min(sum(sizes), max(ended, workers.read_bytes() - before))
            if reached > shown:
                self._advanced(None, reached - shown)
                shown = reached
        return [results[number] for number in range(len(tasks))]

    def _advanced(self, result: R, size: int) -> R:
        if size and self.progress is not None:
            self.progress.advance(size)
        return result
