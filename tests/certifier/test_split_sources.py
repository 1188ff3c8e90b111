"""Segments that a run splits, because their offsets overflow their indexes, are segments of the source."""

from __future__ import annotations

import shutil
from pathlib import Path

from compaction.certifier.certificate import Status
from compaction.storage.local import LocalFileSystem
from tests.certifier.certify import certify_copy
from tests.local_job import clean_locally
from tests.logdir.logs import NOW_MS, TOPIC, build, data_batch, data_segment

TOPICS = {TOPIC.topic: {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
FAR = 2**31 + 5


def test_a_log_with_a_segment_that_was_split_holds(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    path = before / str(TOPIC)
    path.mkdir(parents=True)
    wide = build(0, [data_batch(0), data_batch(FAR, timestamp=NOW_MS - 1)])
    for segment in (wide, data_segment(FAR + 10, [FAR + 10])):
        segment.put(LocalFileSystem(), str(path))
    shutil.copytree(before, after)
    clean_locally(after, NOW_MS + 10**6, TOPICS)
    assert sorted(int(each.stem) for each in (after / str(TOPIC)).glob("*.log")) == [0, FAR, FAR + 10]
    (log,) = certify_copy(before, after, NOW_MS + 10**6, TOPICS).logs
    assert (log.status, log.violations) == (Status.HOLDS, ())
