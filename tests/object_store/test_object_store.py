"""Logs in an S3-compatible store: every mix of places gives the bytes of a run on a disk, or nothing at all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compaction.errors import StorageError, UsageError
from compaction.report import LogStatus, RunReport
from compaction.spark.partition import Sizes
from compaction.storage.manifest import MANIFEST, MARKER
from compaction.storage.places import OPTIONS_VARIABLE
from jobs import compact as job
from jobs import dump_log, expire
from tests.conftest import ROOT
from tests.object_store.fixtures import Bucket, files
from tests.object_store.local_run import COMPACT, KEEP, NOW_MS, figures, run
from tests.object_store.server import ACCESS_KEY, DENIED, SECRET_KEY, SLOW_DOWN, CutOff, Gate, Request, Store
from tests.storage.logs import data_segment

pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("default")]


def test_from_a_disk_into_a_store(bucket: Bucket, sample: Path, on_disk: tuple[dict[str, bytes], RunReport]) -> None:
    report = run("--log-dir", sample, "--output-dir", bucket.address("out"))
    found = bucket.tree("out")
    manifest = json.loads(found.pop(MANIFEST))
    assert found == on_disk[0]
    assert figures(report) == figures(on_disk[1])
    assert {each["path"]: each["size"] for each in manifest["files"]} == {name: len(data) for name, data in found.items()}
    assert all(each["etag"] for each in manifest["files"])


def test_from_a_store_onto_a_disk(
    bucket: Bucket, sample: Path, on_disk: tuple[dict[str, bytes], RunReport], tmp_path: Path
) -> None:
    bucket.put_tree(sample, "in")
    report = run("--log-dir", bucket.address("in"), "--output-dir", tmp_path / "out")
    assert files(tmp_path / "out") == on_disk[0]
    assert figures(report) == figures(on_disk[1])


def test_from_store_to_store(bucket: Bucket, sample: Path, on_disk: tuple[dict[str, bytes], RunReport]) -> None:
    bucket.put_tree(sample, "in")
    run("--log-dir", bucket.address("in"), "--output-dir", bucket.address("out"))
    found = bucket.tree("out")
    assert MANIFEST in found
    assert MARKER not in found
    assert {name: data for name, data in found.items() if name != MANIFEST} == on_disk[0]
    assert bucket.tree("in") == files(sample)


def test_the_times_of_files_go_with_the_manifest(bucket: Bucket, sample: Path, tmp_path: Path) -> None:
    run("--log-dir", sample, "--output-dir", bucket.address("out"))
    run("--log-dir", sample, "--output-dir", tmp_path / "first")
    run("--log-dir", bucket.address("out"), "--output-dir", tmp_path / "second", *KEEP)
    logs = [file.relative_to(tmp_path / "first") for file in (tmp_path / "first").rglob("*.log")]
    assert logs
    for name in logs:
        times = [(tmp_path / each / name).stat().st_mtime_ns // 1_000_000 for each in ("first", "second")]
        assert times[0] == times[1], name


def test_parts_of_a_segment_are_joined_in_a_store(
    bucket: Bucket, sample: Path, on_disk: tuple[dict[str, bytes], RunReport]
) -> None:
    run("--log-dir", sample, "--output-dir", bucket.address("out"), sizes=Sizes(4096, 4096, 64))
    assert {name: data for name, data in bucket.tree("out").items() if name != MANIFEST} == on_disk[0]


def test_a_dry_run_has_the_same_figures_and_writes_nothing(bucket: Bucket, store: Store, sample: Path) -> None:
    bucket.put_tree(sample, "in")
    store.forget()
    assert figures(run("--log-dir", bucket.address("in"), "--dry-run")) == figures(run("--log-dir", sample, "--dry-run"))
    assert {request.method for request in store.requests} == {"GET", "HEAD"}


def test_a_log_in_a_store_can_be_dumped(bucket: Bucket, sample: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    bucket.put_tree(sample / "orders-0", "in/orders-0")
    assert dump_log.main(["--files", bucket.address("in/orders-0"), "--print-data-log"]) == 0
    remote = capfdbinary.readouterr().out
    assert dump_log.main(["--files", str(sample / "orders-0"), "--print-data-log"]) == 0
    local = capfdbinary.readouterr().out
    assert remote.replace(bucket.address("in").partition("?")[0].encode(), str(sample).encode()) == local


def test_a_large_segment_goes_in_parts_and_comes_in_ranges(bucket: Bucket, store: Store, large: Path, tmp_path: Path) -> None:
    run("--log-dir", large, "--output-dir", tmp_path / "out", *COMPACT)
    bucket.put_tree(large, "in")
    store.forget()
    run("--log-dir", bucket.address("in"), "--output-dir", bucket.address("out"), *COMPACT)
    assert len([request for request in store.requests if request.is_part]) >= 2
    assert len([r for r in store.requests if r.method == "GET" and r.key.endswith(f"in/orders-0/{0:020d}.log")]) >= 8
    found = bucket.tree("out")
    del found[MANIFEST]
    assert found == files(tmp_path / "out")


def every(n: int, error: Exception) -> Gate:
    """Fails every ``n``-th request."""

    def gate(request: Request) -> None:
        if request.number % n == 0:
            raise error

    return gate


def parts_once(error: Exception) -> Gate:
    """Fails the first request for each part, and for each range of a log."""
    seen: set[tuple[str, str]] = set()

    def gate(request: Request) -> None:
        name = (request.method, f"{request.key} {request.query.get('partNumber')}")
        if (request.is_part or (request.method == "GET" and request.key.endswith(".log"))) and name not in seen:
            seen.add(name)
            raise error

    return gate


@pytest.mark.parametrize("gate", [every(5, SLOW_DOWN), parts_once(SLOW_DOWN), parts_once(CutOff())])
def test_throttling_and_lost_connections_are_sat_out(
    bucket: Bucket, store: Store, large: Path, tmp_path: Path, gate: Gate
) -> None:
    run("--log-dir", large, "--output-dir", tmp_path / "out", *COMPACT)
    bucket.put_tree(large, "in")
    with store.gate(gate):
        run("--log-dir", bucket.address("in"), "--output-dir", bucket.address("out"), *COMPACT)
    found = bucket.tree("out")
    assert MANIFEST in found
    del found[MANIFEST]
    assert found == files(tmp_path / "out")


def denied(part: str, method: str = "PUT") -> Gate:
    """Refuses what writes to keys with ``part`` in them."""

    def gate(request: Request) -> None:
        if part in request.key and request.method in (method, "POST"):
            raise DENIED

    return gate


def test_a_log_that_cannot_be_written_is_left_out_and_the_others_are_there(bucket: Bucket, store: Store, sample: Path) -> None:
    with store.gate(denied("/orders-0/")):
        report = run("--log-dir", sample, "--output-dir", bucket.address("out"))
    failed = [log for log in report.logs if log.status is LogStatus.FAILED]
    assert [log.name for log in failed] == ["orders-0"]
    assert "check the credentials" in failed[0].reason
    found = bucket.tree("out")
    assert MANIFEST in found
    assert not [name for name in found if name.startswith("orders-0/")]


@pytest.mark.parametrize("refused", [MANIFEST, "meta.properties"])
def test_what_cannot_be_completed_does_not_appear(bucket: Bucket, store: Store, sample: Path, refused: str) -> None:
    with store.gate(denied(refused)), pytest.raises(StorageError, match="cannot write"):
        run("--log-dir", sample, "--output-dir", bucket.address("out"))
    assert bucket.tree("out") == {}


def test_a_prefix_of_many_objects_is_read_whole(bucket: Bucket, store: Store, tmp_path: Path) -> None:
    from compaction.storage.filesystem import LocalFileSystem

    log = tmp_path / "in" / "orders-0"
    log.mkdir(parents=True)
    for base in range(0, 200, 10):
        data_segment(base, [base]).put(LocalFileSystem(), str(log))
    # a listing has a thousand names a page, and these come before the segments
    for number in range(1000):
        (log / f"00-{number:04}").touch()
    bucket.put_tree(tmp_path / "in", "in")
    store.forget()
    report = run("--log-dir", bucket.address("in"), "--dry-run", *COMPACT)
    assert any("continuation-token" in request.query for request in store.requests)
    assert [(log.segments_before, log.records_before) for log in report.logs] == [(20, 20)]


def started(*options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.object_store.local_run", *map(str, options)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)


@pytest.mark.parametrize("at", [f"/{MANIFEST}", "/meta.properties", "/cleaner-offset-checkpoint"])
def test_a_run_that_was_killed_is_not_taken_for_a_finished_one_and_the_next_one_starts_again(
    bucket: Bucket, store: Store, sample: Path, on_disk: tuple[dict[str, bytes], RunReport], at: str
) -> None:
    victims: list[subprocess.Popen[bytes]] = []

    def kill(request: Request) -> None:
        if request.key.endswith(at) and request.method in ("PUT", "POST"):
            victims[0].send_signal(signal.SIGKILL)
            victims[0].wait(60)
            raise CutOff

    with store.gate(kill):
        victims.append(started("--log-dir", sample, "--output-dir", bucket.address("out")))
        with victims[0] as victim:
            assert victim.wait(240) == -signal.SIGKILL, victim.stderr and victim.stderr.read()
    left = bucket.tree("out")
    assert MARKER in left
    assert MANIFEST not in left
    with pytest.raises(UsageError, match="unfinished"):
        run("--log-dir", bucket.address("out"), "--dry-run")
    bucket.put("out/orders-0/left-over", b"of the run that was killed")
    run("--log-dir", sample, "--output-dir", bucket.address("out"))
    found = bucket.tree("out")
    assert MARKER not in found
    del found[MANIFEST]
    assert found == on_disk[0]


def test_a_finished_output_and_what_is_not_ours_are_left_alone(bucket: Bucket, sample: Path) -> None:
    run("--log-dir", sample, "--output-dir", bucket.address("out"), "--topic", "orders")
    bucket.put("theirs/data.parquet", b"data")
    before = bucket.tree("out")
    for place in ("out", "theirs"):
        with pytest.raises(UsageError, match="exists and is not empty"):
            run("--log-dir", sample, "--output-dir", bucket.address(place))
    assert bucket.tree("out") == before
    assert bucket.tree("theirs") == {"data.parquet": b"data"}


def test_of_two_runs_into_one_place_the_later_one_wins(
    bucket: Bucket, store: Store, sample: Path, on_disk: tuple[dict[str, bytes], RunReport]
) -> None:
    later: list[RunReport] = []

    def begin_another(request: Request) -> None:
        if not later and request.key.endswith("/meta.properties") and request.method == "PUT":
            later.append(RunReport("", 0, False, ()))
            later.append(run("--log-dir", sample, "--output-dir", bucket.address("out")))

    with store.gate(begin_another), pytest.raises(StorageError, match="another run writes to this place"):
        run("--log-dir", sample, "--output-dir", bucket.address("out"))
    found = bucket.tree("out")
    del found[MANIFEST]
    assert found == on_disk[0]


def test_work_in_place_is_refused_with_the_reason(
    bucket: Bucket, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket.put_tree(sample / "orders-0", "in/orders-0")
    for main in (job.main, expire.main):
        assert main(["--log-dir", bucket.address("in")]) == 2
        assert "in place: rename is not atomic there" in capsys.readouterr().err
    assert bucket.tree("in/orders-0") == files(sample / "orders-0")


@pytest.mark.parametrize(
    ("key", "told"),
    [("nothing-here", "no such log directory"), ("in/orders-0", "this is one partition's directory")],
)
def test_a_wrong_address_is_told(bucket: Bucket, sample: Path, key: str, told: str) -> None:
    bucket.put_tree(sample / "orders-0", "in/orders-0")
    with pytest.raises(UsageError, match=told):
        run("--log-dir", bucket.address(key), "--dry-run")


def test_credentials_are_never_told(
    bucket: Bucket, store: Store, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    bucket.put_tree(sample / "orders-0", "in/orders-0")

    def fail(request: Request) -> None:
        raise DENIED

    def wrong(*options: object) -> str:
        assert job.main([*map(str, options)]) == 2
        return capsys.readouterr().err

    with store.gate(fail):
        told = wrong("--log-dir", bucket.address("in"), "--dry-run", "--verbose", "--report", report)
    assert "check the credentials" in told
    carried = run("--log-dir", bucket.address("in"), "--dry-run").to_json()
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret not in told + carried
    assert store.endpoint not in carried


@pytest.mark.spark
@pytest.mark.parametrize("options", [("--topic", "orders")])
def test_sparks_workers_reach_the_store(
    bucket: Bucket, sample: Path, on_disk: tuple[dict[str, bytes], RunReport], options: tuple[str, ...]
) -> None:
    bucket.put_tree(sample, "in")
    given = ["--log-dir", bucket.address("in"), "--output-dir", bucket.address("out"), "--as-of-ms", NOW_MS, *options]
    command = [sys.executable, "-m", "jobs", "compact", *map(str, given), "--include-active"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = {name: data for name, data in bucket.tree("out").items() if name.startswith("orders-")}
    assert found == {name: data for name, data in on_disk[0].items() if name.startswith("orders-")}


def test_a_data_source_reads_the_store(bucket: Bucket, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from compaction.spark.source import KafkaLogReader
    from compaction.spark.source_columns import source_schema

    bucket.put_tree(sample, "in")
    found = []
    for path in (str(sample), bucket.address("in")):
        reader = KafkaLogReader({"path": path, "topic": "orders"}, source_schema(None, batch_columns=True))
        shares = reader.partitions()
        # a task runs in another process
        monkeypatch.setenv(OPTIONS_VARIABLE, "{}")
        found.append([row for share in shares for batch in reader.read(share) for row in batch.to_pylist()])
    assert found[0] == found[1] != []
