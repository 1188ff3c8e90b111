"""Ranges hold every offset of a log once, whatever the size at which it is cut."""

from __future__ import annotations

import numpy as np
import pytest

from compaction.certifier.find_pairs import CleaningRules, LogPair, SegmentFiles, Side
from compaction.certifier.records import RangeTask, cut_into_ranges
from compaction.certifier.segments import SegmentWalk, WalkedLog, WalkTask
from compaction.certifier.transactions import AbortedRanges
from compaction.names import TopicPartition

NONE = AbortedRanges(*[np.empty(0, np.int64)] * 3)
DAY_MS = 86_400_000


def segment(base: int, next_offset: int, cuts: list[tuple[int, int]], size: int, mtime_ms: int = 0) -> SegmentWalk:
    files = SegmentFiles("/log", base, size, mtime_ms)
    return SegmentWalk(WalkTask(0, files, is_after=False), size_bytes=size, next_offset=next_offset, cuts=cuts)


BEFORE = [segment(0, 100, [(0, 0), (60, 40)], 120, 12 * DAY_MS), segment(100, 200, [(0, 100), (50, 160)], 80, 9 * DAY_MS)]
AFTER = [segment(0, 200, [(0, 0), (30, 50), (55, 120)], 70)]


def ranges(size: int, cleaned_to: int | None = None, *, several_rounds: bool = False) -> list[RangeTask]:
    def side(walks: list[SegmentWalk], checkpoint: int | None) -> Side:
        return Side(tuple(walk.task.files for walk in walks), 0, checkpoint)

    rules = CleaningRules(0, several_rounds=several_rounds)
    pair = LogPair(TopicPartition("t", 0), side(BEFORE, cleaned_to), side(AFTER, 200), rules)
    return list(cut_into_ranges(0, WalkedLog(pair, BEFORE, AFTER), NONE, size))


@pytest.mark.parametrize(("size", "count"), [(1, 4), (100, 2), (1 << 30, 1)])
def test_ranges_follow_one_another_and_read_before_once(size: int, count: int) -> None:
    tasks = ranges(size)
    assert len(tasks) == count
    assert tasks[0].first_offset == 0
    assert tasks[-1].end_offset == 2**63 - 1
    assert [task.end_offset for task in tasks[:-1]] == [task.first_offset for task in tasks[1:]]
    assert sum(each.end - each.start for task in tasks for each in task.before) == 200


def test_a_range_reads_the_bytes_of_after_that_may_hold_its_offsets() -> None:
    found = [[(each.start, each.end) for each in task.after] for task in ranges(1)]
    assert found == [[(0, 30)], [(0, 55)], [(30, 70)], [(55, 70)]]


@pytest.mark.parametrize(
    ("cleaned_to", "several_rounds", "horizon_ms"),
    [(None, False, 8 * DAY_MS), (0, False, 0), (100, False, 11 * DAY_MS), (100, True, 11 * DAY_MS)],
)
def test_old_tombstones_may_be_dropped_by_the_time_of_a_last_clean_segment(
    cleaned_to: int | None, several_rounds: bool, horizon_ms: int
) -> None:
    found = ranges(1, cleaned_to, several_rounds=several_rounds)
    assert {task.legacy_delete_horizon_ms for task in found} == {horizon_ms}
