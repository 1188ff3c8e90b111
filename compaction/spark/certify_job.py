"""Verification on Spark: segments are walked and ranges of offsets compared by tasks, keys meet in a shuffle of packed tables.

What is little is verified in the driver, without a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pyspark import SparkContext

from compaction.certifier.certificate import LogCertificate, VerifyReport
from compaction.certifier.certify import certify_pairs
from compaction.certifier.checks.key_lookup import last_of_key
from compaction.certifier.checks.key_tables import JoinedKeys
from compaction.certifier.checks.log_pair import LogPair, RangeTask
from compaction.certifier.checks.offset_ranges import PARTITION_BYTES, RANGE_BYTES
from compaction.certifier.checks.record_checks import RangeResult, compare_range
from compaction.certifier.checks.segment_walk import SegmentWalk, WalkTask, walk_segment
from compaction.certifier.explain_record import explain
from compaction.certifier.find_pairs import find_pairs
from compaction.certifier.task_runner import LocalTaskRunner, TaskRunner
from compaction.certifier.verify_request import VerifyRequest
from compaction.engine.sizing import pack
from compaction.spark.session import Session
from compaction.startup.freeze_gc import settle

#: both sides together; below it a session takes longer to start than the work
WORTH_SPARK_BYTES = 256 << 20
_MOST_PARTS = 4096
_RESULT = -1

Key = tuple[int, int]
SessionFactory = Callable[[], Session]


def certify(session_factory: SessionFactory, request: VerifyRequest) -> VerifyReport:
    """Certify the logs that a request asks for; the session is started only if they are large.

    :raises UsageError: a partition was asked for by name and is nowhere
    """
    pairs = find_pairs(request)
    return certify_pairs(_engine(session_factory, pairs), pairs, request.now_ms)


def why(session_factory: SessionFactory, request: VerifyRequest, offset: int) -> list[str]:
    """What became of one record of the only log that a request asks for.

    :raises UsageError: there is no such log
    """
    pairs = find_pairs(request)
    if isinstance(pairs[0], LogCertificate):
        return pairs[0].lines()
    return explain(_engine(session_factory, pairs), pairs[0], offset)


def _engine(session_factory: SessionFactory, pairs: Sequence[LogPair | LogCertificate]) -> TaskRunner:
    sides = [side for pair in pairs if isinstance(pair, LogPair) for side in (pair.before, pair.after)]
    size = sum(segment.size_bytes for side in sides for segment in side.segments)
    return LocalTaskRunner() if size < WORTH_SPARK_BYTES else SparkTaskRunner(session_factory().sparkContext)


class SparkTaskRunner:
    """The work as Spark jobs; see ``compaction.certifier.task_runner.TaskRunner``."""

    parts = _MOST_PARTS

    def __init__(self, sc: SparkContext) -> None:
        self._sc = sc

    def walk(self, tasks: Sequence[WalkTask]) -> list[SegmentWalk]:
        """Each segment walked, in order."""
        packs = pack(tasks, lambda task: task.files.size_bytes, RANGE_BYTES)
        self._sc.setJobDescription(f"verify: walk {len(tasks)} segments")
        return self._sc.parallelize(packs, max(1, len(packs))).flatMap(lambda some: map(walk_segment, some)).collect()

    def compare(self, works: Sequence[RangeTask], strict: Mapping[int, bool]) -> list[RangeResult]:
        """Each range compared, and the keys of each log joined; ``strict`` by log."""
        packs = pack(works, lambda work: work.size_bytes, RANGE_BYTES)
        size = sum(work.size_bytes for work in works)
        reducers = max(1, self._sc.defaultParallelism, size // PARTITION_BYTES)
        strict_of = dict(strict)

        def compare_task(some: Iterable[list[RangeTask]]) -> Iterator[tuple[Key, RangeResult | bytes]]:
            settle()
            for work in (work for each in some for work in each):
                result, keys = compare_range(work)
                yield (work.log, _RESULT), result
                for part, packed in keys.packed():
                    yield (work.log, part), packed

        def join_task(items: Iterable[tuple[Key, RangeResult | bytes]]) -> Iterator[RangeResult]:
            settle()
            joined: dict[Key, JoinedKeys] = {}
            for key, item in items:
                if isinstance(item, RangeResult):
                    yield item
                else:
                    joined.setdefault(key, JoinedKeys()).add(item)
            for (log, _), keys in joined.items():
                yield RangeResult(log, *keys.conclude(strict=strict_of[log]))

        self._sc.setJobDescription(f"verify: compare {len(works)} ranges of offsets")
        compared = self._sc.parallelize(packs, max(1, len(packs))).mapPartitions(compare_task)
        # neighbouring parts go to different tasks, so that the parts of a large log are spread
        shuffled = compared.partitionBy(reducers, lambda key: (key[0] * 31 + key[1] + 1) % reducers)
        return shuffled.mapPartitions(join_task).collect()

    def last_of(self, works: Sequence[RangeTask], key: bytes) -> list[int]:
        """``last_of_key`` of each range."""
        self._sc.setJobDescription(f"verify: look for one key in {len(works)} ranges of offsets")
        return self._sc.parallelize(list(works), max(1, len(works))).map(lambda work: last_of_key(work, key)).collect()
