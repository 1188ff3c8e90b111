"""Logs in an object store: any input and output give the bytes of a run on a disk, or no output; copies since another one."""

from __future__ import annotations

import json
import random
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
from compaction.errors import StorageError, UsageError
from compaction.files.calls import OPTIONS_VARIABLE
from compaction.files.local import LocalFileSystem
from compaction.files.manifest import MANIFEST, MARKER
from compaction.names import CLEANER_OFFSETS
from compaction.report import LogReport, LogStatus, RunReport
from compaction.run.sizing import Sizes
from tests.conftest import ROOT
from tests.executed import executed
from tests.kafka.encode import Batch, Record
from tests.local_passes import LocalPasses
from tests.log.logs import build, data_segment, put_snapshot
from tests.object_store.fixtures import (
    Bucket,
    GoogleBucket,
    GoogleServer,
    S3Bucket,
    files,
    on_one_store,
    published,
)
from tests.object_store.local_run import COMPACT, NOW_MS, OnDisk, figures, run
from tests.object_store.server import Request, Store
from tests.source.plain_consumer import reader_of

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


@pytest.mark.parametrize("reads", [True, False])
def test_a_log_that_cannot_be_read_or_written_is_missing_in_the_output(any_bucket: Bucket, sample: Path, reads: bool) -> None:
    any_bucket.put_tree(sample, "in")
    source = any_bucket.address("in") if reads else sample
    with any_bucket.refusing(f"in/orders-0/{0:020d}.log" if reads else "out/orders-0/", reads=reads):
        report = run("--log-dir", source, "--output-dir", any_bucket.address("out"))
    (failed,) = (log for log in report.logs if log.status is LogStatus.FAILED)
    assert failed.name == "orders-0"
    assert any_bucket.denied in failed.reason
    assert "check the credentials" in failed.reason
    assert not [name for name in published(any_bucket) if name.startswith("orders-0/")]


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


def test_a_data_source_reads_the_store(any_bucket: Bucket, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    any_bucket.put_tree(sample, "in")
    local, remote = (reader_of(path, topic="orders") for path in (sample, any_bucket.address("in")))
    tasks = remote.partitions()
    # a task runs in another process
    monkeypatch.setenv(OPTIONS_VARIABLE, "{}")
    found = [row for task in tasks for batch in remote.read(task) for row in batch.to_pylist()]
    assert found == [row for task in local.partitions() for batch in local.read(task) for row in batch.to_pylist()] != []


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


KINDS = (".log", ".index", ".timeindex")
#: larger than what a run reads as a whole
_VALUE_BYTES = 16_000


def add(log_dir: Path, topic: str, *bases: int, values: int = 60) -> None:
    """Segments of 1 MB; the last one of a log is active and small."""
    path = log_dir / f"{topic}-0"
    path.mkdir(parents=True, exist_ok=True)
    for base in bases:
        offsets = range(base, base + values)
        records = [Record(at, NOW_MS, b"%d" % at, random.Random(at).randbytes(_VALUE_BYTES)) for at in offsets]
        batches = [Batch([record]).encode() for record in records]
        build(base, batches).put(LocalFileSystem(), str(path))
        # without one, the headers of all batches are read
        put_snapshot(LocalFileSystem(), str(path), base)


def source_of(root: Path, logs: int = 5) -> Path:
    for number in range(logs):
        add(root, f"t{number}", 0, 100, 200)
        add(root, f"t{number}", 300, values=1)
    return root


def copy(source: object, target: str, *options: object) -> dict[str, LogReport]:
    """A copy whose active segments are not cleaned."""
    config = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0.5")
    report = run("--log-dir", source, "--output-dir", target, *config, *options, include_active=False)
    return {log.topic: log for log in report.logs}


def logs_of(objects: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in objects.items() if name.endswith(KINDS)}


def moved(requests: list[Request], sizes: dict[str, int]) -> int:
    """The bytes of objects, and of parts of them, in either direction."""
    read = (request for request in requests if request.method == "GET")
    received = sum(sizes.get(each.key, 0) if each.range_bytes is None else each.range_bytes for each in read)
    uploads = {request.key for request in requests if request.is_write} - copied(requests)
    # tasks upload under temporary names
    return received + sum(sizes.get(key.partition(".clean")[0], 0) for key in uploads)


def copied(requests: list[Request]) -> set[str]:
    return {request.key for request in requests if request.copies}


@pytest.mark.s3
def test_a_store_moves_only_what_is_new(store: Store, bucket: S3Bucket, tmp_path: Path) -> None:
    source, seen = source_of(tmp_path / "kafka"), []
    copy(source, bucket.address("monday"))
    # one of 20 segments is new
    add(source, "t0", 400)
    add(source, "t0", 500, values=1)
    for options in (("full",), ("tuesday", "--since", bucket.address("monday"))):
        store.forget()
        reports = copy(source, bucket.address(options[0]), *options[1:])
        seen.append(list(store.requests))
    assert {topic: log.since for topic, log in reports.items()} == {
        "t0": "grown", **{f"t{number}": "unchanged" for number in range(1, 5)}
    }  # fmt: skip
    objects = {name: bucket.tree(name) for name in ("monday", "full", "tuesday")}
    sizes = {f"{bucket.name}/{copy}/{name}": len(data) for copy, tree in objects.items() for name, data in tree.items()}
    full, since = (moved(requests, sizes) for requests in seen)
    assert full >= 2 * sum(map(len, logs_of(objects["full"]).values()))
    assert since <= 0.1 * full
    # one request for each object that is taken over
    taken = {name for name in objects["monday"] if name.endswith(KINDS) and int(Path(name).stem) < 300}
    puts = Counter(request.key for request in seen[1] if request.is_write)
    assert len(taken) >= 15
    assert {puts[f"{bucket.name}/tuesday/{name}"] for name in taken} == {1}
    assert {f"{bucket.name}/tuesday/{name}" for name in taken} <= copied(seen[1])
    assert all(objects["tuesday"][name] == objects["monday"][name] for name in taken)


@on_one_store
def test_objects_are_identified_by_their_etags(any_bucket: Bucket, tmp_path: Path) -> None:
    any_bucket.put_tree(source_of(tmp_path / "kafka", 2), "kafka")
    source = any_bucket.address("kafka")
    copy(source, any_bucket.address("monday"))
    reports = copy(source, any_bucket.address("tuesday"), "--since", any_bucket.address("monday"))
    assert {log.since for log in reports.values()} == {"unchanged"}
    assert logs_of(any_bucket.tree("tuesday")) == logs_of(any_bucket.tree("monday"))
    key = f"kafka/t0-0/{100:020d}.log"
    changed = bytearray(any_bucket.get(key))
    any_bucket.put(key, bytes(changed[:-1]) + bytes([changed[-1] ^ 1]))
    reports = copy(source, any_bucket.address("wednesday"), "--since", any_bucket.address("tuesday"))
    assert (reports["t0"].since, reports["t1"].since) == ("full", "unchanged")
    assert reports["t0"].since_reason == "segment 100 has changed"


@on_one_store
def test_a_changed_object_of_the_previous_copy_is_not_taken(any_bucket: Bucket, tmp_path: Path) -> None:
    source = source_of(tmp_path / "kafka", 2)
    copy(source, any_bucket.address("monday"))
    key = f"monday/t0-0/{0:020d}.log"
    good = any_bucket.get(key)
    any_bucket.put(key, good[:-1] + bytes([good[-1] ^ 1]))
    reports = copy(source, any_bucket.address("tuesday"), "--since", any_bucket.address("monday"))
    assert (reports["t0"].since, reports["t1"].since) == ("full", "unchanged")
    assert any_bucket.get(f"tuesday/t0-0/{0:020d}.log") == good
