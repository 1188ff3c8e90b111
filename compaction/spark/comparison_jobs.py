"""The shared passes of a comparison as Spark jobs, as in ``compaction.spark.pipeline`` but with variants in place of logs.

Tested by ``tests/compare/test_compare_policies.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from pyspark import RDD, SparkContext

from compaction.compare.count import SharedSlice, SharedSummary, Source, counts_of, scan_shared
from compaction.compare.measure import Measured, Repetition, count_rounds, measure_shared, resolve_counts
from compaction.compare.shared_passes import MeasureInputs
from compaction.engine.protocol import KEYS
from compaction.engine.sizing import Sizes, pack
from compaction.fs.filesystem import ReadableFileSystem
from compaction.passes.build_map import SUMMARY, Key
from compaction.passes.merge import merge_lists, resolve_shard, split_by_part
from compaction.passes.tasks import MapContext, MapSettings, Slice, SliceSummary
from compaction.passes.txn_headers import scan_transactions
from compaction.spark.pipeline import job_progress
from compaction.spark.progress import Progress
from compaction.startup.freeze_gc import freeze_gc


class SparkEngine:
    """Implements ``compaction.compare.shared_passes.Engine``; ``progress`` counts the bytes that the tasks of each pass
    read."""

    def __init__(self, sc: SparkContext, sizes: Sizes, progress: Progress | None = None) -> None:
        self._sc = sc
        self._sizes = sizes
        self._progress = progress

    def transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        """See ``Engine``."""
        tasks = pack(slices, lambda part: part.size_bytes, self._sizes.scan_bytes)
        with job_progress(self._sc, self._progress, "transactions", f"read batch headers of {len(slices)} slices", tasks):
            headers = self._sc.parallelize(tasks, len(tasks))
            return headers.flatMap(lambda task: [scan_transactions(part, files) for part in task]).collect()

    def scan(
        self,
        slices: Sequence[SharedSlice],
        variants: Mapping[int, MapContext],
        sources: Mapping[int, Source],
        settings: MapSettings,
    ) -> tuple[list[SharedSummary], Any]:
        """See ``Engine``; the maps and counts remain in the shuffle."""
        tasks = pack(slices, lambda each: each.slice.size_bytes, self._sizes.scan_bytes)
        shards_of = {number: scan.shards for number, scan in variants.items()}
        shards_of.update({counts_of(number): source.shards for number, source in sources.items()})
        first = dict(zip(shards_of, accumulate(shards_of.values(), initial=0), strict=False))
        maps = min(sum(shards_of.values()), max(2 * self._sc.defaultParallelism, len(tasks)))
        shared = self._sc.broadcast((dict(variants), dict(sources), first))

        # PySpark writes broadcasts, and functions larger than 1 MiB, to files. The settings hold the secret and are part of the
        # function. Everything that grows with the logs is broadcast, which keeps the function small
        def partition(key: Key) -> int:
            return maps if key[1] == SUMMARY else (shared.value[2][key[0]] + key[1]) % maps

        def scan_task(task: Iterable[list[SharedSlice]]) -> Iterator[tuple[Key, list[Any]]]:
            freeze_gc()
            known, described, _ = shared.value
            for part in task:
                yield from scan_shared(part, known, described, settings)

        entries = self._sc.parallelize(tasks, len(tasks)).mapPartitions(scan_task)
        merged: RDD[tuple[Key, list[Any]]] = entries.reduceByKey(merge_lists, maps + 1, partition)
        with job_progress(
            self._sc, self._progress, "pass 1", f"pass 1: scan {len(slices)} slices for {len(variants)} maps", _parts(tasks)
        ):
            return self._sc.runJob(merged, _summaries, [maps]), merged

    def repetitions(self, merged: Any) -> Mapping[int, Repetition]:
        """See ``Engine``."""
        self._sc.setJobDescription("count how often keys occur")
        found: dict[int, Repetition] = {}
        for number, repetition in merged.mapPartitions(_repetitions).collect():
            found[number] = found[number] + repetition if number in found else repetition
        return {source: found[counts_of(source)] for source in map(counts_of, found)}

    def measure(self, merged: Any, work: MeasureInputs) -> tuple[list[Measured], Mapping[int, int]]:
        """See ``Engine``."""
        tasks = pack(work.slices, lambda each: each.slice.size_bytes, self._sizes.slice_bytes)
        task_of = {each.number: task for task, slices in enumerate(tasks) for each in slices}
        part_of = {each.number: each.slice for each in work.slices}
        places = {
            number: (variant.scan.first_dirty_offset, np.array([part_of[n].first_offset for n in variant.slices], np.int64))
            for number, variant in work.variants.items()
            if work.cases.get(number)
        }
        slices_of = {number: work.variants[number].slices for number in places}
        shared = self._sc.broadcast((tasks, dict(work.cases), dict(work.sources)))
        load_factor = work.load_factor

        def resolve(items: Iterable[tuple[Key, list[Any]]]) -> Iterator[tuple[Key, list[Any]]]:
            for (number, shard), packed in items:
                if shard != SUMMARY and number in places:
                    marks, keys = resolve_shard(packed, places[number][0], load_factor)
                    yield (number, KEYS), [keys]
                    for at, part in split_by_part(marks, places[number][1]):
                        yield (number, slices_of[number][at]), [part]

        def partition(key: Key) -> int:
            return 0 if key[1] == KEYS else task_of[key[1]]

        def measure_task(task: int, items: Iterable[tuple[Key, list[Any]]]) -> Iterator[Measured | tuple[int, int]]:
            freeze_gc()
            known, cases, sources = shared.value
            marks = dict(items)
            yield from ((number, sum(counts)) for (number, at), counts in marks.items() if at == KEYS)
            yield from measure_shared(known[task], cases, marks, sources)

        marks = merged.mapPartitions(resolve).reduceByKey(merge_lists, len(tasks), partition)
        with job_progress(self._sc, self._progress, "pass 2", f"pass 2: measure {len(work.slices)} slices", _parts(tasks)):
            found = marks.mapPartitionsWithIndex(measure_task).collect()
        return [each for each in found if isinstance(each, Measured)], dict(
            each for each in found if not isinstance(each, Measured)
        )

    def rounds(
        self, works: Sequence[tuple[Sequence[Slice], MapContext]], settings: MapSettings, most_keys: int
    ) -> list[int]:
        """See ``Engine``; one task per log."""
        if not works:
            return []
        tasks = [slices for slices, _ in works]
        with job_progress(self._sc, self._progress, "rounds", f"count a broker's rounds over {len(works)} logs", tasks):
            return self._sc.parallelize(works, len(works)).map(lambda work: count_rounds(*work, settings, most_keys)).collect()


def _parts(tasks: Sequence[Sequence[SharedSlice]]) -> list[list[Slice]]:
    return [[each.slice for each in task] for task in tasks]


def _summaries(items: Iterable[tuple[Key, list[Any]]]) -> list[SharedSummary]:
    return [summary for _, found in items for summary in found]


def _repetitions(items: Iterable[tuple[Key, list[Any]]]) -> Iterator[tuple[int, Repetition]]:
    for (number, shard), packed in items:
        if shard != SUMMARY and number < 0:
            yield number, resolve_counts(packed)
