"""A batch that retains all of its records keeps the max timestamp of its source, be that too low; one that is written anew has
that of its records."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from compaction.certifier.certificate import Status, Violation
from compaction.storage.local import LocalFileSystem
from tests.certifier.certify import certify_copy
from tests.kafka.encode import Batch, Record
from tests.local_job import clean_locally
from tests.logdir.logs import NOW_MS, TOPIC, build, data_segment

TOPICS = {TOPIC.topic: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
TIME, TOO_LOW = NOW_MS - 1000, NOW_MS - 5000


def too_low(offset: int, keys: str) -> Batch:
    records = [Record(at, TIME, key.encode(), b"v") for at, key in enumerate(keys, offset)]
    return Batch(records, max_timestamp=TOO_LOW)


def certified(tmp_path: Path, rewritten: Batch | None = None) -> tuple[Status, tuple[Violation, ...]]:
    """The certificate of a cleaned log, the second batch of which may have been replaced by another one."""
    before, after = tmp_path / "before", tmp_path / "after"
    (before / str(TOPIC)).mkdir(parents=True)
    batches = [too_low(0, "ab").encode(), too_low(2, "cd").encode(), Batch([Record(4, TIME, b"c", b"v")]).encode()]
    for segment in (build(0, batches), data_segment(5, [5])):
        segment.put(LocalFileSystem(), str(before / str(TOPIC)))
    shutil.copytree(before, after)
    clean_locally(after, NOW_MS, TOPICS)
    if rewritten is not None:
        batches[1] = rewritten.encode()
        build(0, batches).put(LocalFileSystem(), str(after / str(TOPIC)))
    (log,) = certify_copy(before, after, NOW_MS, TOPICS).logs
    return log.status, log.violations


def test_a_copied_batch_keeps_it_and_a_rewritten_one_has_that_of_its_records(tmp_path: Path) -> None:
    assert certified(tmp_path) == (Status.HOLDS, ())


def test_a_rewritten_batch_that_keeps_it_is_a_violation(tmp_path: Path) -> None:
    status, violations = certified(tmp_path, replace(too_low(3, "d"), base_offset=2))
    assert status is Status.VIOLATED
    assert violations == (Violation(2, "max timestamp of the batch is below that of a record"),)
