"""Copies with ``--since``: an earlier round has set the delete horizon of a tombstone that a later one dropped, whatever its
producer's clock said."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from compaction.certifier.certificate import Status, Violation
from compaction.storage.local import LocalFileSystem
from tests.certifier.certify import certify_copy
from tests.kafka.encode import Batch, Record
from tests.local_job import clean_locally, write_offsets
from tests.logdir.logs import NOW_MS, TOPIC, build, data_segment

HOUR_MS = 3_600_000
TOPICS = {
    TOPIC.topic: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": str(HOUR_MS)}
}
LOST = Violation(1, "record is missing though it is the last of its key")


@pytest.mark.parametrize(
    ("written_ms", "closed_ms", "violations"),
    [
        (NOW_MS - HOUR_MS, NOW_MS - HOUR_MS, ()),
        (NOW_MS + HOUR_MS, NOW_MS - HOUR_MS, ()),
        (NOW_MS - HOUR_MS, NOW_MS, ()),
        (NOW_MS - HOUR_MS + 1, NOW_MS - HOUR_MS + 1, (LOST,)),
    ],
)
def test_a_tombstone_is_dropped_after_its_segment_was_complete_for_the_retention(
    tmp_path: Path, written_ms: int, closed_ms: int, violations: tuple[Violation, ...]
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    (before / str(TOPIC)).mkdir(parents=True)
    batch = Batch([Record(0, written_ms, b"a", b"v"), Record(1, written_ms, b"b", None)])
    for segment in (build(0, [batch.encode()]), data_segment(2, [2])):
        segment.put(LocalFileSystem(), str(before / str(TOPIC)))
    os.utime(before / str(TOPIC) / f"{0:020d}.log", ns=(closed_ms * 1_000_000,) * 2)
    shutil.copytree(before, after)
    for as_of_ms in (NOW_MS - HOUR_MS, NOW_MS):
        (after / "cleaner-offset-checkpoint").unlink(missing_ok=True)
        clean_locally(after, as_of_ms, TOPICS)
    (log,) = certify_copy(before, after, NOW_MS, TOPICS, several_rounds=True).logs
    assert log.violations == violations
    assert log.status is (Status.VIOLATED if violations else Status.HOLDS)


@pytest.mark.parametrize("several_rounds", [True, False])
@pytest.mark.parametrize("superseded", [True, False])
def test_what_was_deleted_from_the_source_since_a_round_is_not_compared(
    tmp_path: Path, superseded: bool, several_rounds: bool
) -> None:
    """A round joined two segments; then the log start has moved into them, and the broker has deleted the first."""
    before, after = tmp_path / "before", tmp_path / "after"
    (before / str(TOPIC)).mkdir(parents=True)
    keys = {0: b"key" if superseded else b"gone", 10: b"key", 20: b"active"}
    for base, key in keys.items():
        build(base, [Batch([Record(base, NOW_MS, key, b"v")]).encode()]).put(LocalFileSystem(), str(before / str(TOPIC)))
    shutil.copytree(before, after)
    clean_locally(after, NOW_MS, TOPICS)
    assert sorted(int(log.stem) for log in (after / str(TOPIC)).glob("*.log")) == [0, 20]
    for file in (before / str(TOPIC)).glob(f"{0:020d}.*"):
        file.unlink()
    for log_dir in (before, after):
        write_offsets(log_dir, log_starts={TOPIC.topic: 10})
    (log,) = certify_copy(before, after, NOW_MS, TOPICS, several_rounds=several_rounds).logs
    assert log.status is (Status.HOLDS if several_rounds else Status.VIOLATED)
    if several_rounds:
        assert (log.records_before, log.records_after) == (2, 2)
        # what lies above the log start is compared
        (after / str(TOPIC) / f"{0:020d}.log").write_bytes(b"")
        (log,) = certify_copy(before, after, NOW_MS, TOPICS, several_rounds=True).logs
        assert Violation(10, "record is missing though it is the last of its key") in log.violations
