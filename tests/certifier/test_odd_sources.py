"""Logs that are cleaned over several rounds, cut at the log start, split, left by an unclean shutdown, or have max timestamps
that are too low. What a run repairs or keeps is not held against it, what it has lost is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compaction.certifier.certificate import LogCertificate, Status, Violation
from compaction.files.local import LocalFileSystem
from compaction.formats import indexes
from tests.certifier.certify import certify_copy
from tests.certifier.story import CONFIG, INTERVAL_BYTES, T, sent
from tests.certifier.story import NOW_MS as STORY_MS
from tests.certifier.story import TOPIC as STORY
from tests.kafka.encode import Batch, Record
from tests.local_job import clean_locally, write_offsets
from tests.log.logs import NOW_MS, TOPIC, Built, build, data_batch, data_segment
from tests.oracle.disk import write_partition
from tests.oracle.logs import ABORT, Batching, LogBuilder

LOG = str(TOPIC)
HOUR_MS = 3_600_000
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
TOPICS = {TOPIC.topic: {**COMPACT, "delete.retention.ms": str(HOUR_MS)}}
LOST = "record is missing though it is the last of its key"


def source(tmp_path: Path, segments: Iterable[Built]) -> tuple[Path, Path]:
    """A log directory, and the path of its copy."""
    before = tmp_path / "before"
    (before / LOG).mkdir(parents=True)
    for segment in segments:
        segment.put(LocalFileSystem(), str(before / LOG))
    return before, tmp_path / "after"


def cleaned(before: Path, after: Path, *as_of_ms: int) -> None:
    """The copy, cleaned in a round at each of these times."""
    shutil.copytree(before, after)
    for time_ms in as_of_ms:
        (after / "cleaner-offset-checkpoint").unlink(missing_ok=True)
        clean_locally(after, time_ms, TOPICS)


def bases(log_dir: Path) -> list[int]:
    return sorted(int(log.stem) for log in (log_dir / LOG).glob("*.log"))


def check(log: LogCertificate, *violations: Violation) -> None:
    """Checks that the log has exactly these violations."""
    assert log.violations == violations
    assert log.status is (Status.VIOLATED if violations else Status.HOLDS)


@pytest.mark.parametrize(
    ("written_ms", "closed_ms", "lost"),
    [
        (NOW_MS - HOUR_MS, NOW_MS - HOUR_MS, False),
        (NOW_MS + HOUR_MS, NOW_MS - HOUR_MS, False),
        (NOW_MS - HOUR_MS, NOW_MS, False),
        (NOW_MS - HOUR_MS + 1, NOW_MS - HOUR_MS + 1, True),
    ],
)
def test_a_tombstone_is_dropped_after_its_segment_was_complete_for_the_retention(
    tmp_path: Path, written_ms: int, closed_ms: int, lost: bool
) -> None:
    """An earlier round has set the delete horizon that a later one dropped, whatever the producer's clock said."""
    batch = Batch([Record(0, written_ms, b"a", b"v"), Record(1, written_ms, b"b", None)])
    before, after = source(tmp_path, [build(0, [batch.encode()]), data_segment(2, [2])])
    os.utime(before / LOG / f"{0:020d}.log", ns=(closed_ms * 1_000_000,) * 2)
    cleaned(before, after, NOW_MS - HOUR_MS, NOW_MS)
    (log,) = certify_copy(before, after, NOW_MS, TOPICS, several_rounds=True).logs
    check(log, *([Violation(1, LOST)] if lost else []))


@pytest.mark.parametrize("several_rounds", [True, False])
@pytest.mark.parametrize("superseded", [True, False])
def test_what_was_deleted_from_the_source_since_a_round_is_not_compared(
    tmp_path: Path, superseded: bool, several_rounds: bool
) -> None:
    """A round joined two segments; then the log start has moved into them, and the broker has deleted the first."""
    keys = {0: b"key" if superseded else b"gone", 10: b"key", 20: b"active"}
    segments = [build(base, [Batch([Record(base, NOW_MS, key, b"v")]).encode()]) for base, key in keys.items()]
    before, after = source(tmp_path, segments)
    cleaned(before, after, NOW_MS)
    assert bases(after) == [0, 20]
    for file in (before / LOG).glob(f"{0:020d}.*"):
        file.unlink()
    for log_dir in (before, after):
        write_offsets(log_dir, log_starts={TOPIC.topic: 10})
    (log,) = certify_copy(before, after, NOW_MS, TOPICS, several_rounds=several_rounds).logs
    assert log.status is (Status.HOLDS if several_rounds else Status.VIOLATED)
    if several_rounds:
        assert (log.records_before, log.records_after) == (2, 2)
        # what lies above the log start is compared
        (after / LOG / f"{0:020d}.log").write_bytes(b"")
        (log,) = certify_copy(before, after, NOW_MS, TOPICS, several_rounds=True).logs
        assert Violation(10, LOST) in log.violations


def test_a_log_with_a_segment_that_was_split_holds(tmp_path: Path) -> None:
    """Its offsets overflow its indexes, which cover its start only."""
    far, now_ms = 2**31 + 5, NOW_MS + 10**6
    wide = build(0, [data_batch(0)])
    wide.files[".log"] += data_batch(far, timestamp=NOW_MS - 1)
    before, after = source(tmp_path, [wide, data_segment(far + 10, [far + 10])])
    cleaned(before, after, now_ms)
    assert bases(after) == [0, far, far + 10]
    (log,) = certify_copy(before, after, now_ms, TOPICS).logs
    check(log)


def too_low(offset: int, keys: str) -> Batch:
    records = [Record(at, NOW_MS - 1000, key.encode(), b"v") for at, key in enumerate(keys, offset)]
    return Batch(records, max_timestamp=NOW_MS - 5000)


@pytest.mark.parametrize(
    ("rewritten", "violations"),
    [
        (None, ()),
        (replace(too_low(3, "d"), base_offset=2), (Violation(2, "max timestamp of the batch is below that of a record"),)),
    ],
)
def test_only_a_copied_batch_keeps_a_max_timestamp_that_is_too_low(
    tmp_path: Path, rewritten: Batch | None, violations: tuple[Violation, ...]
) -> None:
    """One that is written anew has that of its records; ``rewritten`` replaces the second batch of the result."""
    batches = [too_low(0, "ab").encode(), too_low(2, "cd").encode(), Batch([Record(4, NOW_MS - 1000, b"c", b"v")]).encode()]
    before, after = source(tmp_path, [build(0, batches), data_segment(5, [5])])
    cleaned(before, after, NOW_MS)
    if rewritten is not None:
        build(0, [batches[0], rewritten.encode(), batches[2]]).put(LocalFileSystem(), str(after / LOG))
    (log,) = certify_copy(before, after, NOW_MS, TOPICS).logs
    check(log, *violations)


@pytest.mark.parametrize("first_offset", [4, 3])
def test_transactions_are_compared_from_the_log_start_on(tmp_path: Path, first_offset: int) -> None:
    """Of the transactions of a log that starts within a segment, those that end below the log start are left to the cleaner."""
    before, after = tmp_path / "before", tmp_path / "after"
    log, aborted = LogBuilder(INTERVAL_BYTES), Batching(producer=8, transactional=True)
    for key in ("below", "above"):
        log.batch([sent(key), sent(f"{key}-2")], aborted)
        log.marker(8, ABORT, timestamp=T)
        log.batch([sent(f"{key}-3")])
    log.roll(T)
    log.batch([sent("active")])
    write_partition(before / f"{STORY}-0", log.build(STORY_MS))
    write_offsets(before, log_starts={STORY: 3})
    shutil.copytree(before, after)
    clean_locally(after, STORY_MS, {STORY: CONFIG})
    index = after / f"{STORY}-0" / f"{0:020d}.txnindex"
    (entry,) = indexes.read_txn_index(index.read_bytes()).tolist()
    assert entry[:3] == (8, 4, 6)
    index.write_bytes(indexes.write_txn_index(np.array([(8, first_offset, *entry[2:])], indexes.TXN_ROW)))
    (found,) = certify_copy(before, after, STORY_MS, {STORY: CONFIG}).logs
    check(found, *([] if first_offset == 4 else [Violation(6, ".txnindex entry differs from that of the source")]))


def entry(*fields: int) -> Callable[[bytes], bytes]:
    return lambda _: indexes.write_txn_index(np.array([fields], indexes.TXN_ROW))


#: of a directory of ``tests/golden/unclean``, its log end, and a change of its transaction index
UNCLEAN: dict[str, tuple[str, int, Callable[[bytes], bytes] | None]] = {
    "an empty index": ("empty-txnindex", 4, lambda data: data),
    "a malformed index": ("empty-txnindex", 4, lambda _: bytes([1]) * 7),
    "an index of another producer": ("empty-txnindex", 4, entry(3, 2, 3, 4)),
    "an index with other offsets": ("empty-txnindex", 4, entry(2, 1, 2, 3)),
    "garbage after the last batch": ("garbage-tail", 24, None),
}


@pytest.mark.parametrize(("case", "end_offset", "change"), UNCLEAN.values(), ids=UNCLEAN.keys())
def test_what_kafka_makes_of_a_source_after_an_unclean_shutdown_holds(
    tmp_path: Path, case: str, end_offset: int, change: Callable[[bytes], bytes] | None
) -> None:
    """A rebuilt transaction index is not compared with a wrong one, and garbage is no record."""
    golden, before, after = Path(__file__).parents[1] / "golden" / "unclean" / case, tmp_path / "before", tmp_path / "after"
    shutil.copytree(golden / "t-0", before / "t-0")
    if change is not None:
        index = before / "t-0" / f"{0:020d}.txnindex"
        index.write_bytes(change(index.read_bytes()))
    shutil.copytree(golden / "expected-by-kafka", after)
    write_offsets(after, cleaner_offsets={"t": end_offset})
    found = certify_copy(before, after, 1_800_000_000_000, {"t": COMPACT}).logs[0]
    assert found.status is Status.HOLDS, str(found)
