"""Tiered storage is written to an S3-compatible store completely, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.exports import new_export
from compaction.files.manifest import MARKER
from tests.commands.test_exports import job
from tests.files.layouts.exports import no_exports_known, objects
from tests.object_store.fixtures import Bucket, files
from tests.object_store.test_exports_in_store import few

__all__ = ["no_exports_known", "objects"]

pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("default")]
LAYOUT = ("--output-layout", "aiven")


def test_uploads_are_compacted_from_prefix_to_prefix(bucket: Bucket, objects: Path, tmp_path: Path) -> None:
    export = few(objects, "plain")
    bucket.put_tree(export, "in")
    assert job("--log-dir", f"aiven+file://{export}", "--output-dir", tmp_path / "out", *LAYOUT) == 0
    assert job("--log-dir", f"aiven+{bucket.address('in')}", "--output-dir", bucket.address("out"), *LAYOUT) == 0
    assert bucket.tree("out") == files(tmp_path / "out")
    assert bucket.tree("in") == files(export)


def test_nothing_is_left_of_a_prefix_that_cannot_be_completed(
    bucket: Bucket, objects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = few(objects, "plain")
    (name,) = (file.name for file in export.rglob(f"{44:020d}-*.rsm-manifest"))
    with bucket.refusing(name):
        assert job("--log-dir", f"aiven+file://{export}", "--output-dir", bucket.address("out"), *LAYOUT) == 1
    assert name in capsys.readouterr().err
    assert bucket.tree("out") == {}


def test_what_a_killed_run_has_left_is_neither_read_nor_overwritten(
    bucket: Bucket, objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    export = few(objects, "plain")
    monkeypatch.setattr(new_export, "_remove", lambda files, path, made: None)
    (name,) = (file.name for file in export.rglob(f"{44:020d}-*.rsm-manifest"))
    given = ("--log-dir", f"aiven+file://{export}", "--output-dir", bucket.address("out"), *LAYOUT)
    with bucket.refusing(name):
        assert job(*given) == 1
    left = bucket.tree("out")
    assert MARKER in left and len(left) > 1
    capsys.readouterr()
    assert job("--log-dir", f"aiven+{bucket.address('out')}", "--output-dir", tmp_path / "again") == 2
    assert "unfinished" in capsys.readouterr().err
    assert job(*given) == 2
    assert "--output-dir exists and is not empty" in capsys.readouterr().err
    assert bucket.tree("out") == left
