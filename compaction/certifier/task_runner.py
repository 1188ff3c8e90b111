"""Who does the work of a verification: this process, or Spark (``compaction.spark.certify_job``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from compaction.certifier.checks.key_lookup import last_of_key
from compaction.certifier.checks.key_tables import JoinedKeys
from compaction.certifier.checks.log_pair import RangeTask
from compaction.certifier.checks.record_checks import RangeResult, compare_range
from compaction.certifier.checks.segment_walk import SegmentWalk, WalkTask, walk_segment


class TaskRunner(Protocol):
    """Does the work of many tasks. ``parts``: into how many parts the keys of one log are split at most."""

    parts: int

    def walk(self, tasks: Sequence[WalkTask]) -> list[SegmentWalk]:
        """Each segment walked, in order."""

    def compare(self, works: Sequence[RangeTask], strict: Mapping[int, bool]) -> list[RangeResult]:
        """Each range compared, and the keys of each log joined; ``strict`` by log."""

    def last_of(self, works: Sequence[RangeTask], key: bytes) -> list[int]:
        """``last_of_key`` of each range."""


class LocalTaskRunner:
    """Everything in this process."""

    parts = 1

    def walk(self, tasks: Sequence[WalkTask]) -> list[SegmentWalk]:
        return list(map(walk_segment, tasks))

    def compare(self, works: Sequence[RangeTask], strict: Mapping[int, bool]) -> list[RangeResult]:
        results, joined = [], {log: JoinedKeys() for log in strict}
        for work in works:
            result, keys = compare_range(work)
            results.append(result)
            for _, packed in keys.packed():
                joined[work.log].add(packed)
        return results + [RangeResult(log, *keys.conclude(strict=strict[log])) for log, keys in joined.items()]

    def last_of(self, works: Sequence[RangeTask], key: bytes) -> list[int]:
        return [last_of_key(work, key) for work in works]
