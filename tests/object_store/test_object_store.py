"""What is an S3-compatible store's own: throttling, lost connections, two runs at once, and credentials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compaction.commands import compact as job
from compaction.errors import StorageError
from compaction.files.manifest import MARKER
from compaction.report import LogStatus, RunReport
from tests.object_store.fixtures import Bucket, files, published
from tests.object_store.local_run import COMPACT, OnDisk, run
from tests.object_store.server import (
    ACCESS_KEY,
    DENIED,
    SECRET_KEY,
    SLOW_DOWN,
    CutOff,
    Gate,
    Request,
    Store,
    every,
    once,
    truncated,
)

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


def test_of_two_runs_with_one_output_the_later_is_published(
    bucket: Bucket, store: Store, sample: Path, on_disk: OnDisk
) -> None:
    later: list[RunReport] = []

    def begin_another(request: Request) -> None:
        if not later and request.key.endswith("/meta.properties") and request.method == "PUT":
            later.append(RunReport("", 0, False, ()))
            later.append(run("--log-dir", sample, "--output-dir", bucket.address("out")))

    with store.gate(begin_another), pytest.raises(StorageError, match="another run writes to this directory"):
        run("--log-dir", sample, "--output-dir", bucket.address("out"))
    assert published(bucket) == on_disk[0]


@pytest.mark.parametrize("part", [".log.clean.", ".timeindex.clean."])
def test_a_truncated_upload_of_a_task_fails_its_log(
    bucket: Bucket, store: Store, sample: Path, on_disk: OnDisk, part: str
) -> None:
    with store.gate(truncated(f"/orders-0/{0:020d}{part}")):
        report = run("--log-dir", sample, "--output-dir", bucket.address("out"))
    failed = [log for log in report.logs if log.status is LogStatus.FAILED]
    assert [log.name for log in failed] == ["orders-0"]
    assert "bytes in the store" in failed[0].reason
    others = {name: data for name, data in on_disk[0].items() if "/" in name and not name.startswith("orders-0/")}
    assert {name: data for name, data in published(bucket).items() if "/" in name} == others


def test_a_truncated_checkpoint_fails_the_run(bucket: Bucket, store: Store, sample: Path) -> None:
    with store.gate(truncated("/cleaner-offset-checkpoint")), pytest.raises(StorageError, match="bytes in the store"):
        run("--log-dir", sample, "--output-dir", bucket.address("out"))
    assert set(bucket.tree("out")) == {MARKER}


def test_a_truncated_copy_within_the_store_fails_the_run(bucket: Bucket, store: Store, sample: Path) -> None:
    """Between the copy to its final name and the manifest an output loses bytes."""
    cut: list[str] = []

    def lose(request: Request) -> None:
        if not cut and request.key.endswith("/out/meta.properties") and request.method == "PUT":
            cut.append("")
            key = next(key for key in bucket.keys("out") if key.endswith(".log") and len(bucket.get(key)) > 1)
            cut[0] = key
            bucket.put(key, bucket.get(key)[:-1])

    with store.gate(lose), pytest.raises(StorageError, match="bytes in the store") as told:
        run("--log-dir", sample, "--output-dir", bucket.address("out"))
    assert cut[0] in str(told.value)


def test_credentials_are_never_printed(
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
        assert job.main(call) == 2
        told = capsys.readouterr().err
        assert told.startswith("error: s3://no-such-bucket: no such bucket; check the name of the bucket"), told
        assert told.count("\n") == 1
