"""Runs the tasks of ``run.passes.Passes`` in worker processes on this machine, without Java.

Tasks exchange values through the spools of the workers; the driver gives each task the positions of its values. Pass 1 scans
slices into packed entries of each shard. Pass 2 resolves each shard into survivor entries, exchanges them by part through the
same spools, and cleans the parts. A task needs the same memory as on Spark; between tasks all data is in unnamed files. Small
jobs run in this process.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import count
from multiprocessing import forkserver, resource_tracker
from typing import Any, NamedTuple, Protocol, TypeVar

from compaction.engines.worker_tasks import Clean, Placed, Resolve, Scan, ShardWork, Spool, call, emitted, joined
from compaction.errors import CompactionError
from compaction.passes.merge import KEYS
from compaction.passes.tasks import Key
from compaction.run.passes import CleanedParts, CleanInputs, MapInputs, MapResult
from compaction.run.sizing import assign_shards
from compaction.startup.protection import require_own_directory
from compaction.storage import read_counter
from compaction.task_runner import Item, Job, freeze_gc, reducer_of

T = TypeVar("T")
R = TypeVar("R")

#: jobs that read less run in this process: a worker takes as long to start
INLINE_BYTES = 32 << 20
#: seconds between polls of the bytes that workers have read
POLL_INTERVAL_S = 0.2
_SAFE_PATH = "PYTHONSAFEPATH"
_PRELOADED = "compaction.engines.preloaded"
#: of jobs
_numbers = count()


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
        self.cores = cores or _usable_cores()
        self._inline_bytes = inline_bytes
        #: shows the bytes that the tasks of each pass have read
        self.progress = progress
        self._pool: ProcessPoolExecutor | None = None
        self._earlier_children: set[int] = set()
        #: directory in which workers count the bytes that they read
        self._counts = ""

    def __enter__(self) -> ProcessPasses:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers and removes their spools. Kills running tasks, too: their results are no longer needed."""
        pool, self._pool = self._pool, None
        if pool is not None:
            for worker in multiprocessing.active_children():
                if worker.pid not in self._earlier_children:
                    worker.kill()
            pool.shutdown(cancel_futures=True)
            shutil.rmtree(self._counts, ignore_errors=True)

    def run(self, job: Job, tasks: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """The result of ``work`` for each of ``tasks``, in order."""
        with self._shown(job):
            return self._map(job, tasks, work)

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
        except BrokenProcessPool:
            self.close()
            message = "a worker process was ended from outside, e.g. because the machine has too little memory"
            raise CompactionError(message, hint="nothing was changed by this step; run it again with fewer cores") from None
        except BaseException:
            self.close()
            raise
        if shown:
            self.progress.done(job.name)  # type: ignore[union-attr, arg-type]

    def _map(self, job: Job, tasks: Sequence[Any], work: Callable[[Any], R], *, counts: bool = True) -> list[R]:
        """``work`` of each task, in order. Functions and their data are pickled once, into memory."""
        sizes = job.task_bytes if counts and len(job.task_bytes) == len(tasks) else [0] * len(tasks)
        if self._pool is None and not job.in_workers and sum(job.task_bytes) < self._inline_bytes:
            return [self._advanced(work(task), size) for task, size in zip(tasks, sizes, strict=True)]
        shared = Spool.in_memory()
        try:
            futures = dict(zip(self._begun(partial(call, next(_numbers), shared.put(work)), tasks), sizes, strict=True))
            self._await(futures)
            return [future.result() for future in futures]
        finally:
            shared.close()

    def _begun(self, work: Callable[[Any], R], tasks: Sequence[Any]) -> list[Future[R]]:
        """Begins tasks, and starts the workers if there are none. In a thread, which interrupts do not reach: a worker that
        starts as its driver ends would print a stack trace."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: [self._workers().submit(work, task) for task in tasks]).result()

    def _await(self, futures: Mapping[Future[Any], int]) -> None:
        """Waits for tasks, given the bytes that each reads, and shows the bytes read so far."""
        remaining, ended, shown, before = set(futures), 0, 0, read_counter.total(self._counts)
        while remaining:
            completed, remaining = wait(remaining, POLL_INTERVAL_S, FIRST_COMPLETED)
            for future in completed:
                future.result()
                ended += futures[future]
            reached = min(sum(futures.values()), max(ended, read_counter.total(self._counts) - before))
            if reached > shown:
                self._advanced(None, reached - shown)
                shown = reached

    def _advanced(self, result: R, size: int) -> R:
        if size and self.progress is not None:
            self.progress.advance(size)
        return result

    def _workers(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # not forked from this process, whose threads may hold locks and whose buffers direct I/O would share
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([_PRELOADED])
            _start_fork_server()
            self._earlier_children = {child.pid for child in multiprocessing.active_children() if child.pid is not None}
            self._counts = tempfile.mkdtemp(prefix="kafka-log-compaction-")
            self._pool = ProcessPoolExecutor(self.cores, context, _begin, (self._counts,))
        return self._pool


def _usable_cores() -> int:
    # only Linux reports the cores that a process may use
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _start_fork_server() -> None:
    """Starts the process that workers are forked from, which imports no modules from the working directory. Interrupts are
    blocked for it: one during its imports would kill it with a stack trace.

    :raises UsageError: others can write to that, and this Python has no switch for it
    """
    require_own_directory()
    previous = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    # started first: its start unblocks interrupts
    resource_tracker.ensure_running()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if previous is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = previous


def _begin(counts: str) -> None:
    """Begins a worker: the driver handles interrupts, and the worker ends with the driver, even if that is killed."""
    os.environ[read_counter.VARIABLE] = counts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_driver, name="end with the driver", daemon=True).start()
    freeze_gc()


def _end_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        driver.join()
        os.kill(os.getpid(), signal.SIGKILL)
