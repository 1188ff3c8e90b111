"""An erasure without Spark leaves of random logs, byte for byte, what a plain one of Python objects leaves."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compaction.certifier.certificate import Status
from compaction.certifier.erasure_certificate import Certified
from compaction.commands import erase as erase_command
from compaction.config.request import CompactionRequest
from compaction.erasure import find_matches
from compaction.erasure.erase_keys import ErasureRequest, erase_keys
from compaction.erasure.find_matches import Erasure
from compaction.files.filesystem import DiskFileSystem
from compaction.files.local import FreeSpace, LocalFileSystem
from compaction.formats.keys import KeyCriteria, KeyPattern, salted_digest, shards
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.report import LogReport, LogStatus, RunReport
from compaction.run import waves
from compaction.run.sizing import Sizes
from tests.certifier.certify import certify_erased
from tests.executed import executed
from tests.kafka.encode import Batch, Legacy, Record
from tests.local_job import KAFKA, clean_locally, logs_in, read_offsets, resolver_of, write_offsets
from tests.local_passes import LocalPasses
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.records import NaiveBatch, NaiveRecord, encode, encode_empty
from tests.oracle.segments import NaiveSegment, write_segment
from tests.passes.random_cases import FLAVOURS, INTERVAL_BYTES, NOW_MS, Case, random_case

SALT = b"salt of these tests"
TINY = Sizes(500, 1_500, 7)
#: that of topics whose records are never compacted
CONFIG = {"cleanup.policy": "delete", "index.interval.bytes": str(INTERVAL_BYTES)}


@dataclass(frozen=True)
class PlainEraser:
    """Erases keys that are ``meant`` from the first ``segments`` of a log; ``producers`` are its active ones."""

    meant: Callable[[bytes], bool]
    producers: Sequence[ProducerEntry]
    segments: int
    index_interval_bytes: int
    tombstones: bool = False

    def erase(self, log: Sequence[NaiveSegment]) -> list[NaiveSegment]:
        """The segments of the log afterwards."""
        end_offset = max((segment.next_offset for segment in log[: self.segments] if segment.log), default=-1)
        return [self._segment(each, end_offset) if at < self.segments else each for at, each in enumerate(log)]

    def matches(self, record: NaiveRecord) -> bool:
        """Whether the record is erased."""
        left = record.value is not None or record.headers or not self.tombstones
        return record.key is not None and self.meant(record.key) and bool(left)

    def _segment(self, segment: NaiveSegment, end_offset: int) -> NaiveSegment:
        raw = [made for batch in segment.batches for made in self._batch(batch, end_offset)]
        if raw == [batch.raw for batch in segment.batches]:
            return segment
        return write_segment(segment.base_offset, raw, self.index_interval_bytes, segment.mtime_ms, segment.aborted_txns)

    def _batch(self, batch: NaiveBatch, end_offset: int) -> Iterator[bytes]:
        records = batch.records()
        if batch.control or not any(map(self.matches, records)):
            yield batch.raw
            return
        # the last offset of a wrapper of magic 0 or 1 stands for all of it
        source = batch if batch.magic == 2 else replace(batch, base_offset=records[0].offset)
        horizon_ms = -1 if batch.delete_horizon_ms is None else batch.delete_horizon_ms
        if self.tombstones:
            left = [replace(each, value=None, headers=()) if self.matches(each) else each for each in records]
        else:
            left = [each for each in records if not self.matches(each)]
        if left:
            last_offset = batch.last_offset if batch.next_offset == end_offset else None
            yield encode(source, left, horizon_ms, names_as_text=False, last_offset=last_offset)
        elif batch.next_offset == end_offset or self._is_needed(batch):
            yield encode_empty(source)

    def _is_needed(self, batch: NaiveBatch) -> bool:
        """Whether the batch is the last of a producer, or the first of an open transaction."""
        return any(
            batch.producer_id == each.producer_id
            and batch.last_offset == each.last_data_offset
            or batch.magic == 2
            and batch.base_offset == each.current_txn_first_offset
            for each in self.producers
        )


def keys_of(case: Case) -> list[bytes]:
    batches = [batch for segment in case.segments for batch in segment.batches if not batch.control]
    return sorted({record.key for batch in batches for record in batch.records() if record.key is not None})


def erase(
    log_dir: Path,
    keys: Sequence[bytes],
    patterns: Sequence[str] = (),
    sizes: Sizes | None = None,
    *,
    tombstones: bool = False,
    include_active: bool = False,
    dry_run: bool = False,
    output_dir: Path | None = None,
    kafka_version: str = KAFKA,
    files: DiskFileSystem | None = None,
) -> RunReport:
    """Erases from all logs of a directory."""
    base = CompactionRequest(
        *logs_in(log_dir),
        as_of_ms=NOW_MS,
        include_active=include_active,
        dry_run=dry_run,
        output_dir=None if output_dir is None else str(output_dir),
        kafka_version=kafka_version,
        resolver=resolver_of({log.topic_partition.topic: CONFIG for log in logs_in(log_dir)[1]}),
    )
    criteria = KeyCriteria.of(pa.array(keys, pa.binary()), tuple(map(KeyPattern.parse, patterns)))
    return erase_keys(LocalPasses, ErasureRequest(base, Erasure(criteria, SALT, tombstones)), files, sizes)


def call(*argv: object) -> int:
    """``erase`` without Spark; its exit code."""
    return executed(erase_command, list(map(str, argv)), lambda _, request: erase_keys(LocalPasses, request))


def differences(log_dir: Path, case: Case, plain: PlainEraser, report: LogReport) -> list[str]:
    """How the erased log differs from what the plain eraser leaves."""
    found, expected = read_partition(log_dir / f"{case.name}-0"), plain.erase(case.segments)
    if report.status is LogStatus.FAILED:
        return [f"failed: {report.reason}"]
    different = [
        f"{name} of segment {theirs.base_offset}"
        for mine, theirs in zip(found, expected, strict=True)
        for name in ("base_offset", "log", "index", "time_index", "txn_index", "mtime_ms")
        if getattr(mine, name) != getattr(theirs, name)
    ]
    erased = sum(
        plain.matches(record)
        for segment in case.segments[: plain.segments]
        for batch in segment.batches
        if not batch.control
        for record in batch.records()
    )
    if report.erased_records != erased:
        different.append(f"{report.erased_records} erased records, expected {erased}")
    return different


@pytest.mark.parametrize(
    ("version", "sizes", "seeds", "tombstones", "include_active"),
    [
        (KAFKA, None, range(2), False, False), (KAFKA, None, range(2), True, True),
        (KAFKA, TINY, range(2, 3), True, False), (KAFKA, TINY, range(2, 3), False, True),
        ("3.0", None, range(3, 4), False, True), ("3.9", None, range(3, 4), False, True),
        ("3.9", None, range(3, 4), True, True),
    ],
)  # fmt: skip
def test_random_logs_of_all_formats_and_codecs_lose_the_records_of_the_keys_and_nothing_else(
    version: str, sizes: Sizes | None, seeds: range, tombstones: bool, include_active: bool
) -> None:
    """By the plain eraser, of the reference, and by the certificate."""
    cases = [random_case(flavour, seed) for seed in seeds for flavour in FLAVOURS]
    every = sorted({key for case in cases for key in keys_of(case)})
    keys = random.Random(seeds.start).sample(every, len(every) // 3)
    options: dict[str, Any] = {"tombstones": tombstones, "include_active": include_active, "kafka_version": version}
    with scratch() as root:
        before, log_dir = root / "before", root / "logs"
        for case in cases:
            case.write(before)
        shutil.copytree(before, log_dir)
        found = erase(log_dir, keys, sizes=sizes, **options)
        reports = {log.topic: log for log in found.logs}
        wrong = []
        for case in cases if version == KAFKA else ():
            last_is_empty = not case.segments[-1].log
            segments = len(case.segments) - (not include_active or last_is_empty)
            plain = PlainEraser(set(keys).__contains__, case.producers, segments, INTERVAL_BYTES, tombstones)
            wrong += [f"{case.name}: {each}" for each in differences(log_dir, case, plain, reports[case.name])]
        assert wrong == []
        assert not [path for path in log_dir.rglob("*") if path.suffix in (".deleted", ".clean", ".swap")]
        check_certificate(certify_erased(before, log_dir, keys, NOW_MS, **options), reports, include_active=include_active)
        again = erase(log_dir, keys, **options)
        assert found.erasure["resumed"] == again.erasure["resumed"] == []
    assert all(log.reason_code == ("last_segment" if log.remaining_records else "no_match") for log in again.logs)
    assert sum(log.erased_records for log in found.logs) > 500


def check_certificate(found: Certified, reports: dict[str, LogReport], *, include_active: bool) -> None:
    wrong = [line for log in found.report.logs if log.violations or log.status is Status.FAILED for line in log.lines()]
    assert wrong == []
    left = {log.topic: log.remaining for log in found.report.logs}
    assert left == {topic: log.remaining_records for topic, log in reports.items()}
    assert include_active == (sum(left.values()) == 0)
    assert all((log.status is Status.INCOMPLETE) == bool(log.remaining) for log in found.report.logs)
    assert {log["topic"]: log["records_erased"] for log in found.logs} == {
        topic: log.erased_records for topic, log in reports.items()
    }


@pytest.mark.parametrize("version", ["2.8", "3.9", "4.4"])
def test_the_log_ends_where_it_did_if_the_last_record_of_a_compressed_old_batch_is_erased(version: str) -> None:
    case = random_case("gzip", 145)
    batch = case.segments[-1].batches[-1]
    records = batch.records()
    assert batch.magic < 2
    assert len(records) > 1
    key = records[-1].key
    assert key is not None
    with scratch() as root:
        before, after = root / "before", root / "after"
        case.write(before)
        (log,) = erase(before, [key], include_active=True, kafka_version=version, output_dir=after).logs
        assert log.status is LogStatus.CLEANED
        found = read_partition(after / f"{case.name}-0")
        (certificate,) = certify_erased(before, after, [key], NOW_MS, kafka_version=version).report.logs
    assert found[-1].next_offset == case.segments[-1].next_offset
    left = [record.offset for record in found[-1].batches[-1].records()]
    assert left == [record.offset for record in records if record.key != key]
    assert certificate.status is Status.HOLDS, certificate.lines()


@pytest.mark.parametrize(("version", "tombstones", "magic"), [("3.9", False, 1), ("3.9", True, 2), ("4.4", False, 2)])
def test_an_old_batch_that_loses_its_first_record_has_the_format_of_the_version(
    tmp_path: Path, version: str, tombstones: bool, magic: int
) -> None:
    records = [Record(at, NOW_MS, b"key-%d" % at, b"value") for at in range(6)]
    batches = [Legacy(each, 1, "gzip").encode() for each in (records[:3], records[3:])]
    write_partition(tmp_path / "odd-0", [write_segment(0, batches, INTERVAL_BYTES, NOW_MS)])
    erase(tmp_path, [b"key-0"], include_active=True, tombstones=tombstones, kafka_version=version)
    left = read_partition(tmp_path / "odd-0")[0].batches[0]
    assert (left.magic, left.records()[-1].key) == (magic, b"key-2")


ODD_KEYS = (None, b"", b"\x00\xff\n", b"k" * 70_000, b"k" * 69_999, "ключ".encode(), b"k")


def write_odd(log_dir: Path) -> list[NaiveSegment]:
    """Three segments of records with odd keys, the second without the longest one."""
    segments = []
    for number in range(3):
        keys = [key for key in ODD_KEYS if number != 1 or key is None or len(key) != 70_000]
        records = [Record(number * 10 + at, NOW_MS - 1, key, b"v%d" % at, ((b"h", key),)) for at, key in enumerate(keys)]
        raw = [Batch(records[:4], "zstd").encode(), Batch(records[4:]).encode()]
        segments.append(write_segment(number * 10, raw, INTERVAL_BYTES, NOW_MS))
    write_partition(log_dir / "odd-0", segments)
    return segments


def records_in(log_dir: Path) -> list[NaiveRecord]:
    return [each for segment in read_partition(log_dir / "odd-0") for batch in segment.batches for each in batch.records()]


def test_each_kind_of_key_is_erased_and_no_other(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    write_odd(source)
    before = records_in(source)
    for key in ODD_KEYS[1:]:
        assert key is not None
        shutil.rmtree(copy, ignore_errors=True)
        report = erase(source, [key], include_active=True, output_dir=copy)
        assert records_in(copy) == [each for each in before if each.key != key]
        assert report.logs[0].erased_records == len(before) - len(records_in(copy)) > 0
        assert report.erasure["keys"] == [{"sha256": salted_digest(SALT, key).hex(), "records": report.logs[0].erased_records}]
        assert certify_erased(source, copy, [key], NOW_MS).report.logs[0].status is Status.HOLDS
        (retained,) = certify_erased(source, source, [key], NOW_MS).report.logs
        assert retained.violations[0].what == "record of an erased key is retained"


def test_a_segment_without_a_match_is_not_written(tmp_path: Path) -> None:
    write_odd(tmp_path)
    inodes = {path.name: path.stat().st_ino for path in tmp_path.glob("odd-0/*.log")}
    report = erase(tmp_path, [b"k" * 70_000])
    found = {path.name: path.stat().st_ino for path in tmp_path.glob("odd-0/*.log")}
    assert [name for name in sorted(found) if found[name] != inodes[name]] == ["00000000000000000000.log"]
    assert report.logs[0].reason == "1 record of 1 key erased, in 1 of 2 segments"


@pytest.mark.parametrize("tombstones", [False, True])
@pytest.mark.parametrize("horizon_ms", [-(2**40), -1, 0, NOW_MS - 1])
def test_tombstones_remain_whatever_their_delete_horizon(tmp_path: Path, horizon_ms: int, tombstones: bool) -> None:
    records = [Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS, b"t", None, ((b"h", b"x"),)), Record(2, NOW_MS, b"k", b"v")]
    batches = [Batch(records[:2], delete_horizon=horizon_ms).encode(), Batch(records[2:]).encode()]
    write_partition(tmp_path / "odd-0", [write_segment(0, batches, INTERVAL_BYTES, NOW_MS)])
    before = records_in(tmp_path)
    assert erase(tmp_path, [b"k"], include_active=True, tombstones=tombstones).logs[0].erased_records == 2
    assert [each for each in records_in(tmp_path) if each.key == b"t"] == [before[1]]


def test_keys_are_erased_by_pattern_and_list_together_each_counted_once(tmp_path: Path) -> None:
    write_odd(tmp_path)
    report = erase(tmp_path, [b"", b"k", b"missing"], ["regex=k{2,}", "prefix=k"], include_active=True)
    assert {each.key for each in records_in(tmp_path)} == {None, b"\x00\xff\n", "ключ".encode()}
    assert report.erasure["keys_found"] == 4
    assert (report.erasure["keys_given"], report.erasure["patterns_given"]) == (3, 2)
    assert sum(each["records"] for each in report.erasure["keys"]) == report.logs[0].erased_records == 11


def test_keys_in_many_shards_are_erased_as_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    case = random_case("gzip", 7)
    keys = keys_of(case)[::2]
    made: list[int] = []

    def tiny(keys: pa.Array, most_bytes: int, bytes_per_key: int) -> list[pa.Array]:
        made.append(len(keys))
        return shards(keys, 3 * bytes_per_key, bytes_per_key)

    monkeypatch.setattr(find_matches, "shards", tiny)
    with scratch() as log_dir:
        case.write(log_dir)
        report = erase(log_dir, [*keys, *(b"other-%d" % number for number in range(20))], include_active=True)
        segments = len(case.segments) - (not case.segments[-1].log)
        plain = PlainEraser(set(keys).__contains__, case.producers, segments, INTERVAL_BYTES)
        assert differences(log_dir, case, plain, report.logs[0]) == []
    assert made == [len(keys) + 20]


def test_a_dry_run_writes_nothing_and_reports_the_figures_of_the_run(tmp_path: Path) -> None:
    write_odd(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    dry = erase(tmp_path, [b"k", b""], include_active=True, dry_run=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    real = erase(tmp_path, [b"k", b""], include_active=True)
    assert replace(dry.logs[0], seconds=0) == replace(real.logs[0], seconds=0)
    assert {**dry.erasure, "notes": real.erasure["notes"]} == real.erasure


def test_a_copy_has_all_logs_without_the_keys_and_the_source_is_not_changed(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    segments = write_odd(source)
    write_partition(source / "other-0", segments[1:])
    report = erase(source, [b"k" * 70_000], output_dir=target)
    assert read_partition(source / "odd-0") == segments
    assert read_partition(target / "other-0") == segments[1:]
    found = {record.key for record in records_in(target) if record.offset < 20}
    assert found == set(ODD_KEYS) - {b"k" * 70_000}
    assert report.erasure["notes"] == [
        "2 records of these keys remain in the last segment of 2 logs: --include-active erases from it, too",
        "the source still has the records: --output-dir does not change it",
    ]


@pytest.mark.parametrize("entries", [{}, {"aside": 3}, {"odd": 5, "aside": 3}, {"odd": 5_000}])
def test_the_cleaner_checkpoint_is_not_changed(tmp_path: Path, entries: dict[str, int]) -> None:
    for number, target in enumerate((None, tmp_path / "copy")):
        source = tmp_path / str(number)
        write_odd(source)
        if entries:
            write_offsets(source, cleaner_offsets=entries)
        before = {path.name: path.read_bytes() for path in source.glob("cleaner-offset-checkpoint")}
        assert erase(source, [b"k"], output_dir=target, include_active=True).logs[0].erased_records == 3
        assert {path.name: path.read_bytes() for path in source.glob("cleaner-offset-checkpoint")} == before
    published = {topic: offset for topic, offset in entries.items() if topic == "odd"}
    assert [path.name for path in (tmp_path / "copy").glob("cleaner-offset-checkpoint")] == list(before)
    assert not entries or read_offsets(tmp_path / "copy", "cleaner_offsets") == published


def test_a_later_round_of_cleaning_still_removes_what_was_dirty(tmp_path: Path) -> None:
    records = [Record(0, NOW_MS - 9, b"p", b"secret"), Record(1, NOW_MS - 9, b"e", b"x"), Record(2, NOW_MS - 9, b"p", None)]
    batches = [Batch([each]).encode() for each in (*records, Record(3, NOW_MS - 9, b"other", b"x"))]
    write_partition(tmp_path / "odd-0", [write_segment(0, batches, INTERVAL_BYTES, NOW_MS)])
    assert erase(tmp_path, [b"e"], include_active=True).logs[0].erased_records == 1
    compacted = {"odd": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}}
    assert clean_locally(tmp_path, NOW_MS, compacted, include_active=True)["odd"].superseded_records == 1
    assert [(each.key, each.value) for each in records_in(tmp_path)] == [(b"p", None), (b"other", b"x")]


def test_on_a_full_disk_sizes_are_measured_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_odd(tmp_path)
    monkeypatch.setattr(waves, "free_space", lambda _: FreeSpace(device=1, free_bytes=0, total_bytes=1 << 40))
    created = list[str]()
    monkeypatch.setattr(LocalFileSystem, "create", lambda _, path, like, **kwargs: created.append(path))
    log = erase(tmp_path, [b"k"], include_active=True).logs[0]
    assert (log.status, created) == (LogStatus.FAILED, [])
    assert "0 B are free, less than the margin of" in log.reason
