"""The commands on exports of tiered storage: the same results as on the log directory that was exported."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

from compaction.cli.parser import Parser
from compaction.commands import compact, count, dump_log, erase
from compaction.erasure.erase_keys import erase_keys
from compaction.errors import UsageError
from compaction.files import data_keys
from compaction.files.calls import KEYS_VARIABLE
from tests.certifier.certify import certify
from tests.commands.calls import verify_request
from tests.files.layouts.exports import CODINGS, LOG_NAME, no_exports_known, objects, require_cryptography, source
from tests.local_passes import LocalPasses
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


def test_keys_are_erased_from_a_copy_of_an_export(objects: Path, log_dir: Path, tmp_path: Path) -> None:
    require_cryptography()
    (tmp_path / "keys.txt").write_text("payment-42\n")

    def erased(place: object, output: Path) -> dict[str, bytes]:
        options = ["--log-dir", str(place), "--keys", str(tmp_path / "keys.txt"), "--output-dir", str(output)]
        options += ["--include-active", "--as-of-ms", "1798761600000", *COMPACT]
        with patch.object(erase, "execute", lambda _, request: erase_keys(LocalPasses, request)):
            report = erase.OPTIONS.run(vars(Parser(erase.OPTIONS).parse_args(options)))
        assert [log.status.value for log in report.logs] == ["cleaned"]
        return files(output)

    there = erased(f"aiven+file://{objects}/zstd-encrypted", tmp_path / "there")
    assert there == erased(log_dir, tmp_path / "here")
    assert not any(b"payment-42" in data for data in there.values())


def test_a_compacted_copy_of_an_export_is_verified_against_it(objects: Path, tmp_path: Path) -> None:
    address, output = f"aiven+file://{objects}/zstd", tmp_path / "output"
    run("--log-dir", address, "--output-dir", output, *COMPACT)
    options = ["--before", address, "--after", str(output), "--as-of-ms", "1798761600000", "--include-active", *COMPACT]
    report = certify(verify_request(options))
    assert [(log.status.value, log.violations) for log in report.logs] == [("holds", ())]
    damaged = next(output.rglob(f"{104:020d}.log"), None) or max(output.rglob("*.log"), key=lambda file: file.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    assert certify(verify_request(options)).exit_code == 1


def test_records_and_keys_of_an_export_are_counted(objects: Path, log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def counted(place: object) -> object:
        assert count.main(["--log-dir", str(place), "--output", "json"]) == 0
        topics = json.loads(capsys.readouterr().out)["topics"]
        return [{name: value for name, value in topic.items() if name != "partitions"} for topic in topics]

    assert counted(f"aiven+file://{objects}/zstd") == counted(log_dir)


def test_files_of_an_export_are_dumped(objects: Path, log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_cryptography()

    def dumped(place: str, *more: str) -> str:
        assert dump_log.main(["--files", f"{place}/{LOG_NAME}", "--print-data-log", *more]) == 0
        return capsys.readouterr().out.replace(place, "")

    os.environ.pop(KEYS_VARIABLE)
    key = f"key1={objects}/private-key.pem"
    assert dumped(f"aiven+file://{objects}/zstd-encrypted", "--private-key", key) == dumped(str(log_dir))


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
    ("options", "told"),
    [
        (("--log-dir", "{address}"), "cannot be compacted in place: the cluster's own metadata of these objects"),
        (("--log-dir", "{address}", "--output-dir", "{objects}/plain/out"), "--output-dir overlaps the log directory"),
        (("--log-dir", "{address}", "--output-dir", "{address}/out"), "outputs are log directories, not of layout aiven"),
        (("--log-dir", "other+file:///x"), "other+ is not a known layout"),
        (("--log-dir", "{objects}", "--tail", "{objects}"), "--tail needs an export of tiered storage as --log-dir"),
        (("--log-dir", "{address}", "--private-key", "key1={objects}/nothing.pem"), "nothing.pem: cannot be read"),
        (("--log-dir", "aiven+file://{objects}/nothing"), "no such log directory"),
        (("--log-dir", "aiven+file://{objects}"), "no logs here"),
    ],
)
def test_a_wrong_call_is_refused(options: tuple[str, ...], told: str, objects: Path) -> None:
    if "--private-key" in options:
        require_cryptography()
    address = f"aiven+file://{objects}/plain"
    given = [option.format(address=address, objects=objects) for option in options]
    with pytest.raises(UsageError) as error:
        run(*given, *COMPACT)
    assert told in str(error.value)
    assert compact.main(given) == 2
