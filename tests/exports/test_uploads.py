"""Producer snapshots that a log directory lacks are replayed when they are needed, log by log, and not kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compaction.exports.uploads import new_uploads
from compaction.files.local import LocalFileSystem
from compaction.formats.producer_snapshot import read_snapshot
from compaction.log.read_log import read_segments
from compaction.names import TopicPartition
from compaction.rules.log_view import Segment
from tests.log.logs import build, put_snapshot, txn_batch

BASES = range(0, 60, 10)
STORED = 30


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Each segment has a transaction of another producer; there is one snapshot, of none."""
    path = tmp_path / "orders-0"
    path.mkdir()
    for base in BASES:
        for kind, data in build(base, [txn_batch(base, producer_id=base + 1)]).files.items():
            (path / f"{base:020d}{kind}").write_bytes(data)
    put_snapshot(LocalFileSystem(), str(path), STORED)
    return str(path)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The logs that were replayed."""
    found: list[str] = []

    def replayed(files: LocalFileSystem, path: str) -> tuple[Segment, ...]:
        found.append(path)
        return read_segments(files, path)

    monkeypatch.setattr("compaction.exports.uploads.read_segments", replayed)
    return found


def test_a_log_is_replayed_once_when_the_first_snapshot_is_read(log: str, replays: list[str]) -> None:
    made = list(new_uploads(LocalFileSystem(), TopicPartition("orders", 0), log))
    assert [each.end_offset for each in made] == [*BASES[1:], BASES[-1] + 1] and not replays
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: read_snapshot(each.snapshot()), made))
    assert replays == [log]
    producers = [[entry.producer_id for entry in entries] for entries in found]
    ends = [each.end_offset for each in made]
    assert producers == [[] if end == STORED else [base + 1 for base in BASES if base < end] for end in ends]


def test_snapshots_that_were_read_are_not_kept(log: str, replays: list[str]) -> None:
    first, *others = new_uploads(LocalFileSystem(), TopicPartition("orders", 0), log)
    data = first.snapshot()
    assert len(replays) == 1
    assert first.snapshot() == data
    assert len(replays) == 2
    assert len({each.snapshot() for each in others}) == len(others)
    assert len(replays) == 2
