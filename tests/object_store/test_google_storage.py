"""Logs in Google Cloud Storage: every mix of places gives the bytes of a run on a disk, or nothing at all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from compaction.errors import StorageError, UsageError
from compaction.report import LogStatus, RunReport
from compaction.spark.partition import Sizes
from compaction.storage.filesystem import LocalFileSystem
from compaction.storage.manifest import MANIFEST, MARKER
from jobs import dump_log
from tests.conftest import ROOT
from tests.object_store.fixtures import files
from tests.object_store.google_fixtures import GoogleBucket, GoogleServer
from tests.object_store.local_run import COMPACT, KEEP, NOW_MS, figures, run
from tests.storage.logs import data_segment

pytestmark = [pytest.mark.gs, pytest.mark.filterwarnings("default")]

OnDisk = tuple[dict[str, bytes], RunReport]


def published(bucket: GoogleBucket, prefix: str = "out") -> dict[str, bytes]:
    """The objects of a finished output, but for its manifest."""
    found = bucket.tree(prefix)
    assert MARKER not in found
    del found[MANIFEST]
    return found


def test_from_a_disk_into_a_store(google_bucket: GoogleBucket, sample: Path, on_disk: OnDisk) -> None:
    report = run("--log-dir", sample, "--output-dir", google_bucket.address("out"))
    assert published(google_bucket) == on_disk[0]
    assert figures(report) == figures(on_disk[1])
    entries = json.loads(google_bucket.get(f"out/{MANIFEST}"))["files"]
    assert {each["path"]: each["size"] for each in entries} == {name: len(data) for name, data in on_disk[0].items()}
    assert all(each["etag"] for each in entries)


def test_from_a_store_onto_a_disk(google_bucket: GoogleBucket, sample: Path, on_disk: OnDisk, tmp_path: Path) -> None:
    google_bucket.put_tree(sample, "in")
    report = run("--log-dir", google_bucket.address("in"), "--output-dir", tmp_path / "out")
    assert files(tmp_path / "out") == on_disk[0]
    assert figures(report) == figures(on_disk[1])


def test_from_store_to_store(google_bucket: GoogleBucket, sample: Path, on_disk: OnDisk) -> None:
    google_bucket.put_tree(sample, "in")
    run("--log-dir", google_bucket.address("in"), "--output-dir", google_bucket.address("out"))
    assert published(google_bucket) == on_disk[0]
    assert google_bucket.tree("in") == files(sample)


def test_a_bucket_itself_can_be_a_log_directory(google_bucket: GoogleBucket, sample: Path, tmp_path: Path) -> None:
    for name, data in files(sample).items():
        google_bucket.put(name, data)
    assert figures(run("--log-dir", google_bucket.address(), "--dry-run")) == figures(run("--log-dir", sample, "--dry-run"))


def test_the_times_of_files_go_with_the_manifest(google_bucket: GoogleBucket, sample: Path, tmp_path: Path) -> None:
    run("--log-dir", sample, "--output-dir", google_bucket.address("out"))
    run("--log-dir", sample, "--output-dir", tmp_path / "first")
    run("--log-dir", google_bucket.address("out"), "--output-dir", tmp_path / "second", *KEEP)
    logs = [file.relative_to(tmp_path / "first") for file in (tmp_path / "first").rglob("*.log")]
    assert logs
    for name in logs:
        times = [(tmp_path / each / name).stat().st_mtime_ns // 1_000_000 for each in ("first", "second")]
        assert times[0] == times[1], name


def test_parts_of_a_segment_are_joined_in_a_store(google_bucket: GoogleBucket, sample: Path, on_disk: OnDisk) -> None:
    run("--log-dir", sample, "--output-dir", google_bucket.address("out"), sizes=Sizes(4096, 4096, 64))
    assert published(google_bucket) == on_disk[0]


def test_a_dry_run_has_the_same_figures_and_writes_nothing(
    google_bucket: GoogleBucket, google: GoogleServer, sample: Path
) -> None:
    google_bucket.put_tree(sample, "in")
    google.gate()
    assert figures(run("--log-dir", google_bucket.address("in"), "--dry-run")) == figures(run("--log-dir", sample, "--dry-run"))
    assert {request["method"] for request in google.seen()["requests"]} == {"GET"}


def test_a_log_in_a_store_can_be_dumped(
    google_bucket: GoogleBucket, sample: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    google_bucket.put_tree(sample / "orders-0", "in/orders-0")
    assert dump_log.main(["--files", google_bucket.address("in/orders-0"), "--print-data-log"]) == 0
    remote = capfdbinary.readouterr().out
    assert dump_log.main(["--files", str(sample / "orders-0"), "--print-data-log"]) == 0
    local = capfdbinary.readouterr().out
    assert remote.replace(google_bucket.address("in").partition("?")[0].encode(), str(sample).encode()) == local


def test_a_large_segment_goes_in_parts_and_comes_in_ranges(
    google_bucket: GoogleBucket, google: GoogleServer, large: Path, tmp_path: Path
) -> None:
    run("--log-dir", large, "--output-dir", tmp_path / "out", *COMPACT)
    google_bucket.put_tree(large, "in")
    google.gate()
    run("--log-dir", google_bucket.address("in"), "--output-dir", google_bucket.address("out"), *COMPACT)
    requests = google.seen()["requests"]
    assert len([each for each in requests if each["range"] and each["key"] == f"in/orders-0/{0:020d}.log"]) >= 8
    # of some 30 MB; left to itself, the client waits for an answer to each of 17 writes
    assert 4 <= max(Counter(each["key"] for each in requests if each["method"] == "PUT").values()) <= 6
    assert published(google_bucket) == files(tmp_path / "out")


def test_a_prefix_of_many_objects_is_read_whole(google_bucket: GoogleBucket, google: GoogleServer, tmp_path: Path) -> None:
    log = tmp_path / "in" / "orders-0"
    log.mkdir(parents=True)
    for base in range(0, 200, 10):
        data_segment(base, [base]).put(LocalFileSystem(), str(log))
    # a listing has a hundred names a page, and these come before the segments
    for number in range(150):
        (log / f"00-{number:04}").touch()
    google_bucket.put_tree(tmp_path / "in", "in")
    google.gate()
    report = run("--log-dir", google_bucket.address("in"), "--dry-run", *COMPACT)
    assert any(request["page"] for request in google.seen()["requests"])
    assert [(found.segments_before, found.records_before) for found in report.logs] == [(20, 20)]


@pytest.mark.parametrize("media", [True, False])
def test_requests_that_fail_for_a_while_are_repeated(
    google_bucket: GoogleBucket, google: GoogleServer, sample: Path, on_disk: OnDisk, tmp_path: Path, media: bool
) -> None:
    google_bucket.put_tree(sample, "in")
    google.gate({"media": media, "times": 2}, {"method": "POST", "times": 1}, {"method": "PUT", "times": 1})
    run("--log-dir", google_bucket.address("in"), "--output-dir", google_bucket.address("out"))
    assert published(google_bucket) == on_disk[0]


def test_a_segment_that_cannot_be_read_is_told_with_the_reason(
    google_bucket: GoogleBucket, google: GoogleServer, sample: Path, tmp_path: Path
) -> None:
    google_bucket.put_tree(sample, "in")
    google.gate({"media": True, "part": f"/orders-0/{0:020d}.log", "status": 403})
    report = run("--log-dir", google_bucket.address("in"), "--output-dir", tmp_path / "out")
    failed = [log for log in report.logs if log.status is LogStatus.FAILED]
    assert [log.name for log in failed] == ["orders-0"]
    assert "PERMISSION_DENIED" in failed[0].reason
    assert "check the credentials" in failed[0].reason


@pytest.mark.parametrize("refused", [MANIFEST, "meta.properties"])
def test_what_cannot_be_completed_does_not_appear(
    google_bucket: GoogleBucket, google: GoogleServer, sample: Path, refused: str
) -> None:
    google.gate({"method": "POST", "part": refused, "status": 403})
    with pytest.raises(StorageError, match="cannot write"):
        run("--log-dir", sample, "--output-dir", google_bucket.address("out"))
    assert google_bucket.tree("out") == {}


@pytest.mark.parametrize("at", [f"/{MANIFEST}", "/meta.properties"])
def test_a_run_that_was_killed_is_not_taken_for_a_finished_one_and_the_next_one_starts_again(
    google_bucket: GoogleBucket, google: GoogleServer, sample: Path, on_disk: OnDisk, at: str
) -> None:
    google.gate({"method": "PUT", "part": at, "status": 0})
    options = ("--log-dir", str(sample), "--output-dir", google_bucket.address("out"))
    with subprocess.Popen([sys.executable, "-m", "tests.object_store.local_run", *options], cwd=ROOT) as victim:
        until = time.monotonic() + 120
        while not google.seen()["held"]:
            assert victim.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        victim.send_signal(signal.SIGKILL)
    google.gate()
    left = google_bucket.tree("out")
    assert MARKER in left
    assert not [name for name in left if f"/{name}".endswith(at)]
    with pytest.raises(UsageError, match="unfinished"):
        run("--log-dir", google_bucket.address("out"), "--dry-run")
    google_bucket.put("out/orders-0/left-over", b"of the run that was killed")
    run("--log-dir", sample, "--output-dir", google_bucket.address("out"))
    assert published(google_bucket) == on_disk[0]


def test_a_finished_output_and_what_is_not_ours_are_left_alone(google_bucket: GoogleBucket, sample: Path) -> None:
    run("--log-dir", sample, "--output-dir", google_bucket.address("out"), "--topic", "orders")
    google_bucket.put("theirs/data.parquet", b"data")
    before = google_bucket.tree("out")
    for place in ("out", "theirs"):
        with pytest.raises(UsageError, match="exists and is not empty"):
            run("--log-dir", sample, "--output-dir", google_bucket.address(place))
    assert google_bucket.tree("out") == before
    assert google_bucket.tree("theirs") == {"data.parquet": b"data"}


@pytest.mark.parametrize(
    ("key", "told"),
    [("nothing-here", "no such log directory"), ("in/orders-0", "this is one partition's directory")],
)
def test_a_wrong_address_is_told(google_bucket: GoogleBucket, sample: Path, key: str, told: str) -> None:
    google_bucket.put_tree(sample / "orders-0", "in/orders-0")
    with pytest.raises(UsageError, match=told):
        run("--log-dir", google_bucket.address(key), "--dry-run")


@pytest.mark.spark
def test_sparks_workers_reach_the_store(google_bucket: GoogleBucket, sample: Path, on_disk: OnDisk) -> None:
    google_bucket.put_tree(sample, "in")
    places = ["--log-dir", google_bucket.address("in"), "--output-dir", google_bucket.address("out")]
    given = [*places, "--as-of-ms", str(NOW_MS), "--topic", "orders", "--include-active"]
    command = [sys.executable, "-m", "jobs", "compact", *given]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = {name: data for name, data in published(google_bucket).items() if name.startswith("orders-")}
    assert found == {name: data for name, data in on_disk[0].items() if name.startswith("orders-")}
