"""The commands on exports of tiered storage: the same results as on the log directory that was exported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from compaction.cli.console import main
from compaction.files import data_keys
from compaction.files.calls import KEYS_VARIABLE
from tests.files.layouts.exports import CODINGS, LOG_NAME, no_exports_known, objects, require_cryptography, source
from tests.object_store.fixtures import files
from tests.object_store.local_run import COMPACT, figures, run

__all__ = ["no_exports_known", "objects", "source"]


@pytest.fixture
def log_dir(source: Path, tmp_path: Path) -> Path:
    """A log directory that has the exported log only."""
    shutil.copytree(source, tmp_path / "log-dir" / LOG_NAME)
    return tmp_path / "log-dir"


@pytest.mark.parametrize("coding", CODINGS)
def test_a_compacted_copy_of_an_export_is_that_of_the_log_directory(
    coding: str, objects: Path, log_dir: Path, tmp_path: Path
) -> None:
    if "encrypted" in coding:
        require_cryptography()
    address = f"aiven+file://{objects}/{coding}"
    before = files(objects)
    there = run("--log-dir", address, "--output-dir", tmp_path / "there", *COMPACT)
    here = run("--log-dir", log_dir, "--output-dir", tmp_path / "here", *COMPACT)
    assert figures(there) == figures(here) != []
    assert [log.status.value for log in there.logs] == ["cleaned"]
    assert files(tmp_path / "there") == files(tmp_path / "here")
    assert files(objects) == before
    assert figures(run("--log-dir", address, "--dry-run", *COMPACT)) == figures(here)


def test_keys_are_given_in_toml(objects: Path, tmp_path: Path) -> None:
    require_cryptography()
    os.environ.pop(KEYS_VARIABLE)
    (tmp_path / "keys.toml").write_text(f'[private-keys]\nkey1 = "{objects}/private-key.pem"\n')
    report = run("--log-dir", f"aiven+file://{objects}/encrypted", "--config", tmp_path / "keys.toml", "--dry-run", *COMPACT)
    assert [log.status.value for log in report.logs] == ["cleaned"]


def test_a_log_whose_key_is_missing_fails_alone(objects: Path) -> None:
    os.environ.pop(KEYS_VARIABLE)
    data_keys.data_key.cache_clear()
    report = run("--log-dir", f"aiven+file://{objects}/encrypted", "--dry-run", *COMPACT)
    assert [log.status.value for log in report.logs] == ["failed"]
    assert "no private key is given for key id 'key1'" in str(report.logs[0].reason)


@pytest.mark.parametrize(
    "call", ["compact --dry-run --include-active --log-dir", "count --log-dir", "doctor --log-dir", "dump-log --files"]
)
def test_private_keys_of_a_call_are_read(
    call: str, objects: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [""])
    require_cryptography()
    os.environ.pop(KEYS_VARIABLE)
    place = f"aiven+file://{objects}/zstd-encrypted{f'/{LOG_NAME}' if 'dump' in call else ''}"
    settings = ["--set", "cleanup.policy=compact"] if "compact" in call else []
    assert main([*call.split(), place, *settings]) == 1
    data_keys.data_key.cache_clear()
    assert main([*call.split(), place, *settings, "--private-key", f"key1={objects}/private-key.pem"]) == 0
    capsys.readouterr()
    assert main([*call.split(), place, *settings, "--private-key", f"key1={objects}/nothing.pem"]) == 2
    assert "nothing.pem: cannot be read" in capsys.readouterr().err
