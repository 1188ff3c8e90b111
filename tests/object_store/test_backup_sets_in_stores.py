"""Backup sets in an S3-compatible store: read and written there, with throttling, or not at all."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from compaction.commands import compact
from compaction.run.compact import clean_logs
from tests.executed import executed
from tests.golden import unpack_backup_sets
from tests.local_passes import LocalPasses
from tests.object_store.fixtures import Bucket, S3Bucket, files
from tests.object_store.local_run import COMPACT, NOW_MS
from tests.object_store.server import SLOW_DOWN, Gate, Store
from tests.object_store.test_object_store import every

pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("default")]


def job(*options: object) -> int:
    given = [*map(str, options), "--as-of-ms", str(NOW_MS), "--include-active", *COMPACT]
    layout = ["--output-layout", "backup", "--accept-loss"]
    return executed(compact, [*given, *layout], lambda _, request: clean_logs(LocalPasses, request))


@pytest.fixture
def sets(tmp_path: Path) -> Path:
    return unpack_backup_sets(tmp_path)


@pytest.mark.parametrize("gate", [None, every(5, SLOW_DOWN)])
def test_a_set_is_compacted_from_store_to_store(
    bucket: S3Bucket, store: Store, sets: Path, tmp_path: Path, gate: Gate | None
) -> None:
    bucket.put_tree(sets / "zstd", "sets/zstd")
    assert job("--log-dir", f"backup+file://{sets}/zstd", "--output-dir", tmp_path / "out" / "new") == 0
    with nullcontext() if gate is None else store.gate(gate):
        assert job("--log-dir", f"backup+{bucket.address('sets/zstd')}", "--output-dir", bucket.address("out/new")) == 0
    assert bucket.tree("out/new") == files(tmp_path / "out" / "new")
    assert bucket.tree("sets/zstd") == files(sets / "zstd")


def test_a_set_that_cannot_be_completed_is_none(bucket: Bucket, sets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bucket.refusing("manifest.json"):
        assert job("--log-dir", f"backup+file://{sets}/zstd", "--output-dir", bucket.address("out/new")) == 1
    assert "manifest.json" in capsys.readouterr().err
    assert bucket.tree("out") == {}
