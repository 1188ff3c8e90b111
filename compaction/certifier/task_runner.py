"""Who does the work of a verification: this process, or Spark (``compaction.spark.certify_job``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from compaction.certifier.checks.key_lookup import last_of_key
from compaction.certifier.checks.key_tables import JoinedKeys
from compaction.certifier.checks.log_pair import SliceWork
from compaction.certifier.checks.record_checks import SliceResult, compare_slice
from compaction.certifier.checks.segment_walk import Walk, WalkTask, walk_segment


class Engine(Protocol):
    """Does the work of many tasks. ``parts``: into how many parts the keys of one log are split at most."""

    parts: int

    def walk(self, tasks: Sequence[WalkTask]) -> list[Walk]:
        """Each segment walked, in order."""

    def compare(self, works: Sequence[SliceWork], strict: Mapping[int, bool]) -> list[SliceResult]:
        """Each range compared, and the keys of each log joined; ``strict`` by log."""

    def last_of(self, works: Sequence[SliceWork], key: bytes) -> list[int]:
        """``last_of_key`` of each range."""


class LocalEngine:
    """Everything in this process."""

    parts = 1

    def walk(self, tasks: Sequence[WalkTask]) -> list[Walk]:
        return list(map(walk_segment, tasks))

    def compare(self, works: Sequence[SliceWork], strict: Mapping[int, bool]) -> list[SliceResult]:
        results, joined = [], {log: JoinedKeys() for log in strict}
        for work in works:
            result, keys = compare_slice(work)
            results.append(result)
            for _, packed in keys.packed():
                joined[work.log].add(packed)
        return results + [SliceResult(log, *keys.conclude(strict=strict[log])) for log, keys in joined.items()]

    def last_of(self, works: Sequence[SliceWork], key: bytes) -> list[int]:
        return [last_of_key(work, key) for work in works]
