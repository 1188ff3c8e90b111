"""Runs the tasks of ``run.passes.Passes`` as Spark jobs.

Pass 1 scans slices into packed entries. They are shuffled by the shard of their map; one more partition receives the summaries,
which the job collects. Pass 2 resolves each shard into survivor entries, shuffles these by part, and cleans the parts. Only
packed arrays are shuffled: there is no Python object per record.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from pyspark import RDD, SparkContext

from compaction.passes.merge import KEYS, merge_lists, resolve_into_parts
from compaction.passes.tasks import SUMMARY, Key
from compaction.run.passes import CleanedParts, CleanInputs, MapInputs, MapResult, clean_task
from compaction.run.sizing import assign_shards
from compaction.screen.steps import step
from compaction.spark.own_jobs import OwnJobs, concurrent_tasks
from compaction.spark.progress import Progress
from compaction.task_runner import Item, Job, freeze_gc, reducer_of

T = TypeVar("T")
R = TypeVar("R")


class SparkPasses:
    """Implements ``compaction.run.passes.Passes``.

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
        """Releases what the maps of pass 1 need."""
        self._jobs.release()

    @contextmanager
    def _shown(self, job: Job) -> Iterator[None]:
        with self._jobs.running():
            with self._displayed(job):
                yield
            # killed attempts may still write files, which the swap removes. The next run removes files that are written later
            if job.writes and self._speculates:
                self._jobs.await_tasks()

    @contextmanager
    def _displayed(self, job: Job) -> Iterator[None]:
        progress = None if job.name is None else self._progress
        if progress is None or job.name is None:
            step(job.description)
            self._sc.setJobDescription(job.description)
            yield
        else:
            with progress.watched(self._sc, job.name, job.task_bytes):
                self._sc.setJobDescription(job.description)
                yield

    def run(self, job: Job, tasks: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """The result of ``work`` for each of ``tasks``, in order."""

        def run_task(task: T) -> R:
            freeze_gc()
            return work(task)

        with self._shown(job):
            return self._sc.parallelize(tasks, max(1, len(tasks))).map(run_task).collect()

    def exchange(
        self,
        job: Job,
        tasks: Sequence[T],
        emit: Callable[[T], Iterable[Item]],
        join: Callable[[Iterable[Item]], Iterable[R]],
        reducers: int,
    ) -> list[R]:
        """The results of ``join`` for the items that ``emit`` emits for each of ``tasks``; these are in shuffle files."""

        def emit_all(tasks: Iterable[T]) -> Iterator[Item]:
            freeze_gc()
            for task in tasks:
                yield from emit(task)

        def join_all(items: Iterable[Item]) -> Iterable[R]:
            freeze_gc()
            return join(items)

        emitted = self._sc.parallelize(tasks, max(1, len(tasks))).mapPartitions(emit_all)
        shuffled = emitted.partitionBy(reducers, lambda key: reducer_of(key, reducers))
        with self._shown(job):
            return shuffled.mapPartitions(join_all).collect()

    def build_offset_map(self, job: Job, inputs: MapInputs, task_entries: int) -> MapResult:
        """Pass 1. The summaries are collected; the shards stay in shuffle files."""
        reducers, first_reducer = assign_shards(inputs.shards, task_entries, 2 * self.cores)
        # the maps of an earlier pass 1 are not used any more
        self._jobs.release()
        shared = self._jobs.broadcast((inputs.known, first_reducer))
        scan, settings = inputs.scan, inputs.settings

        # PySpark writes broadcasts, and functions larger than 1 MiB, to files. So the settings, which contain the secret, are
        # part of the function, and everything that grows with the logs is broadcast
        def partition(key: Key) -> int:
            number, shard = key
            return reducers if shard == SUMMARY else (shared.value[1][number] + shard) % reducers

        def scan_task(tasks: Iterable[Sequence[Any]]) -> Iterator[tuple[Key, list[Any]]]:
            freeze_gc()
            for task in tasks:
                yield from scan(task, shared.value[0], settings)

        entries = self._sc.parallelize(inputs.tasks, len(inputs.tasks)).mapPartitions(scan_task)
        # without partitionBy, reduceByKey would combine on the map side, and a scan task would hold all of its output in memory
        shuffled = entries.partitionBy(reducers + 1, partition)
        merged: RDD[tuple[Key, list[Any]]] = shuffled.reduceByKey(merge_lists, reducers + 1, partition)
        with self._shown(job):
            summaries = self._sc.runJob(merged, _summaries, [reducers])
        return MapResult(summaries, merged)

    def collect_shards(self, job: Job, merged: Any, work: Callable[[Key, list[Any]], Iterable[R]]) -> list[R]:
        """The results of ``work`` for each merged shard, in no order."""

        def map_shards(items: Iterable[tuple[Key, list[Any]]]) -> Iterator[R]:
            for key, packed in items:
                if key[1] != SUMMARY:
                    yield from work(key, packed)

        with self._shown(job):
            result: list[R] = merged.mapPartitions(map_shards).collect()
        return result

    def clean_into_groups(self, job: Job, merged: Any, inputs: CleanInputs[R]) -> CleanedParts[R]:
        """Pass 2: resolves each shard into survivor entries, and cleans the parts that these belong to."""
        task_of = {part.id: number for number, task in enumerate(inputs.tasks) for part in task}
        shared = self._jobs.broadcast((inputs.known, inputs.tasks))
        maps, load_factor, clean, threads = inputs.maps, inputs.load_factor, inputs.clean, inputs.threads

        def resolve(items: Iterable[tuple[Key, list[Any]]]) -> Iterator[tuple[tuple[int, Hashable], list[Any]]]:
            return resolve_into_parts(items, maps, load_factor)

        def partition(key: tuple[int, Hashable]) -> int:
            number, part = key
            # the count of keys goes to the task of the map's first part
            return task_of[maps[number].ids[0] if part == KEYS else part]

        def run_task(task: int, items: Iterable[tuple[tuple[int, Hashable], list[Any]]]) -> Iterator[CleanedParts[R]]:
            freeze_gc()
            contexts, tasks = shared.value
            yield clean_task(clean, contexts, tasks[task], items, threads)

        survivors = merged.mapPartitions(resolve).partitionBy(len(inputs.tasks), partition)
        with self._shown(job):
            return CleanedParts.of(survivors.mapPartitionsWithIndex(run_task).collect())


def _summaries(items: Iterable[tuple[Key, list[Any]]]) -> list[Any]:
    return [summary for _, values in items for summary in values]
