"""Runs tasks as Spark jobs.

A shuffle is ``partitionBy``, and ``reduceByKey`` if it merges. Only packed values are shuffled: there is no Python object per
record. One more partition receives what tasks emit for the driver, which collects it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar, cast

from py4j.protocol import Py4JError
from pyspark import RDD, Broadcast, SparkContext, StatusTracker

from compaction.engine import Emission, Job, Place, Source, freeze_gc
from compaction.engines.spark_jobs import OwnJobs, concurrent_tasks
from compaction.files import read_counter
from compaction.screen.progress import Progress
from compaction.screen.steps import step

R = TypeVar("R")

#: seconds between two polls of Spark's status
POLL_INTERVAL_S = 0.2

#: a place with some or all of its values
_Placed = tuple[Place | None, list[Any]]


class SparkEngine:
    """Implements ``compaction.engine.Engine``.

    :param progress: shows the bytes that the tasks of each pass have read
    """

    def __init__(self, sc: SparkContext, progress: Progress | None = None) -> None:
        self._sc = sc
        self._progress = progress
        self._jobs = OwnJobs(sc)
        # a copy of all settings, one call of the JVM for each
        conf = sc.getConf()
        #: number of tasks that run concurrently
        self.cores = concurrent_tasks(sc, conf)
        self._speculates = conf.get("spark.speculation", "false") == "true"

    def close(self) -> None:
        """Releases what shuffles need."""
        self._jobs.release()

    def run(self, job: Job, source: Source | Sequence[Any], work: Callable[..., R]) -> list[R]:
        """The result of ``work`` for each task, in order."""
        source = Source.over(source)
        known = self._known(source)
        try:
            results = self._over(source, known, source.of(work), lambda result: (result,))
            return self.collect(_displayed(job, source), results, range(len(source)))
        finally:
            self._jobs.release(known)

    def shuffle(
        self,
        job: Job,
        source: Source | Sequence[Any],
        emit: Callable[..., Iterable[Emission]],
        place: Callable[[Place], int],
        parts: int,
        *,
        merges: bool = False,
    ) -> Shuffled:
        """Runs nothing yet. The values of its tasks will be in Spark's shuffle files."""
        source = Source.over(source)
        # where tasks know much, there may be many places, too
        known = self._known(source, place)
        small: Any = place if known is None else None

        def partition(of: Place | None) -> int:
            part_of = small if known is None else known.value[2]
            return parts if of is None else part_of(of)

        emitted = self._over(source, known, source.of(emit), _listed)
        # without partitionBy, reduceByKey would combine on the map side, and a task would hold all of its output in memory
        shuffled = emitted.partitionBy(parts + 1, partition)
        if merges:
            shuffled = shuffled.reduceByKey(_extended, parts + 1, partition)
        return Shuffled(self, job, shuffled, parts, known)

    def _known(self, source: Source, place: Callable[[Place], int] | None = None) -> Broadcast[Any] | None:
        """What is known to all tasks, the tasks of the parts of a shuffle, and the function of places."""
        tasks = None if source.items is None else source.tasks
        return None if source.known is None and tasks is None else self._jobs.broadcast((source.known, tasks, place))

    def _over(
        self,
        source: Source,
        known: Broadcast[Any] | None,
        function: Callable[[Any, Any, Any], Any],
        values: Callable[[Any], Iterable[Any]],
    ) -> RDD[Any]:
        """The ``values`` of the result of ``function`` for each task."""
        if source.items is None:

            def run_tasks(tasks: Iterable[Any]) -> Iterator[Any]:
                freeze_gc()
                for task in tasks:
                    yield from values(function(task, None, None if known is None else known.value[0]))

            tasks = source.tasks or ()
            return self._sc.parallelize(tasks, max(1, len(tasks))).mapPartitions(run_tasks)
        shuffled, parts = _shuffled(source), len(source)

        def run_part(number: int, items: Iterable[Any]) -> Iterable[Any]:
            freeze_gc()
            if number == parts:
                return ()
            about, tasks, _ = (None, None, None) if known is None else known.value
            return values(function(None if tasks is None else tasks[number], items, about))

        return shuffled.rdd.mapPartitionsWithIndex(run_part)

    def collect(self, job: Job, rdd: RDD[R], partitions: Sequence[int]) -> list[R]:
        """The elements of some partitions."""
        with self._jobs.running():
            with self._shown(job):
                collected: list[R] = self._sc.runJob(rdd, list, partitions) if partitions else []
            # killed attempts may still write files, which the swap removes. The next run removes files that are written later
            if job.writes and self._speculates:
                self._jobs.await_tasks()
        return collected

    def release(self, known: Broadcast[Any] | None) -> None:
        self._jobs.release(known)

    @contextmanager
    def _shown(self, job: Job) -> Iterator[None]:
        progress = None if job.name is None else self._progress
        if progress is None or job.name is None:
            step(job.description)
            self._sc.setJobDescription(job.description)
            yield
        else:
            progress.start(job.name, sum(job.task_bytes))
            with watched(self._sc, job.name, job.task_bytes, progress.advance):
                self._sc.setJobDescription(job.description)
                yield
            progress.done(job.name)


class Shuffled:
    """See ``compaction.engine.Shuffle``.

    :ivar rdd: ``parts`` partitions, and one of the driver
    :ivar job: that of its tasks, as long as they have not run
    """

    def __init__(self, engine: SparkEngine, job: Job, rdd: RDD[_Placed], parts: int, known: Broadcast[Any] | None) -> None:
        self._engine, self.rdd, self.parts, self._known = engine, rdd, parts, known
        self.job: Job | None = job
        self._results: list[Any] | None = None

    @property
    def results(self) -> list[Any]:
        if self._results is None:
            collected = self._engine.collect(self.job or Job("collect results"), self.rdd, [self.parts])
            self._results = [value for _, values in collected for value in values]
            self.job = None
        return self._results

    def close(self) -> None:
        self._engine.release(self._known)


def _shuffled(source: Source) -> Shuffled:
    return cast("Shuffled", source.items)


def _displayed(job: Job, source: Source) -> Job:
    """The job that is shown for one whose tasks get a shuffle, which may run only now."""
    waiting = None if job.name is not None or source.items is None else _shuffled(source).job
    return job if waiting is None else replace(waiting, writes=job.writes)


def _listed(items: Iterable[Emission]) -> Iterator[_Placed]:
    return ((place, [value]) for place, value in items)


def _extended(values: list[Any], others: list[Any]) -> list[Any]:
    """The values of both, in place. No array is copied."""
    values.extend(others)
    return values


@contextmanager
def watched(sc: SparkContext, job_group: str, task_bytes: Sequence[int], advance: Callable[[int], None]) -> Iterator[None]:
    """Shows the bytes of the tasks of a job as these read or complete, during the block.

    Jobs of the block run in ``job_group``. Their last stage with ``len(task_bytes)`` tasks counts: earlier stages of that size
    may belong to another pass and be skipped by Spark. When the block ends without an error, all bytes count.
    """
    if sc.getLocalProperty("spark.jobGroup.id") != job_group:
        sc.setJobGroup(job_group, job_group)
    counts = sc.environment.get(read_counter.VARIABLE)
    watch = _StageWatch(sc.statusTracker(), job_group, task_bytes, advance, counts)
    stop = threading.Event()
    thread = threading.Thread(target=watch.run, args=(stop,), name=f"progress of {job_group}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    watch.complete(len(task_bytes))


class _StageWatch:
    """Converts the number of completed tasks of a stage to bytes; a task counts once, even if Spark runs it again.

    :param counts: the directory in which tasks count the bytes that they read
    """

    def __init__(
        self,
        tracker: StatusTracker,
        job_group: str,
        bytes_per_task: Sequence[int],
        advance: Callable[[int], None],
        counts: str | None = None,
    ) -> None:
        self._tracker = tracker
        self._job_group = job_group
        self._bytes_up_to = list(accumulate(bytes_per_task, initial=0))
        self._advance = advance
        self._done_bytes = 0
        self._counts = counts
        self._counted_before = 0 if counts is None else read_counter.total(counts)
        self._earlier_jobs = frozenset(tracker.getJobIdsForGroup(job_group))

    def run(self, stop: threading.Event) -> None:
        """Polls every :data:`POLL_INTERVAL_S` until ``stop`` is set, or until Spark has failed, which the job reports."""
        while not stop.wait(POLL_INTERVAL_S):
            try:
                self.complete(self._finished_tasks())
                if self._counts is not None:
                    self._reach(read_counter.total(self._counts) - self._counted_before)
            except (Py4JError, OSError):
                return

    def complete(self, tasks: int) -> None:
        """Counts the bytes of the first ``tasks`` tasks that were not counted before."""
        self._reach(self._bytes_up_to[tasks])

    def _reach(self, done_bytes: int) -> None:
        # tasks that Spark runs again also read again
        done_bytes = min(done_bytes, self._bytes_up_to[-1])
        if done_bytes > self._done_bytes:
            self._advance(done_bytes - self._done_bytes)
            self._done_bytes = done_bytes

    def _finished_tasks(self) -> int:
        tasks = len(self._bytes_up_to) - 1
        for job in sorted(set(self._tracker.getJobIdsForGroup(self._job_group)) - self._earlier_jobs):
            info = self._tracker.getJobInfo(job)
            for stage in sorted(info.stageIds, reverse=True) if info is not None else ():
                stage_info = self._tracker.getStageInfo(stage)
                if stage_info is not None and stage_info.numTasks == tasks:
                    return min(int(stage_info.numCompletedTasks), tasks)
        return 0
