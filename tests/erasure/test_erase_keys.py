"""An erasure without Spark leaves of random logs, byte for byte, what a plain one of Python objects leaves. Nothing of an
erased record is in any file. What an erasure leaves that is killed, or whose certificate is not written or does not hold."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pyarrow as pa
import pytest

from compaction.certifier import erased_keys
from compaction.certifier.certificate import Status
from compaction.certifier.erasure_certificate import Certified
from compaction.commands import erase as erase_command
from compaction.commands import verify
from compaction.erasure import erase_keys as erasing
from compaction.erasure import find_matches
from compaction.erasure.erase_keys import ErasureRequest, erase_keys
from compaction.erasure.erasure_report import erasure_document
from compaction.erasure.find_matches import HASHED, Erasure, FoundKeys
from compaction.errors import StorageError
from compaction.files.filesystem import DiskFileSystem
from compaction.files.local import FreeSpace, LocalFileSystem
from compaction.formats.keys import KeyCriteria, KeyPattern, salted_digest, shards
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.report import LogReport, LogStatus, RunReport
from compaction.run import destination, waves
from compaction.run.sizing import Sizes
from tests.certifier.certify import certify_erased
from tests.crash.surroundings import StoppingFiles, end_process
from tests.disk import Stopped
from tests.executed import executed
from tests.kafka.encode import Batch, Legacy, Record
from tests.local_job import KAFKA, clean_locally, logs_in, read_offsets, request_for, write_offsets
from tests.local_passes import LocalPasses
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition, write_producers
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
    files: DiskFileSystem | None = None,
    *,
    tombstones: bool = False,
    output_dir: Path | None = None,
    **fields: Any,
) -> RunReport:
    """Erases from all logs of a directory; ``fields`` are others of the request."""
    topics = {log.topic_partition.topic: CONFIG for log in logs_in(log_dir)[1]}
    base = request_for(log_dir, NOW_MS, topics, output_dir=None if output_dir is None else str(output_dir), **fields)
    criteria = KeyCriteria.of(pa.array(keys, pa.binary()), tuple(map(KeyPattern.parse, patterns)))
    return erase_keys(LocalPasses, ErasureRequest(base, Erasure(criteria, SALT, tombstones)), files, sizes)


def call(*argv: object) -> int:
    """``erase`` without Spark; its exit code."""
    return executed(erase_command, list(map(str, argv)), lambda _, request: erase_keys(LocalPasses, request))


def differences(log_dir: Path, case: Case, plain: PlainEraser, report: LogReport) -> list[str]:
    """How the erased log differs from what the plain eraser leaves."""
    if report.status is LogStatus.FAILED:
        return [f"failed: {report.reason}"]
    found, expected = read_partition(log_dir / f"{case.name}-0"), plain.erase(case.segments)
    different = [f"segment {theirs.base_offset}" for mine, theirs in zip(found, expected, strict=True) if mine != theirs]
    batches = [batch for segment in case.segments[: plain.segments] for batch in segment.batches if not batch.control]
    erased = sum(plain.matches(record) for batch in batches for record in batch.records())
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


KEY, VALUE, HEADER = b"key-to-erase", b"value-of-it", b"header-of-it"
PRODUCER = 7


def write_log(log_dir: Path) -> None:
    """Three segments, not compressed, each with the record, the last one of a producer and of the log; and leftovers."""
    path, segments = log_dir / "odd-0", []
    for base in (0, 10, 20):
        erased, other = Record(base + 1, NOW_MS, KEY, VALUE, ((HEADER, HEADER),)), Record(base, NOW_MS, b"other", b"v")
        last = Batch([erased], producer_id=PRODUCER, producer_epoch=0, base_sequence=base // 10)
        segments.append(write_segment(base, [Batch([other]).encode(), last.encode()], INTERVAL_BYTES, NOW_MS))
    write_partition(path, segments)
    write_producers(path, 22, [ProducerEntry(PRODUCER, 0, 2, 21, 0, NOW_MS, 0, -1)])
    log = path / f"{0:020d}.log"
    for suffix in (".deleted", ".cleaned"):
        log.with_name(log.name + suffix).write_bytes(log.read_bytes())


def test_a_hash_that_ends_with_zeros_is_reported_whole() -> None:
    key = next(key for key in map(b"%d".__mod__, range(10_000)) if salted_digest(SALT, key).hex().endswith("0000"))
    found = [FoundKeys(np.array([salted_digest(SALT, each)], HASHED), np.array([2])) for each in (key, b"other", key)]
    document = erasure_document(Erasure(KeyCriteria.of(pa.array([], pa.binary())), SALT), FoundKeys.joined(found), (), ())
    expected = sorted(((salted_digest(SALT, key).hex(), 4), (salted_digest(SALT, b"other").hex(), 2)))
    assert [(each["sha256"], each["records"]) for each in document["keys"]] == expected


@pytest.mark.parametrize("tombstones", [False, True])
def test_nothing_of_an_erased_record_is_in_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tombstones: bool) -> None:
    logs, copy, temporary = tmp_path / "logs", tmp_path / "copy", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    write_log(logs)
    secret = (VALUE, HEADER) if tombstones else (KEY, VALUE, HEADER)

    def remains(place: Path) -> list[str]:
        return [path.name for path in place.rglob("*") if path.is_file() and any(each in path.read_bytes() for each in secret)]

    assert len(remains(logs)) == 5
    assert erase(logs, [KEY], tombstones=tombstones, include_active=True, output_dir=copy).logs[0].erased_records == 3
    assert remains(copy) == []
    assert len(remains(logs)) == 5
    assert erase(logs, [KEY], tombstones=tombstones, include_active=True).logs[0].erased_records == 3
    assert remains(tmp_path) == []


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A log directory with the log ``odd-0``, beside which files can be written."""
    write_odd(tmp_path / "data")
    return tmp_path / "data"


def certified(log_dir: Path, *options: object) -> list[str]:
    """A call with a certificate and a report, for the key ``k``."""
    (log_dir.parent / "keys").write_bytes(b"k\n")
    keys, certificate, report = (str(log_dir.parent / name) for name in ("keys", "certificate.json", "report.json"))
    argv = ["--log-dir", str(log_dir), "--include-active", "--keys", keys, *map(str, options)]
    return [*argv, "--certificate", certificate, "--report", report]


def written(log_dir: Path, name: str) -> Any:
    return json.loads((log_dir.parent / f"{name}.json").read_text())


#: what a step of a run does instead of its work
KILLED, NO_SPACE = Mock(side_effect=Stopped), Mock(side_effect=OSError(28, "No space\nleft on device"))


def test_a_certificate_that_cannot_be_made_fails_all_logs_and_the_report_is_written(
    log_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (log_dir / "empty-0").mkdir()
    certificate = log_dir.parent / "certificate.json"
    certificate.write_text("that of an earlier run")
    monkeypatch.setattr(erasing, "write_text", NO_SPACE)
    assert call(*certified(log_dir)) == 1
    logs = {log["topic"]: log for log in written(log_dir, "report")["logs"]}
    assert {log["status"] for log in logs.values()} == {"failed"}
    reason = "certificate: it could not be written (OSError: [Errno 28] No space left on device)"
    assert logs["empty"]["reason"] == reason
    assert logs["odd"]["reason"].startswith(f"{reason}; the replaced segments remain as .deleted files: copy them away")
    assert reason in capsys.readouterr().err
    assert len(list(log_dir.rglob("*.log.deleted"))) == 3
    assert not certificate.exists()


def test_a_certificate_is_changed_when_a_replaced_segment_cannot_be_removed(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "remove_deleted", Mock(side_effect=OSError(13, "Permission denied")))
    assert call(*certified(log_dir)) == 1
    found = written(log_dir, "certificate")
    assert (found["status"], found["logs"][0]["status"]) == ("failed", "failed")
    assert "Permission denied" in found["logs"][0]["reason"]
    assert records_in(log_dir)


def test_what_a_killed_run_erased_is_said_to_be_in_no_certificate(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(erasing, "write_text", KILLED)
        with pytest.raises(Stopped):
            call(*certified(log_dir))
    end_process(log_dir)
    assert list(log_dir.rglob("*.log.deleted"))
    note = (
        f"{log_dir / 'odd-0'}: this run removed segments that an earlier run or a broker had replaced;"
        " the records erased then are in no report or certificate of this run"
    )
    for resumed in (True, False):
        assert call(*certified(log_dir)) == 0
        erasure, logs = written(log_dir, "report")["erasure"], written(log_dir, "certificate")["logs"]
        assert (erasure["resumed"], erasure["notes"]) == ((["odd-0"], [note]) if resumed else ([], []))
        assert [(log["resumed"], log["status"], log["records_erased"]) for log in logs] == [(resumed, "holds", 0)]


@pytest.mark.parametrize(
    ("module", "name", "failing"),
    [
        (erased_keys, "matching", lambda criteria, keys: np.zeros(len(keys), np.bool_)),
        (erased_keys, "matching", Mock(side_effect=StorageError("cannot be read", path="/copy"))),
        (erasing, "write_text", NO_SPACE), (erasing, "write_text", KILLED),
    ],
    ids=["violated", "failed", "error", "kill"],
)  # fmt: skip
def test_a_copy_that_is_not_certified_is_not_the_finished_output_of_the_call(
    log_dir: Path,
    module: ModuleType,
    name: str,
    failing: Callable[..., object],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    argv = certified(log_dir, "--output-dir", log_dir.parent / "copy", "--as-of-ms", NOW_MS)
    with monkeypatch.context() as patched:
        patched.setattr(module, name, failing)
        with pytest.raises(Stopped) if failing is KILLED else nullcontext():
            assert call(*argv, "--replace") == 1
    assert ".deleted" not in capsys.readouterr().err
    assert call(*argv, "--if-done", "skip") == 2
    assert "the output of another request: it differs in certificate" in capsys.readouterr().err
    assert call(*argv, "--if-done", "skip", "--replace") == 0
    assert "done already" not in capsys.readouterr().out
    assert call(*argv, "--if-done", "skip") == 0
    assert "done already by the same request" in capsys.readouterr().out


def test_a_file_beside_the_records_of_an_erased_copy_is_verified(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    epochs, copy = "odd-0/leader-epoch-checkpoint", log_dir.parent / "copy"
    (log_dir / epochs).write_text("0\n1\n0 0\n")
    argv = certified(log_dir, "--output-dir", copy, "--as-of-ms", NOW_MS)
    assert call(*argv) == 0
    sides = ["--before", str(log_dir), "--after", str(copy), *argv[argv.index("--include-active") : argv.index("--output-dir")]]
    sides += ["--certificate", str(log_dir.parent / "certificate.json"), "--as-of-ms", str(NOW_MS)]
    assert verify.main(sides) == 0
    (copy / epochs).write_text("0\n1\n7 0\n")
    capsys.readouterr()
    assert verify.main(sides) == 1
    assert "leader-epoch-checkpoint is missing, malformed or has other leader epochs" in capsys.readouterr().err


KEYS = [b"k", b"k" * 70_000]
CHECKPOINT = {"odd": 5}


def erase_until(log_dir: Path, stop_before: int | None) -> int:
    """Erases, stopped before a change; returns the number of changes."""
    files = StoppingFiles(stop_before)
    with patch.object(destination, "LOG_CONCURRENCY", 1), suppress(Stopped):
        report = erase(log_dir, KEYS, include_active=True, files=files)
        assert report.exit_code == 0, report.logs[0].reason
    end_process(log_dir)
    return len(files.changes)


def test_a_run_killed_before_any_of_its_changes_loses_nothing_else_and_is_completed_by_the_next() -> None:
    with scratch() as root:
        write_odd(root / "whole")
        write_offsets(root / "whole", cleaner_offsets=CHECKPOINT)
        before = records_in(root / "whole")
        changes = erase_until(root / "whole", None)
        expected = {path.name: path.read_bytes() for path in (root / "whole" / "odd-0").iterdir()}
        left = [each for each in before if each.key not in KEYS]
        assert changes > 30
        for stop_before in range(changes):
            log_dir = root / str(stop_before)
            write_odd(log_dir)
            write_offsets(log_dir, cleaner_offsets=CHECKPOINT)
            erase_until(log_dir, stop_before)
            found = records_in(log_dir)
            assert [each for each in found if each.key not in KEYS] == left, stop_before
            erase_until(log_dir, None)
            assert {path.name: path.read_bytes() for path in (log_dir / "odd-0").iterdir()} == expected, stop_before
            assert read_offsets(log_dir, "cleaner_offsets") == CHECKPOINT, stop_before
