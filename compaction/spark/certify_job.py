"""Verification on Spark: tasks walk segments and compare ranges of offsets; a shuffle brings the tables of keys together.

Small logs are verified in the driver, without a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pyspark import SparkContext

from compaction.certifier.certificate import LogCertificate, VerifyReport
from compaction.certifier.certify import certify_pairs
from compaction.certifier.checks.erased_keys import ErasedKeys
from compaction.certifier.checks.key_tables import JoinedKeys
from compaction.certifier.checks.log_pair import LogPair
from compaction.certifier.checks.offset_ranges import PARTITION_BYTES, RANGE_BYTES, RangeTask
from compaction.certifier.checks.record_checks import Last, RangeResult, compare_range, last_of_key
from compaction.certifier.checks.segment_walk import SegmentWalk, WalkTask, walk_segment
from compaction.certifier.erasure_certificate import Certified, certify_erased, erasure_pairs, search
from compaction.certifier.explain_record import explain_record
from compaction.certifier.find_pairs import find_pairs
from compaction.certifier.find_remains import Remains, remains_in
from compaction.certifier.task_runner import LocalTaskRunner, TaskRunner
from compaction.certifier.verify_request import VerifyRequest
from compaction.engine.sizing import pack
from compaction.screen.amounts import counted
from compaction.screen.steps import step
from compaction.spark.progress import Progress
from compaction.spark.session import Session
from compaction.startup.freeze_gc import freeze_gc

#: bytes of both sides; with less a session takes longer to start than the work
WORTH_SPARK_BYTES = 256 << 20
#: the partition number under which results travel
_RESULT = -1

#: a log and a partition of its keys
Key = tuple[int, int]
SessionFactory = Callable[[], Session]


def certify(session_factory: SessionFactory, request: VerifyRequest, progress: Progress) -> VerifyReport:
    """Certify the requested logs; the session is started only if they are large.

    :param progress: shows the bytes that the tasks of each pass have read
    :raises UsageError: a partition that the request names does not exist
    """
    pairs = find_pairs(request)
    return certify_pairs(_task_runner(session_factory, pairs, progress), pairs, request.now_ms)


def certify_erasure(
    session_factory: SessionFactory, request: VerifyRequest, erased: ErasedKeys, progress: Progress
) -> Certified:
    """The certificates of logs from which keys were erased; the session is started only if they are large."""
    pairs = erasure_pairs(request, erased)
    runner = _task_runner(session_factory, pairs, progress)
    return search(runner, request, erased, certify_erased(runner, pairs, erased, request.now_ms))


def explain(session_factory: SessionFactory, request: VerifyRequest, offset: int, progress: Progress) -> list[str]:
    """What became of one record of the only requested log, as lines of text.

    :raises UsageError: there is no such log
    """
    pairs = find_pairs(request)
    if isinstance(pairs[0], LogCertificate):
        return pairs[0].lines()
    return [explain_record(_task_runner(session_factory, pairs, progress), pairs[0], offset)]


def _task_runner(
    session_factory: SessionFactory, pairs: Sequence[LogPair | LogCertificate], progress: Progress
) -> TaskRunner:
    sides = [side for pair in pairs if isinstance(pair, LogPair) for side in (pair.before, pair.after)]
    size = sum(segment.size_bytes for side in sides for segment in side.segments)
    if size < WORTH_SPARK_BYTES:
        step(f"verifying {counted(len(pairs), 'log')}")
        return LocalTaskRunner()
    return SparkTaskRunner(session_factory().sparkContext, progress)


class SparkTaskRunner:
    """Implements ``compaction.certifier.task_runner.TaskRunner`` with Spark jobs."""

    most_partitions = 4096

    def __init__(self, sc: SparkContext, progress: Progress) -> None:
        self._sc, self._progress = sc, progress

    def walk(self, tasks: Sequence[WalkTask]) -> list[SegmentWalk]:
        packs = pack(tasks, lambda task: task.files.size_bytes, RANGE_BYTES)
        walked = self._sc.parallelize(packs, max(1, len(packs))).flatMap(lambda some: map(walk_segment, some))
        with self._progress.watched(self._sc, "segments", [sum(task.files.size_bytes for task in tasks) for tasks in packs]):
            self._sc.setJobDescription(f"verify: walk {len(tasks)} segments")
            return walked.collect()

    def compare(
        self, tasks: Sequence[RangeTask], strict: Mapping[int, bool], erased: ErasedKeys | None = None
    ) -> list[RangeResult]:
        packs = pack(tasks, lambda task: task.size_bytes, RANGE_BYTES)
        size = sum(task.size_bytes for task in tasks)
        reducers = max(1, self._sc.defaultParallelism, size // PARTITION_BYTES)
        strict_of = dict(strict)

        def compare_task(packs: Iterable[list[RangeTask]]) -> Iterator[tuple[Key, RangeResult | bytes]]:
            freeze_gc()
            for task in (task for each in packs for task in each):
                result, keys = compare_range(task, erased)
                yield (task.log, _RESULT), result
                for partition, packed in keys.packed():
                    yield (task.log, partition), packed

        def join_task(items: Iterable[tuple[Key, RangeResult | bytes]]) -> Iterator[RangeResult]:
            freeze_gc()
            joined: dict[Key, JoinedKeys] = {}
            for key, item in items:
                if isinstance(item, RangeResult):
                    yield item
                else:
                    joined.setdefault(key, JoinedKeys()).add(item)
            for (log, _), keys in joined.items():
                yield RangeResult(log, *keys.conclude(strict=strict_of[log]))

        compared = self._sc.parallelize(packs, max(1, len(packs))).mapPartitions(compare_task)
        # consecutive partitions of a large log are joined by different reducers
        shuffled = compared.partitionBy(reducers, lambda key: (key[0] * 31 + key[1] + 1) % reducers)
        with self._progress.watched(self._sc, "records", [sum(task.size_bytes for task in tasks) for tasks in packs]):
            self._sc.setJobDescription(f"verify: compare {len(tasks)} ranges of offsets")
            return shuffled.mapPartitions(join_task).collect()

    def search(self, files: Sequence[tuple[str, str]], erased: ErasedKeys) -> list[Remains]:
        self._sc.setJobDescription(f"verify: look for keys in {len(files)} other files")
        tasks = self._sc.parallelize(list(files), max(1, min(len(files), 4 * self._sc.defaultParallelism)))
        return tasks.map(lambda each: remains_in(*each, erased)).collect()

    def last_of(self, tasks: Sequence[RangeTask], key: bytes) -> list[Last]:
        found = self._sc.parallelize(list(tasks), max(1, len(tasks))).map(lambda task: last_of_key(task, key))
        with self._progress.watched(self._sc, "records of the key", [task.size_bytes for task in tasks]):
            self._sc.setJobDescription(f"verify: look up one key in {len(tasks)} ranges of offsets")
            return found.collect()
