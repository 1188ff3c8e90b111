"""Exports of tiered storage in an S3-compatible store: ranged reads, retries, and errors that name the object."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compaction.fs.uri import KEYS_VARIABLE
from compaction.report import RunReport
from tests.object_store.fixtures import Bucket, files, published
from tests.object_store.local_run import COMPACT, run
from tests.object_store.server import SLOW_DOWN, CutOff, Gate, Store
from tests.object_store.test_object_store import every, parts_once
from tests.stores.layouts.exports import no_exports_known, objects, require_cryptography

__all__ = ["no_exports_known", "objects"]

pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("default")]


def compacted(bucket: Bucket, objects: Path, coding: str) -> RunReport:
    """A run from the export of one coding in the bucket to an output in the bucket."""
    os.environ[KEYS_VARIABLE] = f"key1={objects}/private-key.pem"
    return run("--log-dir", f"aiven+{bucket.address('in')}", "--output-dir", bucket.address("out"), *COMPACT)


def few(objects: Path, coding: str) -> Path:
    """The first uploads of one coding: a server in Python takes its time."""
    for file in (objects / coding).rglob("*.*"):
        if file.name > f"{66:020d}":
            file.unlink()
    return objects / coding


@pytest.mark.parametrize("coding", ["plain", "zstd-encrypted"])
def test_an_export_in_a_store_is_compacted_as_on_a_disk(
    coding: str, bucket: Bucket, objects: Path, tmp_path: Path
) -> None:
    require_cryptography()
    export = few(objects, coding)
    run("--log-dir", f"aiven+file://{export}", "--output-dir", tmp_path / "out", *COMPACT)
    bucket.put_tree(export, "in")
    bucket.forget()
    compacted(bucket, objects, coding)
    asked = bucket.asked()
    assert published(bucket) == files(tmp_path / "out")
    assert bucket.tree("in") == files(objects / coding)
    logs = [each for each in asked if each.method == "GET" and each.key.startswith("in/") and each.key.endswith(".log")]
    assert logs and all(each.ranged for each in logs)
    assert {each.method for each in asked if each.key.startswith("in/")} <= bucket.reading


@pytest.mark.parametrize("gate", [every(10, SLOW_DOWN), parts_once(CutOff())])
def test_throttling_and_lost_connections_are_retried_by_chunk(
    bucket: Bucket, store: Store, objects: Path, tmp_path: Path, gate: Gate
) -> None:
    require_cryptography()
    export = few(objects, "zstd-encrypted")
    run("--log-dir", f"aiven+file://{export}", "--output-dir", tmp_path / "expected", *COMPACT)
    bucket.put_tree(export, "in")
    with store.gate(gate):
        made = run("--log-dir", f"aiven+{bucket.address('in')}", "--output-dir", tmp_path / "out", *COMPACT)
    assert [log.reason for log in made.logs if log.status.value == "failed"] == []
    assert files(tmp_path / "out") == files(tmp_path / "expected")


def test_an_object_that_cannot_be_read_is_named(bucket: Bucket, objects: Path) -> None:
    export = few(objects, "zstd")
    bucket.put_tree(export, "in")
    (name,) = (file.name for file in export.rglob(f"{44:020d}-*.log"))
    with bucket.refusing(name, reads=True):
        made = compacted(bucket, objects, "zstd")
    assert [log.status.value for log in made.logs] == ["failed"]
    assert name in str(made.logs[0].reason) and bucket.denied in str(made.logs[0].reason)
