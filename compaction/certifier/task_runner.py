"""Runs the tasks of a verification: in this process, or on Spark (``compaction.spark.certify_job``).

Tested by ``tests/spark/test_certify_job.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from compaction.certifier.checks.erased_keys import ErasedKeys
from compaction.certifier.checks.key_tables import JoinedKeys
from compaction.certifier.checks.offset_ranges import RangeTask
from compaction.certifier.checks.record_checks import Last, RangeResult, compare_range, last_of_key
from compaction.certifier.checks.segment_walk import SegmentWalk, WalkTask, walk_segment
from compaction.certifier.find_remains import Remains, remains_in


class TaskRunner(Protocol):
    """Runs tasks. ``most_partitions``: into how many partitions the keys of one log are hashed at most."""

    most_partitions: int

    def walk(self, tasks: Sequence[WalkTask]) -> list[SegmentWalk]:
        """Walk each segment; results are in order."""

    def compare(
        self, tasks: Sequence[RangeTask], strict: Mapping[int, bool], erased: ErasedKeys | None = None
    ) -> list[RangeResult]:
        """Compare each range, and join the keys of each log; ``strict`` is by log."""

    def search(self, files: Sequence[tuple[str, str]], erased: ErasedKeys) -> list[Remains]:
        """``remains_in`` each of ``files``: a log directory, and a path in it."""

    def last_of(self, tasks: Sequence[RangeTask], key: bytes) -> list[Last]:
        """``last_of_key`` of each range."""


class LocalTaskRunner:
    """Runs tasks in this process."""

    most_partitions = 1

    def walk(self, tasks: Sequence[WalkTask]) -> list[SegmentWalk]:
        return list(map(walk_segment, tasks))

    def compare(
        self, tasks: Sequence[RangeTask], strict: Mapping[int, bool], erased: ErasedKeys | None = None
    ) -> list[RangeResult]:
        results, joined = [], {log: JoinedKeys() for log in strict}
        for task in tasks:
            result, keys = compare_range(task, erased)
            results.append(result)
            for _, packed in keys.packed():
                joined[task.log].add(packed)
        return results + [RangeResult(log, *keys.conclude(strict=strict[log])) for log, keys in joined.items()]

    def search(self, files: Sequence[tuple[str, str]], erased: ErasedKeys) -> list[Remains]:
        return [remains_in(*each, erased) for each in files]

    def last_of(self, tasks: Sequence[RangeTask], key: bytes) -> list[Last]:
        return [last_of_key(task, key) for task in tasks]
