"""What is an S3-compatible store's own: throttling, lost connections, and credentials. Exports in one: ranged
reads, retries, errors that name the object; written completely, or not at all."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from compaction.commands import compact
from compaction.files import object_store
from compaction.files.calls import KEYS_VARIABLE
from compaction.files.contents import read_range
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import parse_uri
from compaction.report import RunReport
from tests.commands.test_exports import job
from tests.exports.aiven_objects import KEY_ID, AivenWriter, new_key
from tests.exports.exports import LOG_NAME, no_exports_known, objects, require_cryptography, source, write_local_tiered
from tests.golden import unpack_backup_sets
from tests.object_store.fixtures import Bucket, S3Bucket, files, published
from tests.object_store.local_run import COMPACT, run
from tests.object_store.server import (
    ACCESS_KEY,
    DENIED,
    SECRET_KEY,
    SLOW_DOWN,
    CutOff,
    Gate,
    Refusal,
    Request,
    Store,
    every,
    once,
)

__all__ = ["no_exports_known", "objects", "source"]

pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("default")]


def is_part(request: Request) -> bool:
    """Whether it is for a part, or a range of a log."""
    return request.is_part or (request.method == "GET" and request.key.endswith(".log"))


@pytest.mark.parametrize("gate", [every(12, SLOW_DOWN), once(SLOW_DOWN, is_part), once(CutOff(), is_part)])
def test_throttling_and_lost_connections_are_retried(
    bucket: Bucket, store: Store, large: Path, tmp_path: Path, gate: Gate
) -> None:
    run("--log-dir", large, "--output-dir", tmp_path / "out", *COMPACT)
    bucket.put_tree(large, "in")
    with store.gate(gate):
        made = run("--log-dir", bucket.address("in"), "--output-dir", bucket.address("out"), *COMPACT)
    assert [log.reason for log in made.logs if log.status.value == "failed"] == []
    assert published(bucket) == files(tmp_path / "out")


def test_credentials_are_never_printed(
    bucket: Bucket, store: Store, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    bucket.put_tree(sample / "orders-0", "in/orders-0")

    def fail(request: Request) -> None:
        raise DENIED

    def wrong(*options: object) -> str:
        assert compact.main([*map(str, options)]) == 2
        return capsys.readouterr().err

    with store.gate(fail):
        told = wrong("--log-dir", bucket.address("in"), "--dry-run", "--verbose", "--report", report)
    assert "check the credentials" in told
    found = run("--log-dir", bucket.address("in"), "--dry-run")
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert secret not in told + found.to_json()
    # but for the option that has it
    assert store.endpoint not in replace(found, origin={}).to_json()


def test_a_missing_bucket_is_named_and_not_taken_for_a_missing_directory(
    bucket: Bucket, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = bucket.address("in").replace(bucket.name, "no-such-bucket")
    for call in (["--log-dir", absent], ["--log-dir", str(sample), "--output-dir", absent], ["--log-dir", f"aiven+{absent}"]):
        assert compact.main(call) == 2
        told = capsys.readouterr().err
        assert told.startswith("error: s3://no-such-bucket: no such bucket; check the name of the bucket"), told
        assert told.count("\n") == 1


#: read-ahead of a task
RANGE_BYTES = 8 << 20


def compacted(bucket: Bucket, objects: Path, layout: str = "aiven") -> RunReport:
    """A run from the export in the bucket to an output in the bucket."""
    os.environ[KEYS_VARIABLE] = f"key1={objects}/private-key.pem"
    return run("--log-dir", f"{layout}+{bucket.address('in')}", "--output-dir", bucket.address("out"), *COMPACT)


def few(files: Path) -> Path:
    """A directory with the first segments of a log only: a server in Python takes its time."""
    for file in files.rglob("0*.*"):
        if file.name > f"{66:020d}":
            file.unlink()
    return files


@pytest.mark.parametrize("coding", ["plain", "zstd-encrypted", "local-tiered"])
def test_an_export_in_a_store_is_compacted_as_on_a_disk(
    coding: str, bucket: Bucket, objects: Path, source: Path, tmp_path: Path
) -> None:
    require_cryptography()
    layout, export = "aiven", objects / coding
    if coding == "local-tiered":
        layout, export = coding, tmp_path / coding
        write_local_tiered(few(shutil.copytree(source, tmp_path / LOG_NAME)), export)
    else:
        few(export)
    run("--log-dir", f"{layout}+file://{export}", "--output-dir", tmp_path / "out", *COMPACT)
    bucket.put_tree(export, "in")
    bucket.forget()
    compacted(bucket, objects, layout)
    asked = bucket.asked()
    assert published(bucket) == files(tmp_path / "out")
    assert bucket.tree("in") == files(export)
    logs = [each for each in asked if each.method == "GET" and each.key.startswith("in/") and each.key.endswith(".log")]
    assert logs and all(each.ranged for each in logs)
    assert {each.method for each in asked if each.key.startswith("in/")} <= bucket.reading


@pytest.mark.parametrize(
    ("error", "suffix", "told"),
    [
        (SLOW_DOWN, ".log", r"cannot read bytes 0 to \d+: .*; the store throttles requests: run again later"),
        (CutOff(), ".log", r"cannot read bytes 0 to \d+: "),
        (DENIED, ".rsm-manifest", r"cannot read: .*ACCESS_DENIED.*; check the credentials"),
        (Refusal("404 Not Found", "NoSuchKey"), ".log", r"cannot read bytes 0 to \d+: .*"),
    ],
)
def test_an_object_that_cannot_be_read_is_named_with_its_bytes(
    bucket: Bucket, store: Store, objects: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, suffix: str, told: str
) -> None:
    """Whatever is tried again: here after short waits, as a run reads the object several times."""
    monkeypatch.setattr(object_store, "_PATIENT", object_store._PATIENT._replace(attempts=2))
    monkeypatch.setattr(object_store, "_WAITS_S", (0.01, 0.02))
    export = few(objects / "zstd")
    bucket.put_tree(export, "in")
    (name,) = (file.name for file in export.rglob(f"{44:020d}-*{suffix}"))

    def gate(request: Request) -> None:
        if request.method == "GET" and request.key.endswith(name):
            raise error

    with store.gate(gate):
        made = compacted(bucket, objects)
    (log,) = made.logs
    assert log.status.value == "failed"
    assert re.search(f"{re.escape(name)}: {told}", str(log.reason)), log.reason


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_large_object_is_read_by_ranges_each_byte_once(
    bucket: Bucket, store: Store, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    if encrypted:
        require_cryptography()
        monkeypatch.setenv(KEYS_VARIABLE, f"{KEY_ID}={tmp_path}/key.pem")
    AivenWriter(key=new_key(tmp_path / "key.pem") if encrypted else None).write(large / "orders-0", tmp_path / "export")
    bucket.put_tree(tmp_path / "export", "in")
    expected = (large / "orders-0" / f"{0:020d}.log").read_bytes()
    address = parse_uri(f"aiven+{bucket.address('in')}", "--log-dir")
    real = MixedFileSystem().real_path(f"{address}/orders-0/{0:020d}.log")
    assert real is not None and real.size == len(expected)

    def asked() -> list[int]:
        logs = (each for each in store.requests if each.method == "GET" and each.key.endswith(".log"))
        return [each.range_bytes or 0 for each in logs]

    # as a task does
    task = MixedFileSystem()
    task.stat(real.path)
    store.forget()
    assert b"".join(map(bytes, read_range(task, real))) == expected
    stored = sum(len(bucket.get(key)) for key in bucket.keys("in") if f"/{0:020d}-" in key and key.endswith(".log"))
    assert 0 < max(asked()) <= RANGE_BYTES
    assert sum(asked()) == stored > 3 * RANGE_BYTES
    store.forget()
    assert task.read_bytes(real.path, 10_000_000, 100) == expected[10_000_000:10_000_100]
    assert asked() == [(4 << 20) + 28 if encrypted else 100]


class Written(NamedTuple):
    """An export to be compacted into its own layout: its directory, the options, the object that completes the output."""

    export: Path
    options: tuple[str, ...]
    last: str


@pytest.fixture(params=["aiven", "backup"])
def written(request: pytest.FixtureRequest, objects: Path, tmp_path: Path) -> Written:
    layout = ("--output-layout", request.param)
    if request.param == "backup":
        return Written(unpack_backup_sets(tmp_path) / "zstd", (*layout, "--accept-loss"), "manifest.json")
    export = few(objects / "plain")
    return Written(export, layout, next(file.name for file in export.rglob(f"{44:020d}-*.rsm-manifest")))


@pytest.mark.parametrize("gate", [None, every(5, SLOW_DOWN)], ids=["", "throttled"])
def test_an_export_is_compacted_from_prefix_to_prefix(
    bucket: S3Bucket, store: Store, written: Written, tmp_path: Path, gate: Gate | None
) -> None:
    export, options, layout = written.export, written.options, written.options[1]
    bucket.put_tree(export, "in/set")
    assert job("--log-dir", f"{layout}+file://{export}", "--output-dir", tmp_path / "out/set", *options) == 0
    places = ("--log-dir", f"{layout}+{bucket.address('in/set')}", "--output-dir", bucket.address("out/set"))
    with nullcontext() if gate is None else store.gate(gate):
        assert job(*places, *options) == 0
    assert bucket.tree("out") == files(tmp_path / "out")
    assert bucket.tree("in/set") == files(export)


def test_nothing_is_left_of_a_prefix_that_cannot_be_completed(
    bucket: Bucket, written: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    export, options = written.export, written.options
    with bucket.refusing(written.last):
        assert job("--log-dir", f"{options[1]}+file://{export}", "--output-dir", bucket.address("out/set"), *options) == 1
    assert written.last in capsys.readouterr().err
    assert bucket.tree("out") == {}
