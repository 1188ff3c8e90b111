"""What arrived when, what superseded it, and the replay of policies over it: by a plain program, record by record."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from compaction.config.resolver import TopicConfig
from compaction.errors import UnsupportedLogError
from compaction.kernels.slot_table import ENDS, WORDS, SlotTable
from compaction.names import TopicPartition
from compaction.policies import arrivals as module
from compaction.policies.arrivals import (
    BATCHES,
    COLUMNS,
    CONTROLS,
    FIRST_OFFSET,
    LARGEST_TIMESTAMP,
    NEVER,
    RECORDS,
    STORED,
    Arrivals,
    Cells,
    Int64s,
)
from compaction.policies.over_time import arrival_times, clock, continued, period
from compaction.policies.replay import Replay
from compaction.rules.log_view import LogView, Segment
from tests.kafka.encode import Batch, Record
from tests.oracle.cleaner import NaiveRound, clean_log_naively
from tests.oracle.records import decode
from tests.oracle.segments import NaiveSegment
from tests.policies.evenings import Shape, arrivals_of, config_of, story

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = FIRST_MS = 20_000 * DAY_MS
MIXED = [each.data for day in story(7, Shape(transactions=True, keyless=True, most_records=3), days=20) for each in day]
PLAIN = [
    Batch([Record(offset, offset, b"k%d" % (offset * 7 % 31), None if offset % 5 == 0 else b"v" * (offset % 40))])
    for offset in range(300)
]  # fmt: skip


def expected(batches: list[Batch]) -> dict[tuple[int, int, bool, bool], tuple[int, int]]:
    """Records and bytes by bucket, successor, and whether the two are tombstones."""
    records = [batch.records[0] for batch in batches]
    cells: dict[tuple[int, int, bool, bool], tuple[int, int]] = {}
    for at, (record, batch) in enumerate(zip(records, batches, strict=True)):
        later = [other for other in range(at + 1, len(records)) if records[other].key == record.key]
        successor = later[0] if later else NEVER
        by_tombstone = bool(later) and records[successor].value is None
        cells[at, successor, record.value is None, by_tombstone] = 1, len(batch.encode()) - 61
    return cells


@pytest.mark.parametrize(("slice_bytes", "shard_entries"), [(1 << 26, 1 << 20), (2000, 1 << 20), (2000, 3), (100, 1)])
def test_each_record_has_the_next_one_of_its_key(tmp_path: Path, slice_bytes: int, shard_entries: int) -> None:
    found = arrivals_of(tmp_path, [batch.encode() for batch in PLAIN], slice_bytes=slice_bytes, shard_entries=shard_entries)
    columns = (found.cells.bucket, found.cells.successor, found.cells.tombstone, found.cells.by_tombstone)
    keys = zip(*(column.tolist() for column in columns), strict=True)
    assert dict(zip(keys, map(tuple, found.cells.numbers.tolist()), strict=True)) == expected(PLAIN)
    assert found.exact


def test_a_task_that_spills_its_keys_finds_the_same_cells(tmp_path: Path) -> None:
    whole = arrivals_of(tmp_path / "a", MIXED)
    with patch.object(module, "SlotTable", _Small):
        spilled = arrivals_of(tmp_path / "b", MIXED, slice_bytes=3000, shard_entries=10)
    assert np.array_equal(whole.cells.keys, spilled.cells.keys)
    assert np.array_equal(whole.cells.numbers, spilled.cells.numbers)
    assert np.array_equal(whole.parts, spilled.parts)


class _Small(SlotTable):
    """Holds few keys."""

    def __init__(self, layout: object, *args: object) -> None:
        super().__init__(ENDS, 5 * 8 * WORDS[ENDS], 0.9, 4)

    @classmethod
    def of_keys(cls, layout: object, keys: int) -> SlotTable:
        return SlotTable.of_keys(ENDS, keys)


def test_a_large_log_has_buckets_of_equal_size(tmp_path: Path) -> None:
    exact = arrivals_of(tmp_path / "a", MIXED)
    with patch.object(module, "EXACT_RECORDS", 10), patch.object(module, "BUCKETS", 16):
        found = arrivals_of(tmp_path / "b", MIXED, slice_bytes=5000, shard_entries=50)
    assert not found.exact
    assert len(found.starts) == 16
    assert found.buckets.tolist() == sorted(found.buckets.tolist())
    assert 16 < len(found.parts) <= 16 * module.PARTS
    for column in (BATCHES, RECORDS, STORED, CONTROLS):
        assert found.parts[:, column].sum() == exact.parts[:, column].sum()
    assert found.cells.numbers.sum(axis=0).tolist() == exact.cells.numbers.sum(axis=0).tolist()
    assert (np.diff(found.parts[:, LARGEST_TIMESTAMP]) >= 0).all()
    never, ever = (each.cells.records[each.cells.successor == NEVER].sum() for each in (found, exact))
    assert never == ever


def arrivals(*times: int) -> Arrivals:
    parts = np.zeros((len(times), COLUMNS), np.int64)
    parts[:, LARGEST_TIMESTAMP], parts[:, FIRST_OFFSET] = times, np.arange(len(times)) * 10
    none = np.empty((0, 2), np.int64)
    return Arrivals(parts, np.arange(len(parts)), Cells(none[:, 0], none), True, none)


def view(*written_ms: int, end: int) -> LogView:
    segments = [
        Segment(number * 20, 100, at_ms * 1_000_000, 0, 0, at_ms, at_ms, number * 20 + 20)
        for number, at_ms in enumerate(written_ms)
    ]
    return LogView(TopicPartition("t", 0), "/logs", "/logs/t-0", tuple(segments), 0, end, end, end, None)


def test_timestamps_are_times_of_arrival_even_if_some_are_late() -> None:
    times = [NOW_MS - 50 * HOUR_MS, NOW_MS - 60 * HOUR_MS, NOW_MS - HOUR_MS]
    found, by_files = arrival_times(arrivals(*times), view(NOW_MS, end=30), NOW_MS)
    assert (found.tolist(), by_files) == ([times[0], times[0], times[2]], False)


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        ([NOW_MS, NOW_MS + 2 * DAY_MS, NOW_MS], "in the future"),
        ([NOW_MS - DAY_MS] * 3, "equal"),
        ([NOW_MS - 5 * DAY_MS, -1, NOW_MS], "have none"),
        ([NOW_MS - days * DAY_MS for days in range(1, 6)], "decrease"),
    ],
)
def test_other_timestamps_are_replaced_by_file_times_or_refused(times: list[int], problem: str) -> None:
    written = (NOW_MS - 10 * DAY_MS, NOW_MS - 4 * DAY_MS, NOW_MS - DAY_MS)
    found, by_files = arrival_times(arrivals(*times), view(*written, end=60), NOW_MS)
    assert by_files
    assert found[0] == written[0] and (np.diff(found) >= 0).all() and found[-1] <= NOW_MS
    with pytest.raises(UnsupportedLogError, match=problem):
        arrival_times(arrivals(*times), view(*[NOW_MS] * 3, end=60), NOW_MS)


def test_an_empty_log_has_no_times() -> None:
    found, by_files = arrival_times(arrivals(), replace(view(NOW_MS, end=0), segments=()), NOW_MS)
    assert (len(found), by_files) == (0, False)


def test_periods_are_days_unless_there_are_few() -> None:
    assert period(0, 60 * DAY_MS) == DAY_MS
    assert period(0, 3 * DAY_MS) == HOUR_MS
    assert period(0, 3 * HOUR_MS) == 600_000


def test_each_end_of_a_period_is_a_check() -> None:
    first_ms = NOW_MS + HOUR_MS
    checks, ends = clock(first_ms, first_ms + 3 * DAY_MS, first_ms + DAY_MS, DAY_MS)
    assert ends.tolist() == [first_ms + DAY_MS, NOW_MS + 2 * DAY_MS, NOW_MS + 3 * DAY_MS, first_ms + 3 * DAY_MS]
    assert set(ends.tolist()) <= set(checks.tolist())
    assert checks[0] == first_ms and (np.diff(checks) > 0).all()


def daily(log_dir: Path, days: int, keys: int) -> tuple[Arrivals, Int64s]:
    """Each key once a day, and a key of its own on each day."""
    names = [[b"k%d" % number for number in range(keys)] + [b"only-%d" % day] for day in range(days)]
    times = [FIRST_MS + day * DAY_MS + number for day, of_day in enumerate(names) for number in range(len(of_day))]
    records = [Record(at, times[at], name, b"value") for at, name in enumerate(sum(names, []))]
    return arrivals_of(log_dir, [Batch([record]).encode() for record in records]), np.array(times)


def test_keys_recur_as_they_did(tmp_path: Path) -> None:
    arrivals, times = daily(tmp_path / "a", 40, 10)
    now_ms = FIRST_MS + 40 * DAY_MS - 1
    found, found_ms = continued(arrivals, times, now_ms, 70 * DAY_MS)
    longer, longer_ms = daily(tmp_path / "b", 110, 10)
    assert found_ms.tolist() == longer_ms.tolist()
    assert found.cells.bucket.tolist() == longer.cells.bucket.tolist()
    assert found.cells.successor.tolist() == longer.cells.successor.tolist()
    assert found.cells.records.tolist() == longer.cells.records.tolist()


def test_a_day_that_is_cut_has_no_later_records(tmp_path: Path) -> None:
    arrivals, times = daily(tmp_path, 3, 4)
    now_ms = FIRST_MS + 3 * DAY_MS - 1
    found, found_ms = continued(arrivals, times, now_ms, DAY_MS)
    assert found_ms[-1] <= now_ms + DAY_MS
    assert len(found_ms) == len(found.parts) == 4 * 5
    assert found.cells.records.sum() == len(found_ms)
    ends = found.cells.successor[found.cells.successor < NEVER]
    assert ends.max() < len(found_ms)


def test_nothing_recurs_if_nothing_arrived_lately(tmp_path: Path) -> None:
    arrivals, times = daily(tmp_path, 3, 4)
    same = continued(arrivals, times, FIRST_MS + 300 * DAY_MS, 90 * DAY_MS)
    assert same[0] is arrivals and same[1] is times


def test_what_comes_after_is_cleaned_as_if_it_had_come(tmp_path: Path) -> None:
    short, longer = daily(tmp_path / "a", 40, 10), daily(tmp_path / "b", 100, 10)
    ends = FIRST_MS + DAY_MS * np.arange(1, 101)
    config = config_of({"cleanup.policy": "compact", "segment.ms": str(DAY_MS), "min.cleanable.dirty.ratio": "0.3"})
    effects = []
    for arrivals, times in (continued(*short, FIRST_MS + 40 * DAY_MS - 1, 60 * DAY_MS), longer):
        effects.append(Replay(arrivals, times, config, DAY_MS).run(ends, ends, "simulated"))
    found, expected = effects
    assert [event.at_ms for event in found.events] == [event.at_ms for event in expected.events]
    # keys of single days have other lengths
    assert all(abs(one.bytes / other.bytes - 1) < 0.01 for one, other in zip(found.samples, expected.samples, strict=True))


def first_ms(segment: NaiveSegment) -> int:
    """The time of the first record of a segment that has one."""
    return next(decode(segment.log)).records()[0].timestamp


def largest_ms(segment: NaiveSegment) -> int:
    return max((batch.max_timestamp for batch in segment.batches), default=segment.mtime_ms)


class PlainLog:
    """A log whose segments are rolled, cleaned by the plain cleaner, and deleted. Each record has a batch of its own."""

    def __init__(self, rules: TopicConfig) -> None:
        self._rules, self.segments, self._end, self._clean_end = rules, list[NaiveSegment](), 0, 0

    @property
    def size(self) -> int:
        return sum(len(segment.log) for segment in self.segments)

    def append(self, record: Record, batch: bytes) -> None:
        rules = self._rules
        active = self.segments[-1] if self.segments else None
        longest_ms = min(rules.segment_ms, rules.max_compaction_lag_ms) if rules.cleanup_compact else rules.segment_ms
        if active is not None:
            full = len(active.log) + len(batch) > rules.segment_bytes
            old = bool(active.log) and record.timestamp - first_ms(active) > longest_ms
            active = None if full or old else active
        if active is None:
            active = NaiveSegment(record.offset, b"")
            self.segments.append(active)
        self.segments[-1] = replace(active, log=active.log + batch, mtime_ms=record.timestamp)
        self._end = record.offset + 1

    def check(self, now_ms: int) -> bool:
        """The cleaner, then the deletion of segments; whether the log was cleaned."""
        cleaned = self._rules.cleanup_compact and self._clean(now_ms)
        if self._rules.cleanup_delete:
            self._delete(now_ms)
        return cleaned

    def _clean(self, now_ms: int) -> bool:
        rules, closed = self._rules, self.segments[:-1]
        first_dirty = max(self._clean_end, self.segments[0].base_offset) if self.segments else 0
        dirty = [segment for segment in closed if segment.base_offset >= first_dirty]
        overdue = any(segment.log and now_ms - first_ms(segment) > rules.max_compaction_lag_ms for segment in dirty)
        if rules.min_compaction_lag_ms:
            dirty = list(takewhile(lambda segment: largest_ms(segment) <= now_ms - rules.min_compaction_lag_ms, dirty))
        dirty_bytes = sum(len(segment.log) for segment in dirty)
        total = dirty_bytes + sum(len(segment.log) for segment in closed if segment.base_offset < first_dirty)
        if not dirty_bytes or not (dirty_bytes / total > rules.min_cleanable_dirty_ratio or overdue):
            return False
        self._clean_end = self.segments[closed.index(dirty[-1]) + 1].base_offset
        round_ = NaiveRound(
            first_dirty, self._clean_end, now_ms, segment_bytes=rules.segment_bytes,
            delete_retention_ms=rules.delete_retention_ms,
        )  # fmt: skip
        self.segments = clean_log_naively(self.segments, round_).segments
        return True

    def _delete(self, now_ms: int) -> None:
        rules, size = self._rules, self.size
        if 0 <= rules.retention_bytes <= size:
            while self._may_drop and size - len(self.segments[0].log) >= rules.retention_bytes:
                size -= self._drop(now_ms)
        while rules.retention_ms >= 0 and self._may_drop and now_ms - largest_ms(self.segments[0]) > rules.retention_ms:
            self._drop(now_ms)

    @property
    def _may_drop(self) -> bool:
        """An empty last segment remains."""
        return len(self.segments) > 1 or any(segment.log for segment in self.segments)

    def _drop(self, now_ms: int) -> int:
        dropped = len(self.segments.pop(0).log)
        if not self.segments:
            self.segments.append(NaiveSegment(self._end, b"", mtime_ms=now_ms))
        return dropped


LOGS = 100


def policy(chance: random.Random) -> dict[str, str]:
    cleanup = chance.choice(["compact", "delete", "compact,delete"])
    drawn: dict[str, float] = {
        "internal.segment.bytes": chance.choice([300, 700, 3000, 1 << 30]),
        "segment.ms": chance.choice([DAY_MS // 3, DAY_MS, 5 * DAY_MS, 50 * DAY_MS]),
        "min.cleanable.dirty.ratio": chance.choice([0.0, 0.1, 0.3, 0.5, 0.9]),
        "delete.retention.ms": chance.choice([0, DAY_MS // 2, 3 * DAY_MS]),
        "min.compaction.lag.ms": (lag := chance.choice([0, 0, DAY_MS])),
        "max.compaction.lag.ms": chance.choice([2**63 - 1, max(lag, 2 * DAY_MS)]),
        "retention.ms": chance.choice([-1, 2 * DAY_MS, 6 * DAY_MS]),
        "retention.bytes": chance.choice([-1, -1, 1000, 4000]),
    }
    return {"cleanup.policy": cleanup, **{name: str(value) for name, value in drawn.items()}}


def log(chance: random.Random) -> list[Record]:
    times = sorted(FIRST_MS + chance.randrange(12 * DAY_MS) for _ in range(chance.randrange(1, 70)))
    keys = [b"k%d" % number for number in range(chance.choice([1, 3, 10, 40]))]
    return [
        Record(
            offset,
            at_ms,
            None if chance.random() < 0.05 else chance.choice(keys),
            None if chance.random() < 0.2 else bytes(chance.randrange(90)),
        )
        for offset, at_ms in enumerate(times)
    ]


@pytest.mark.parametrize("first", range(0, 500, LOGS))
def test_every_check_is_as_record_by_record(tmp_path: Path, first: int) -> None:
    for number in range(first, first + LOGS):
        chance = random.Random(number)
        records, settings = log(chance), policy(chance)
        config = config_of(settings)
        ends = [FIRST_MS + count * DAY_MS // 2 for count in range(1, 40)]
        batches = [Batch([record]).encode() for record in records]
        times = np.array([record.timestamp for record in records])
        effect = Replay(arrivals_of(tmp_path / str(number), batches), times, config, DAY_MS).run(
            np.array(ends), np.array(ends), "simulated"
        )
        cleaned = {event.at_ms for event in effect.events if event.what == "cleaned"}
        ours = [(sample.bytes, sample.segments, sample.at_ms in cleaned) for sample in effect.samples]
        plain, expected, waiting = PlainLog(config), [], deque(zip(records, batches, strict=True))
        for end_ms in ends:
            while waiting and waiting[0][0].timestamp <= end_ms:
                plain.append(*waiting.popleft())
            done = plain.check(end_ms)
            expected.append((plain.size, len(plain.segments), done))
        assert ours == expected, (number, settings)
