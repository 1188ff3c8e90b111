"""What is an S3-compatible store's own: throttling, lost connections, two runs at once, and credentials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compaction.commands import compact as job
from tests.object_store.fixtures import Bucket, files, published
from tests.object_store.local_run import COMPACT, run
from tests.object_store.server import ACCESS_KEY, DENIED, SECRET_KEY, SLOW_DOWN, CutOff, Gate, Request, Store, every, once

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
