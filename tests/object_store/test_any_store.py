"""Logs in an object store: any input and output give the bytes of a run on a disk, or no output. For each store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import xxhash

from compaction.commands import compact as job
from compaction.commands import dump_log, erase, expire, verify
from compaction.engine_choice import EngineChoice
from compaction.erasure.erase_keys import ErasureRequest, erase_keys
from compaction.errors import CompactionError, StorageError, UsageError
from compaction.files.calls import OPTIONS_VARIABLE
from compaction.files.local import LocalFileSystem
from compaction.files.manifest import MANIFEST, MARKER
from compaction.files.object_store import list_directory
from compaction.files.uri import parse_uri
from compaction.names import CLEANER_OFFSETS
from compaction.report import LogStatus, RunReport
from compaction.run.compact import clean_logs
from compaction.run.sizing import Sizes
from tests.conftest import ROOT
from tests.executed import executed
from tests.local_passes import LocalPasses
from tests.log.logs import data_segment
from tests.object_store.fixtures import Bucket, GoogleBucket, GoogleServer, any_bucket, files, on_one_store, published
from tests.object_store.local_run import COMPACT, NOW_MS, OnDisk, figures, run

__all__ = ["any_bucket"]

pytestmark = pytest.mark.filterwarnings("default")


def test_from_a_disk_into_a_store(any_bucket: Bucket, sample: Path, on_disk: OnDisk) -> None:
    report = run("--log-dir", sample, "--output-dir", any_bucket.address("out"))
    assert published(any_bucket) == on_disk[0]
    assert figures(report) == figures(on_disk[1])
    entries = json.loads(any_bucket.get(f"out/{MANIFEST}"))["files"]
    assert {each["path"]: each["size"] for each in entries} == {name: len(data) for name, data in on_disk[0].items()}
    assert all(each["etag"] for each in entries)
    hashes = {name: xxhash.xxh3_128_hexdigest(data) for name, data in on_disk[0].items()}
    assert {each["path"]: each["xxh3_128"] for each in entries} == hashes


def test_from_a_store_onto_a_disk_and_into_a_store(any_bucket: Bucket, sample: Path, on_disk: OnDisk, tmp_path: Path) -> None:
    any_bucket.put_tree(sample, "in")
    for target in (tmp_path / "out", any_bucket.address("out")):
        report = run("--log-dir", any_bucket.address("in"), "--output-dir", target)
        assert figures(report) == figures(on_disk[1])
    assert files(tmp_path / "out") == published(any_bucket) == on_disk[0]
    assert any_bucket.tree("in") == files(sample)


def test_a_dry_run_of_a_bucket_itself_has_the_same_figures_and_writes_nothing(any_bucket: Bucket, sample: Path) -> None:
    any_bucket.put_tree(sample)
    any_bucket.forget()
    assert figures(run("--log-dir", any_bucket.address(), "--dry-run")) == figures(run("--log-dir", sample, "--dry-run"))
    assert set() < {request.method for request in any_bucket.asked()} <= any_bucket.reading


@on_one_store
def test_parts_of_a_segment_are_joined_in_a_store(any_bucket: Bucket, sample: Path, on_disk: OnDisk) -> None:
    run("--log-dir", sample, "--output-dir", any_bucket.address("out"), sizes=Sizes(4096, 4096, 64))
    assert published(any_bucket) == on_disk[0]


@on_one_store
def test_a_log_in_a_store_can_be_dumped(any_bucket: Bucket, sample: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    any_bucket.put_tree(sample / "orders-0", "in/orders-0")
    assert dump_log.main(["--files", any_bucket.address("in/orders-0"), "--print-data-log"]) == 0
    remote = capfdbinary.readouterr().out
    assert dump_log.main(["--files", str(sample / "orders-0"), "--print-data-log"]) == 0
    local = capfdbinary.readouterr().out
    assert remote.replace(any_bucket.address("in").partition("?")[0].encode(), str(sample).encode()) == local


def test_a_large_segment_is_uploaded_in_parts_and_read_in_ranges(any_bucket: Bucket, large: Path, tmp_path: Path) -> None:
    run("--log-dir", large, "--output-dir", tmp_path / "out", *COMPACT)
    any_bucket.put_tree(large, "in")
    any_bucket.forget()
    run("--log-dir", any_bucket.address("in"), "--output-dir", any_bucket.address("out"), *COMPACT)
    asked = any_bucket.asked()
    assert len([each for each in asked if each.ranged and each.key == f"in/orders-0/{0:020d}.log"]) >= 8
    assert max(Counter(each.key for each in asked if each.part).values()) in any_bucket.parts
    assert published(any_bucket) == files(tmp_path / "out")


def test_a_prefix_of_many_objects_is_read_completely(any_bucket: Bucket, tmp_path: Path) -> None:
    log = tmp_path / "in" / "orders-0"
    log.mkdir(parents=True)
    for base in range(0, 200, 10):
        data_segment(base, [base]).put(LocalFileSystem(), str(log))
    # these come before the segments
    for number in range(any_bucket.page):
        (log / f"00-{number:04}").touch()
    any_bucket.put_tree(tmp_path / "in", "in")
    any_bucket.forget()
    report = run("--log-dir", any_bucket.address("in"), "--dry-run", *COMPACT)
    assert any(request.next_page for request in any_bucket.asked())
    assert [(found.segments_before, found.records_before) for found in report.logs] == [(20, 20)]


def test_a_log_that_cannot_be_read_is_reported_with_the_reason(any_bucket: Bucket, sample: Path, tmp_path: Path) -> None:
    any_bucket.put_tree(sample, "in")
    with any_bucket.refusing(f"/orders-0/{0:020d}.log", reads=True):
        report = run("--log-dir", any_bucket.address("in"), "--output-dir", tmp_path / "out")
    check_left_out(report, any_bucket)


def test_a_log_that_cannot_be_written_is_missing_in_the_output(any_bucket: Bucket, sample: Path) -> None:
    with any_bucket.refusing("/orders-0/"):
        report = run("--log-dir", sample, "--output-dir", any_bucket.address("out"))
    check_left_out(report, any_bucket)
    found = published(any_bucket)
    assert not [name for name in found if name.startswith("orders-0/")]


def check_left_out(report: RunReport, bucket: Bucket) -> None:
    """One log has failed, as the store has refused something."""
    failed = [log for log in report.logs if log.status is LogStatus.FAILED]
    assert [log.name for log in failed] == ["orders-0"]
    assert bucket.denied in failed[0].reason
    assert "check the credentials" in failed[0].reason


@pytest.mark.parametrize("refused", [MANIFEST, "meta.properties"])
def test_an_incomplete_output_is_not_published_and_is_refused_as_input(
    any_bucket: Bucket, sample: Path, on_disk: OnDisk, refused: str
) -> None:
    with any_bucket.refusing(refused), pytest.raises(StorageError, match="cannot write"):
        run("--log-dir", sample, "--output-dir", any_bucket.address("out"))
    assert set(any_bucket.tree("out")) == {MARKER}
    with pytest.raises(UsageError, match="unfinished"):
        run("--log-dir", any_bucket.address("out"), "--dry-run")
    run("--log-dir", sample, "--output-dir", any_bucket.address("out"))
    assert published(any_bucket) == on_disk[0]


def test_work_in_place_is_refused_with_the_reason(any_bucket: Bucket, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    any_bucket.put_tree(sample / "orders-0", "in/orders-0")
    for main in (job.main, expire.main):
        assert main(["--log-dir", any_bucket.address("in")]) == 2
        assert "in place: rename is not atomic there" in capsys.readouterr().err
    assert any_bucket.tree("in/orders-0") == files(sample / "orders-0")


@pytest.mark.parametrize(
    ("key", "told"),
    [("nothing-here", "no such log directory"), ("in/orders-0", "this is one partition's directory")],
)
def test_a_wrong_uri_is_an_error(any_bucket: Bucket, sample: Path, key: str, told: str) -> None:
    any_bucket.put_tree(sample / "orders-0", "in/orders-0")
    with pytest.raises(UsageError, match=told):
        run("--log-dir", any_bucket.address(key), "--dry-run")


@on_one_store
@pytest.mark.spark
def test_sparks_workers_reach_the_store(any_bucket: Bucket, sample: Path, on_disk: OnDisk) -> None:
    any_bucket.put_tree(sample, "in")
    places = ["--log-dir", any_bucket.address("in"), "--output-dir", any_bucket.address("out")]
    given = [*places, "--as-of-ms", str(NOW_MS), "--topic", "orders", "--include-active"]
    command = [sys.executable, "-m", "jobs", "compact", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = {name: data for name, data in published(any_bucket).items() if name.startswith("orders-")}
    assert found == {name: data for name, data in on_disk[0].items() if name.startswith("orders-")}


def read_by_the_source(address: str, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The records of a log as the data source has them."""
    from compaction.source.data_source import KafkaLogReader, KafkaLogSource

    reader = KafkaLogReader({"path": address, "topic": "orders"}, KafkaLogSource({"batchColumns": "true"}).schema())
    shares = reader.partitions()
    # a task runs in another process
    monkeypatch.setenv(OPTIONS_VARIABLE, "{}")
    return [row for share in shares for batch in reader.read(share) for row in batch.to_pylist()]


def test_a_data_source_reads_the_store(any_bucket: Bucket, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    any_bucket.put_tree(sample, "in")
    found = [read_by_the_source(path, monkeypatch) for path in (str(sample), any_bucket.address("in"))]
    assert found[0] == found[1] != []


def test_only_the_log_with_a_changed_object_fails(
    any_bucket: Bucket, sample: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``tests/files/test_remote.py`` has each kind of change."""
    out = any_bucket.address("out")
    run("--log-dir", sample, "--output-dir", out, "--topic", "orders|ledger")
    before = {log.name: log.status for log in run("--log-dir", out, "--dry-run", *COMPACT).logs}
    assert LogStatus.FAILED not in before.values()
    key = next(key for key in sorted(any_bucket.keys("out/orders-0")) if key.endswith(".log"))
    # a bit of the first offset, which no checksum covers
    data = any_bucket.get(key)
    any_bucket.put(key, data[:7] + bytes([data[7] ^ 1]) + data[8:])
    reports = run("--log-dir", out, "--dry-run", *COMPACT), run("--log-dir", out, "--output-dir", any_bucket.address("next"))
    for report in reports:
        failed = [log for log in report.logs if log.status is LogStatus.FAILED]
        assert [log.name for log in failed] == ["orders-0"]
        assert "has " in failed[0].reason and "out/orders-0/" in failed[0].reason
        assert {log.name for log in report.logs} == before.keys()
    assert not [name for name in published(any_bucket, "next") if name.startswith("orders-0/")]
    capfd.readouterr()
    assert dump_log.main(["--files", any_bucket.address("out/orders-0"), "--print-data-log"]) == 1
    assert "has " in capfd.readouterr().err
    with pytest.raises(CompactionError, match="has "):
        read_by_the_source(out, monkeypatch)


@on_one_store
def test_a_finished_output_is_skipped_or_replaced(
    any_bucket: Bucket, sample: Path, on_disk: OnDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    def task(*options: str) -> int:
        given = ["--log-dir", str(sample), "--output-dir", any_bucket.address("out"), "--as-of-ms", str(NOW_MS)]
        return executed(job, [*given, "--include-active", *options], lambda _, request: clean_logs(LocalPasses, request))

    assert task("--if-done", "skip") == 0
    first = any_bucket.get(f"out/{MANIFEST}")
    capsys.readouterr()
    assert task("--if-done", "skip") == 0
    assert "done already by the same request" in capsys.readouterr().out
    assert any_bucket.get(f"out/{MANIFEST}") == first
    assert task("--if-done", "skip", "--topic", "orders") == 2
    assert "it differs in topic" in capsys.readouterr().err
    assert task("--topic", "orders", "--replace") == 0
    assert "ledger-0" not in {key.partition("/")[0] for key in published(any_bucket)}
    assert task("--if-done", "skip", "--replace") == 0
    assert published(any_bucket) == on_disk[0]
    assert set(list_directory(parse_uri(any_bucket.address(), "--output-dir"))) == {"out"}
    any_bucket.put(f"out/orders-0/{0:020d}.log", b"another")
    assert task("--if-done", "skip") == 1
    assert "the finished output is not what was written" in capsys.readouterr().err


@on_one_store
def test_keys_are_erased_on_the_way_from_store_to_store_and_that_is_certified(
    any_bucket: Bucket, sample: Path, tmp_path: Path
) -> None:
    any_bucket.put_tree(sample, "in")
    call = ["--where", "regex=.*1.*", "--include-active", "--as-of-ms", str(NOW_MS), "--topic", "orders"]

    def locally(_: EngineChoice, request: ErasureRequest) -> RunReport:
        return erase_keys(LocalPasses, request)

    assert executed(erase, ["--log-dir", str(sample), "--output-dir", str(tmp_path / "out"), *call], locally) == 0
    before, after = ((path / CLEANER_OFFSETS).read_text().splitlines() for path in (sample, tmp_path / "out"))
    assert after[2:] == [line for line in before if line.startswith("orders ")]
    addresses = any_bucket.address("in"), any_bucket.address("out")
    written = ["--certificate", str(tmp_path / "certificate"), "--report", str(tmp_path / "report")]
    assert executed(erase, ["--log-dir", addresses[0], "--output-dir", addresses[1], *call, *written], locally) == 0
    assert erase.main(["--log-dir", addresses[0], "--output-dir", addresses[1], *call, *written[:2], "--if-done", "skip"]) == 0
    assert published(any_bucket) == files(tmp_path / "out")
    report = json.loads((tmp_path / "report").read_text())
    assert report["totals"]["erased_records"] > 500
    assert "a store that keeps versions" in " ".join(report["erasure"]["notes"])
    again = ["--before", addresses[0], "--after", addresses[1], "--certificate", str(tmp_path / "certificate")]
    assert verify.main([*again, *call[:2]]) == 0


@pytest.mark.gs
@pytest.mark.parametrize("media", [True, False])
def test_requests_to_google_that_fail_for_a_while_are_repeated(
    google_bucket: GoogleBucket, google: GoogleServer, sample: Path, on_disk: OnDisk, media: bool
) -> None:
    google_bucket.put_tree(sample, "in")
    google.gate({"media": media, "times": 2}, {"method": "POST", "times": 1}, {"method": "PUT", "times": 1})
    run("--log-dir", google_bucket.address("in"), "--output-dir", google_bucket.address("out"))
    assert published(google_bucket) == on_disk[0]
