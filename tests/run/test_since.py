"""Incremental copies: which logs continue the previous copy, and what is taken from it.

The reference is a directory that grows as the source does, and is cleaned in place each time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import StorageError, UsageError
from compaction.files.local import LocalFileSystem
from compaction.files.manifest import Manifest, SourceLog, SourceSegment
from compaction.names import PARTITION_METADATA
from compaction.output.finished import FINISHED, read_finished
from compaction.output.journal import JOURNAL
from compaction.output.previous_copy import NotContinuedError, common_segments, identify
from compaction.report import LogReport, LogStatus, RunReport, Since
from compaction.run import prepare
from compaction.run.compact import clean_logs
from tests.crash.surroundings import StoppingFiles
from tests.disk import Operation, Stopped, WatchedFileSystem
from tests.kafka.encode import Batch, Record
from tests.local_job import read_offsets, request_for, write_offsets
from tests.local_passes import LocalPasses
from tests.log.logs import NOW_MS, build, location
from tests.oracle.records import decode

FS = LocalFileSystem()
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "index.interval.bytes": "1"}
TOPICS = ("orders", "ledger")
KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
#: half an hour between the copies
STEP_MS = 1_800_000


class Night:
    """A source that grows, its copies, and a directory that is cleaned in place in the same rounds."""

    def __init__(self, root: Path) -> None:
        self.root, self.source, self.reference = root, root / "source", root / "reference"
        self.config = COMPACT
        self.round = 0
        for log_dir in (self.source, self.reference):
            for topic in TOPICS:
                put_segments(log_dir, topic, 0, 100, 200)
                (log_dir / f"{topic}-0" / PARTITION_METADATA).write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")

    def grow(self, topic: str, *bases: int) -> None:
        """New segments; the last of them is active."""
        for log_dir in (self.source, self.reference):
            put_segments(log_dir, topic, *bases)

    def copy(self, previous: Path | None = None, **options: Any) -> tuple[Path, dict[str, LogReport]]:
        """The next copy, and its reports."""
        target = self.root / f"copy-{self.round}"
        report = self.run(self.source, target, since=None if previous is None else str(previous), **options)
        return target, {log.topic: log for log in report.logs}

    def clean(self) -> None:
        """The round of the reference."""
        self.run(self.reference, None)
        for left in self.reference.rglob("*.deleted"):
            left.unlink()

    def run(self, log_dir: Path, target: Path | None, files: WatchedFileSystem | None = None, **options: Any) -> RunReport:
        self.round += target is not None
        request = request_for(log_dir, NOW_MS + self.round * STEP_MS, dict.fromkeys(TOPICS, self.config))
        call = None if target is None else {"command": "compact", "round": self.round}
        request = replace(request, output_dir=None if target is None else str(target), call=call, **options)
        return clean_logs(LocalPasses, request, files)


def _batch(offset: int) -> bytes:
    """The records of a segment have the keys of those of any other one, except for the first."""
    key = b"key-%d" % (offset if offset % 100 == 0 else offset % 100)
    time_ms = NOW_MS - 4 * 3_600_000 + 30_000 * offset
    return Batch([Record(offset, time_ms, key, b"value-%d" % offset)]).encode()


def put_segments(log_dir: Path, topic: str, *bases: int) -> None:
    """Adds segments of nine records."""
    path = log_dir / f"{topic}-0"
    path.mkdir(parents=True, exist_ok=True)
    for base in bases:
        build(base, [_batch(base + number) for number in range(9)], interval=1).put(FS, str(path))
        for kind in KINDS[:3]:
            os.utime(path / f"{base:020d}{kind}", ns=(NOW_MS * 1_000_000,) * 2)


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return Night(tmp_path)


@pytest.fixture
def first(night: Night) -> Path:
    """The first copy."""
    return night.copy()[0]


def logs(log_dir: Path, topic: str) -> dict[str, bytes]:
    """The files of a log that a broker loads."""
    return {path.name: path.read_bytes() for path in (log_dir / f"{topic}-0").iterdir() if path.suffix in KINDS}


def same_as_reference(night: Night, copy: Path) -> None:
    for topic in TOPICS:
        assert logs(copy, topic) == logs(night.reference, topic)
    assert read_offsets(copy, "cleaner_offsets") == read_offsets(night.reference, "cleaner_offsets")


def test_a_copy_of_an_unchanged_source_has_the_files_of_the_previous_one(night: Night, first: Path) -> None:
    second, reports = night.copy(first)
    for topic in TOPICS:
        assert (reports[topic].since, reports[topic].status) == (Since.UNCHANGED.value, LogStatus.SKIPPED)
        assert reports[topic].previous_bytes == sum(len(data) for name, data in logs(first, topic).items() if ".log" in name)
        assert logs(second, topic) == logs(first, topic)
    was, now = (read_finished(str(copy)) for copy in (first, second))
    assert was is not None and now is not None and was.sources == now.sources
    assert {entry.path: entry.xxh3_128 for entry in was.files} == {entry.path: entry.xxh3_128 for entry in now.files}


DELETING = {"cleanup.policy": "compact,delete", "retention.ms": str(4 * 3_600_000)}


@pytest.mark.parametrize(
    ("growth", "config", "read_by_tasks"),
    [
        pytest.param([(300, 400), (500, 600), (700, 800)], {}, False, id="compaction"),
        pytest.param([(300,), (400,), (500,), (600,)], DELETING, False, id="segments that a copy has deleted do not come back"),
        pytest.param([(300, 400)], {}, True, id="logs that are read by tasks"),
    ],
)
def test_a_chain_of_copies_has_the_files_of_as_many_rounds(
    night: Night, growth: list[tuple[int, ...]], config: dict[str, str], read_by_tasks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if read_by_tasks:
        monkeypatch.setattr(prepare, "MANY_SEGMENTS", 1)
    night.config = {**COMPACT, **config}
    copy, _ = night.copy()
    night.clean()
    for bases in growth:
        night.grow("orders", *bases)
        copy, reports = night.copy(copy)
        night.clean()
        same_as_reference(night, copy)
        assert {topic: report.since for topic, report in reports.items()} == {"orders": "grown", "ledger": "unchanged"}
        assert config or (reports["orders"].compacted and not reports["ledger"].compacted)
    # the records that earlier rounds removed were not read again
    assert reports["orders"].bytes_before < sum(path.stat().st_size for path in (night.source / "orders-0").glob("*.log"))
    if config:
        assert min(int(name[:20]) for name in logs(copy, "orders")) >= 200
        assert read_offsets(copy, "log_starts") == read_offsets(night.reference, "log_starts")


def test_an_index_that_a_broker_has_completed_is_that_of_the_source(night: Night) -> None:
    times = night.source / "orders-0" / f"{200:020d}.timeindex"
    complete = times.read_bytes()
    times.write_bytes(complete[:-12])
    first, _ = night.copy()
    times.write_bytes(complete)
    second, reports = night.copy(first)
    assert reports["orders"].since == "unchanged"
    assert [len(logs(copy, "orders")[times.name]) for copy in (first, second)] == [len(complete) - 12, len(complete)]
    # its records are not read again
    assert reports["orders"].previous_bytes == sum(len(data) for name, data in logs(first, "orders").items() if ".log" in name)


def test_the_active_segment_is_read_from_the_source_if_it_has_grown(night: Night, first: Path) -> None:
    night.clean()
    for log_dir in (night.source, night.reference):
        segment = build(200, [_batch(200 + number) for number in range(12)], interval=1)
        segment.put(FS, str(log_dir / "orders-0"))
    second, reports = night.copy(first)
    night.clean()
    same_as_reference(night, second)
    assert reports["orders"].since == "grown"


def offsets(log_dir: Path, topic: str) -> list[int]:
    """The offsets of the records of a log."""
    batches = (batch for path in sorted((log_dir / f"{topic}-0").glob("*.log")) for batch in decode(path.read_bytes()))
    return [record.offset for batch in batches for record in batch.records()]


def test_records_that_were_deleted_from_the_source_do_not_come_back(night: Night, first: Path) -> None:
    assert offsets(first, "orders")[0] == 0
    delete_first_segment(night)
    write_offsets(night.source, log_starts={"orders": 105})
    second, reports = night.copy(first)
    # the first segment of the previous copy has records of both of the first segments
    assert reports["orders"].since == "full" and offsets(second, "orders")[0] == 100
    reason = "the previous copy has records below the first segment of the source, 100, which was deleted from it"
    assert reports["orders"].since_reason == reason
    assert read_offsets(second, "log_starts") == {"orders": 105}
    # without a checkpoint, the log start is the base offset of the first segment
    (night.source / "log-start-offset-checkpoint").unlink()
    third, reports = night.copy(second)
    assert reports["orders"].since == "unchanged" and read_offsets(third, "log_starts") == {"orders": 105}
    write_offsets(night.source, log_starts={"orders": 200})
    (night.source / "orders-0" / f"{100:020d}.log").unlink()
    fourth, reports = night.copy(third)
    assert reports["orders"].since == "unchanged" and min(int(name[:20]) for name in logs(fourth, "orders")) == 200


def test_a_deleted_segment_of_which_the_previous_copy_has_no_record_is_no_reason_for_a_full_copy(night: Night) -> None:
    again = Batch([Record(110, NOW_MS - 3_600_000, b"key-0", b"newest")]).encode()
    build(100, [*(_batch(100 + number) for number in range(9)), again], interval=1).put(FS, str(night.source / "orders-0"))
    first, _ = night.copy()
    assert offsets(first, "orders")[0] == 100 and (first / "orders-0" / f"{0:020d}.log").exists()
    delete_first_segment(night)
    night.grow("orders", 300)
    second, reports = night.copy(first)
    assert (reports["orders"].since, reports["orders"].since_reason) == ("grown", "")
    assert offsets(second, "orders")[0] >= 100


def delete_first_segment(night: Night) -> None:
    """From the source, with its indexes."""
    for kind in KINDS[:3]:
        (night.source / "orders-0" / f"{0:020d}{kind}").unlink()


def flip(path: Path, position: int) -> None:
    """Change a byte; size and time remain."""
    stat, data = path.stat(), bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(stat.st_mtime_ns, stat.st_mtime_ns))


def test_records_below_the_log_start_that_the_source_still_has_are_no_reason_for_a_full_copy(night: Night) -> None:
    write_offsets(night.source, log_starts={"orders": 5})
    first, _ = night.copy()
    night.grow("orders", 300)
    _, reports = night.copy(first)
    assert reports["orders"].since == "grown"


def copy_during(night: Night, first: Path, at: Path | str, change: Callable[[], object]) -> Mapping[str, LogReport]:
    """The reports of a copy to ``copy``: before a file is copied from or to ``at`` for the first time, something changes."""
    begun: list[Operation] = []

    def before(operation: Operation) -> None:
        if not begun and operation.name == "copy" and (operation.path == str(at) or str(at) in operation.target):
            begun.append(operation)
            change()

    try:
        report = night.run(night.source, night.root / "copy", WatchedFileSystem(FS, before), since=str(first))
    finally:
        assert begun
    return {log.topic: log for log in report.logs}


def test_a_file_of_the_previous_copy_that_changes_after_its_comparison_is_not_taken(night: Night, first: Path) -> None:
    path = first / "orders-0" / f"{0:020d}.log"
    found = copy_during(night, first, path, lambda: flip(path, 30))
    assert found["orders"].since == "full"
    night.round -= 1
    night.run(night.source, night.root / "plain", None)
    assert logs(night.root / "copy", "orders") == logs(night.root / "plain", "orders")


def test_recovery_repairs_no_file_of_the_previous_copy(night: Night) -> None:
    """A broker that was killed recovers all segments; those of the previous copy are complete."""
    write_offsets(night.source, recovery_points={"orders": 0})
    first, _ = night.copy()
    night.grow("orders", 300)
    night.config = {**COMPACT, "index.interval.bytes": "100000"}
    second, reports = night.copy(first)
    assert reports["orders"].since == "grown" and reports["ledger"].since == "unchanged"
    was, now = logs(first, "ledger"), logs(second, "ledger")
    # the indexes of the last segment are those of the source, whose recovery has rebuilt them
    assert {name for name in was if was[name] != now[name]} == {f"{200:020d}.index", f"{200:020d}.timeindex"}


def test_the_second_attempt_does_not_see_what_the_first_one_has_deleted(night: Night) -> None:
    night.config = {**COMPACT, "internal.segment.bytes": "800"}
    first, _ = night.copy()
    path = first / "orders-0" / f"{100:020d}.log"
    flip(path, path.stat().st_size - 3)
    # only the first segment expires
    night.config |= {"cleanup.policy": "compact,delete", "retention.ms": str(260 * 60_000)}
    second, reports = night.copy(first)
    plain, expected = night.copy(as_of_ms=NOW_MS + STEP_MS)
    assert reports["orders"].since == "full" and reports["orders"].expired_segments == 1
    assert logs(second, "orders") == logs(plain, "orders")
    assert reports["orders"].expired_bytes == expected["orders"].expired_bytes


def test_a_previous_copy_that_is_replaced_meanwhile_is_found_out(night: Night, first: Path) -> None:
    other, _ = night.copy()
    with pytest.raises(StorageError, match="the previous copy was replaced during this run"):
        copy_during(night, first, ".partial", lambda: shutil.copy2(other / FINISHED, first / FINISHED))
    assert not (night.root / "copy").exists()


@pytest.mark.parametrize("name", [JOURNAL, f"{0:020d}.log.swap", f"{0:020d}.log.clean.one"])
def test_a_log_whose_segments_were_being_replaced_has_no_identity(night: Night, name: str) -> None:
    log = location(str(night.source))
    assert len(identify(FS, [log])[log].segments) > 1
    (night.source / "orders-0" / name).touch()
    assert identify(FS, [log])[log].segments == ()


def test_a_source_that_changes_while_it_is_copied_fails_its_log(night: Night, first: Path) -> None:
    night.grow("orders", 300)
    path = night.source / "orders-0" / f"{300:020d}.log"
    found = copy_during(night, first, path, lambda: path.write_bytes(path.read_bytes() + b"\0"))
    # the second attempt has read it as it is now
    assert (found["orders"].since, found["orders"].status) == ("full", LogStatus.CLEANED)


def test_only_new_segments_are_read_from_the_source(night: Night) -> None:
    for topic in TOPICS:
        night.grow(topic, *range(300, 2_000, 100))
    first, _ = night.copy()
    # two of 40 segments are new
    night.grow("orders", 2_000, 2_100)
    files = WatchedFileSystem(FS)
    night.run(night.source, night.root / "since", files, since=str(first))
    read = (Path(each.path) for each in files.log if each.name in ("read", "pread", "copy"))
    segments = {path.name for path in read if path.is_relative_to(night.source) and path.suffix in KINDS}
    assert {int(name[:20]) for name in segments} == {1_900, 2_000, 2_100}, segments


def test_a_killed_copy_is_finished_by_the_next_run(night: Night, first: Path) -> None:
    night.grow("orders", 300)
    before, target = tree(first), night.root / "copy"
    counting = StoppingFiles(None)
    night.run(night.source, target, counting, since=str(first))
    shutil.move(target, night.root / "undisturbed")
    for stop_before in range(0, len(counting.changes), 5):
        night.round = 1
        with pytest.raises(Stopped):
            night.run(night.source, target, StoppingFiles(stop_before), since=str(first))
        night.round = 1
        if not target.exists():
            night.run(night.source, target, since=str(first))
        assert tree(first) == before
        for topic in TOPICS:
            assert logs(target, topic) == logs(night.root / "undisturbed", topic)
        assert [path.name for path in night.root.iterdir() if path.name.startswith(".")] == []
        shutil.rmtree(target)


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): (file.read_bytes(), file.stat().st_ctime_ns) for file in files}


def edited(copy: Path, **fields: Any) -> None:
    manifest = read_finished(str(copy))
    assert isinstance(manifest, Manifest)
    (copy / FINISHED).write_bytes(replace(manifest, **fields).to_json())


def test_an_output_that_cannot_be_continued_is_refused(night: Night, first: Path) -> None:
    manifest = read_finished(str(first))
    assert manifest is not None and manifest.sources is not None
    edited(first, sources={path: replace(log, rules=None) for path, log in manifest.sources.items()})
    _, reports = night.copy(first)
    assert reports["orders"].since_reason == "the previous copy does not record the settings that it was made with"
    edited(first, request={"command": "erase"})
    with pytest.raises(UsageError, match="--since: this is an output of erase, which lacks records that the source has"):
        night.copy(first)
    edited(first, sources=None)
    with pytest.raises(UsageError, match="--since: this output does not record what was copied"):
        night.copy(first)


SEGMENTS = tuple(SourceSegment(base, 10, 1, base, 1) for base in (0, 10, 20))


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        (SEGMENTS, (20, True, False)),
        (SEGMENTS[1:], (20, True, False)),
        (SEGMENTS[2:], (20, True, False)),
        ((*SEGMENTS, SourceSegment(30, 1)), (20, True, True)),
        ((*SEGMENTS[:2], SourceSegment(20, 11, 2, 20, 2)), (20, False, True)),
        # a copy of the directory that was updated
        ((*SEGMENTS[:2], SourceSegment(20, 10, 2, 77, 2)), (20, False, True)),
        ((*SEGMENTS[:2], SourceSegment(20, 9, 2, 20, 2)), "truncated"),
        ((SEGMENTS[0], SEGMENTS[2]), "segment 10 is missing"),
        ((SEGMENTS[0], replace(SEGMENTS[1], ctime_ns=2), SEGMENTS[2]), "segment 10 has changed"),
        ((replace(SEGMENTS[0], inode=9), *SEGMENTS[1:]), "segment 0 has changed"),
        ((replace(SEGMENTS[0], etag="x"), *SEGMENTS[1:]), "segment 0 has changed"),
        (SEGMENTS[:2], "segment 20 is missing"),
        ((SourceSegment(30, 1),), "no segment of the previous copy remains"),
        ((), "do"),
    ],
)
def test_the_common_segments_are_those_that_are_unchanged(
    source: Sequence[SourceSegment], outcome: tuple[int, bool, bool] | str
) -> None:
    recorded, now = SourceLog("id", SEGMENTS), SourceLog("id", tuple(source))
    if isinstance(outcome, tuple):
        assert common_segments(recorded, now) == outcome
        return
    with pytest.raises(NotContinuedError, match=outcome):
        common_segments(recorded, now)
