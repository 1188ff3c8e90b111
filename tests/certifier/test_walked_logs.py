"""What follows from walks through the segments of a log: a transactional batch belongs to the transaction that the next marker
of its producer ends, and ranges hold every offset of the log once, whatever the size at which it is cut. The last record of a
key in all of them decides whether its missing records were superseded, dropped as tombstones, or lost."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from compaction.certifier import key_tables
from compaction.certifier.find_pairs import CleaningRules, LogPair, SegmentFiles, Side
from compaction.certifier.key_tables import KeyTables
from compaction.certifier.reader import Chunk
from compaction.certifier.records import RangeTask, cut_into_ranges
from compaction.certifier.segments import DATA, EVENT_ROW, SegmentWalk, WalkedLog, WalkTask, join_runs, walk_segment
from compaction.certifier.transactions import OPEN, TXN_EVENT_ROW, aborted_data, following, is_aborted, resolve
from compaction.kernels.locate import RECORD_ROW
from compaction.kernels.tables import ABORT, BATCH_ROW, COMMIT
from compaction.names import TopicPartition
from tests.kafka.encode import Batch, Record


def walk(*events: tuple[int, int, int, int]) -> SegmentWalk:
    """A segment with events of (producer, first, last, kind)."""
    rows = np.array([(producer, first, last, 0, kind) for producer, first, last, kind in events], EVENT_ROW)
    return SegmentWalk(WalkTask(0, SegmentFiles("/log", 0, 0, 0), is_after=False), events=[join_runs(rows)])


def test_an_outcome_is_that_of_the_producers_next_marker_in_any_segment() -> None:
    first = walk((7, 0, 1, DATA), (8, 2, 3, DATA), (7, 4, 5, DATA))
    second = walk((7, 6, 6, ABORT), (8, 7, 7, COMMIT), (7, 8, 9, DATA))
    txns = resolve([first, second])
    found = {(row["producer_id"], row["first"]): row["outcome"] for row in txns}
    assert found == {(7, 0): ABORT, (7, 6): ABORT, (7, 8): OPEN, (8, 2): COMMIT, (8, 7): COMMIT}
    assert aborted_data(txns)[["producer_id", "first", "last"]].tolist() == [(7, 0, 6)]


@pytest.mark.parametrize(("producer", "first", "events"), [(7, 0, 1), (-1, 0, 0), (7, 1, 1), (7, 2, 0)])
def test_batches_of_producers_from_an_offset_on_belong_to_transactions(
    tmp_path: Path, producer: int, first: int, events: int
) -> None:
    records = [Record(0, 1, b"a", b""), Record(1, 1, b"b", b"")]
    batch = Batch(records, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True).encode()
    (tmp_path / f"{0:020d}.log").write_bytes(batch)
    files = SegmentFiles(str(tmp_path), 0, len(batch), 0, last=True)
    walked = walk_segment(WalkTask(0, files, is_after=False, txns_from=first))
    assert walked.fault is None
    assert sum(map(len, walked.events)) == events


@pytest.mark.parametrize(("producer", "offset", "aborted"), [(7, 0, True), (7, 5, True), (7, 9, False), (8, 3, False)])
def test_a_batch_is_aborted_up_to_the_marker(producer: int, offset: int, aborted: bool) -> None:
    ranges = aborted_data(resolve([walk((7, 0, 5, DATA), (7, 6, 6, ABORT), (7, 8, 9, DATA))]))
    assert is_aborted(ranges, np.array([producer]), np.array([offset])).tolist() == [aborted]


def test_following_finds_what_a_plain_search_finds() -> None:
    rng = np.random.default_rng(1)
    rows = np.zeros(60, EVENT_ROW)
    rows["producer_id"], rows["last"] = known, ends = rng.integers(0, 4, 60), rng.permutation(60)
    producer, offset = rng.integers(0, 5, 80), rng.integers(-1, 62, 80)
    expected = []
    for who, at in zip(producer, offset, strict=True):
        later = [row for row in range(60) if known[row] == who and ends[row] >= at]
        expected.append(min(later, key=lambda row: int(ends[row]), default=-1))
    assert following(rows, producer, offset).tolist() == expected


#: from 0 to 45, and from 130 to 180
ABORTED = np.array([(7, 0, 45, 0, DATA, ABORT, 45), (7, 130, 180, 0, DATA, ABORT, 180)], TXN_EVENT_ROW)
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
    return list(cut_into_ranges(0, WalkedLog(pair, BEFORE, AFTER), ABORTED, size))


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
    assert [task.aborted["first"].tolist() for task in ranges(1)] == [[0], [0], [130], [130]]


@pytest.mark.parametrize(
    ("cleaned_to", "several_rounds", "horizon_ms"),
    [(None, False, 8 * DAY_MS), (0, False, 0), (100, False, 11 * DAY_MS), (100, True, 11 * DAY_MS)],
)
def test_old_tombstones_may_be_dropped_by_the_time_of_a_last_clean_segment(
    cleaned_to: int | None, several_rounds: bool, horizon_ms: int
) -> None:
    found = ranges(1, cleaned_to, several_rounds=several_rounds)
    assert {task.legacy_delete_horizon_ms for task in found} == {horizon_ms}


class Seen(NamedTuple):
    """A record of ``before``."""

    key: bytes
    offset: int
    missing: bool = False
    droppable: bool = False


LOST = "record is missing though it is the last of its key"
EARLY = "tombstone is missing though older records of its key are retained"
EXTRA = "older records of this record's key are retained"


def tables(records: list[Seen], partitions: int = 1) -> list[tuple[int, bytes]]:
    keys = KeyTables(partitions, 5)
    data = b"".join(each.key for each in records)
    rows = np.zeros(len(records), RECORD_ROW)
    rows["offset"] = [each.offset for each in records]
    rows["key_size"] = [len(each.key) for each in records]
    rows["key_at"] = np.cumsum(rows["key_size"]) - rows["key_size"]
    chunk = Chunk(np.zeros(1, BATCH_ROW), rows, np.frombuffer(data, np.uint8), "", 0)
    flags = (np.array([getattr(each, name) for each in records], np.bool_) for name in ("missing", "droppable"))
    keys.add(chunk, np.arange(len(records)), *flags)
    return list(keys.packed())


def concluded(*tasks: list[Seen], strict: bool = False) -> tuple[set[tuple[int, str]], dict[str, int]]:
    joined = KeyTables()
    for _, packed in (each for task in tasks for each in tables(task)):
        joined.add_packed(packed)
    findings, counts = joined.conclude(strict=strict)
    return {(each.offset, each.what) for each in findings.named}, {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    ("records", "violations", "counts"),
    [
        ([Seen(b"a", 1), Seen(b"b", 2)], set(), {}),
        ([Seen(b"a", 1, missing=True), Seen(b"a", 2)], set(), {"superseded": 1}),
        ([Seen(b"a", 1), Seen(b"a", 2)], set(), {"superseded_left": 1}),
        ([Seen(b"a", 1, missing=True)], {(1, LOST)}, {}),
        ([Seen(b"a", 1), Seen(b"a", 2, missing=True)], {(2, LOST)}, {"superseded_left": 1}),
        ([Seen(b"a", 1, missing=True, droppable=True)], set(), {"tombstone": 1}),
        ([Seen(b"a", 1, missing=True), Seen(b"a", 2, missing=True, droppable=True)], set(), {"superseded": 1, "tombstone": 1}),
        ([Seen(b"a", 1), Seen(b"a", 2, missing=True, droppable=True)], {(2, EARLY)}, {"tombstone": 1, "superseded_left": 1}),
        ([Seen(b"", 1, missing=True), Seen(b"", 2), Seen(b"\0", 3, missing=True)], {(3, LOST)}, {"superseded": 1}),
    ],
)
def test_a_missing_record_is_superseded_a_tombstone_or_lost(
    records: list[Seen], violations: set[tuple[int, str]], counts: dict[str, int]
) -> None:
    assert concluded(records) == (violations, counts)
    assert concluded(*([each] for each in records)) == (violations, counts)


def test_retained_superseded_records_are_violations_when_strict() -> None:
    assert concluded([Seen(b"a", 1), Seen(b"a", 9)], strict=True)[0] == {(9, EXTRA)}


def test_a_key_is_in_the_same_partition_for_every_task() -> None:
    keys = [b"key-%d" % number for number in range(200)]
    found: list[dict[int, set[bytes]]] = []
    for task in (keys, keys[::-1]):
        packed = tables([Seen(key, number) for number, key in enumerate(task)], partitions=7)
        found.append({partition: set(pa.ipc.open_stream(table).read_all()["key"].to_pylist()) for partition, table in packed})
    assert found[0] == found[1]
    assert (set(found[0]), sum(map(len, found[0].values()))) == (set(range(7)), 200)


def test_tables_that_outgrow_memory_are_joined_and_spilled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_tables, "_JOIN_BYTES", 1)
    monkeypatch.setattr(key_tables, "_SPILL_BYTES", 1)
    assert concluded([Seen(b"a", 1, missing=True), Seen(b"a", 2)], [Seen(b"a", 3, missing=True)]) == (
        {(3, LOST)},
        {"superseded": 1, "superseded_left": 1},
    )
