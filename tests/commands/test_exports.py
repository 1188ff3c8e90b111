"""Exports of tiered storage and backup sets: read with the results of the log directory that was exported, and written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from compaction.cli.console import main
from compaction.cli.parser import Parser
from compaction.commands import compact, runs, verify
from compaction.config.request import CompactionRequest
from compaction.engine_choice import EngineChoice
from compaction.exports.backup_writer import BackupTarget
from compaction.files import data_keys
from compaction.files.calls import KEYS_VARIABLE
from compaction.files.filesystem import join
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import parse_uri
from compaction.formats.record_batch import RecordBatch
from compaction.options.inputs import Inputs
from compaction.report import LogReport, LogStatus, RunReport
from compaction.run.compact import clean_logs
from tests.executed import executed
from tests.exports.exports import LOG_NAME, aiven, coding, no_exports_known, objects, require_cryptography, source, upload
from tests.golden import unpack_backup_sets
from tests.local_passes import LocalPasses
from tests.log.logs import iter_batches
from tests.object_store.fixtures import files
from tests.object_store.local_run import COMPACT, NOW_MS, figures, run

__all__ = ["coding", "no_exports_known", "objects", "source"]


@pytest.fixture
def log_dir(source: Path, tmp_path: Path) -> Path:
    """A log directory that has the exported log only."""
    shutil.copytree(source, tmp_path / "log-dir" / LOG_NAME)
    return tmp_path / "log-dir"


def test_a_compacted_copy_of_an_export_is_that_of_the_log_directory(
    coding: str, objects: Path, log_dir: Path, tmp_path: Path
) -> None:
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


def job(*options: object) -> int:
    """Compaction without Spark, as of a fixed time; its exit code."""
    given = [*map(str, options), "--as-of-ms", str(NOW_MS), "--include-active", *COMPACT]
    return executed(compact, given, lambda _, request: clean_logs(LocalPasses, request))


def batches(log_dir: str) -> list[bytes]:
    """The batches of a log, but for those that end an uploaded segment."""
    fs, log = MixedFileSystem(), join(log_dir, LOG_NAME)
    found = []
    for name in sorted(name for name in fs.listdir(log) if name.endswith(".log")):
        for batch in iter_batches(fs.read_bytes(join(log, name))):
            assert isinstance(batch, RecordBatch)
            if batch.header.record_count or batch.header.producer_id >= 0:
                found.append(bytes(batch.data))
    return found


def stems(export: Path) -> list[str]:
    return sorted(path.relative_to(export).as_posix() for path in export.rglob("*.rsm-manifest"))


def test_an_export_of_the_plugin_is_compacted_into_another_one(
    coding: str, objects: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which has the same uploads, by name, and the records that a log directory would have."""
    before = files(objects)
    given, target = f"aiven+file://{objects}/{coding}", tmp_path / "new" / "prefix"
    options = ("--log-dir", given, "--output-dir", target, "--output-layout", "aiven")
    assert job(*options) == 0
    assert f"{target}: tiered storage of 15 segments, " in capsys.readouterr().out
    run("--log-dir", given, "--output-dir", tmp_path / "plain", *COMPACT)
    assert batches(aiven(target)) == batches(str(tmp_path / "plain")) != batches(aiven(objects / coding))
    assert stems(target) == stems(objects / coding)
    assert sorted(path.name for path in target.parent.iterdir()) == ["prefix"]
    assert files(objects) == before
    assert job(*options) == 2
    assert "--output-dir exists and is not empty" in capsys.readouterr().err


def test_what_is_written_is_compacted_again_into_another_layout(objects: Path, tmp_path: Path) -> None:
    given = f"aiven+file://{objects}/plain"
    assert job("--log-dir", given, "--output-dir", tmp_path / "new", "--output-layout", "aiven") == 0
    again = ("--log-dir", f"aiven+file://{tmp_path}/new", "--output-dir", tmp_path / "again", "--output-layout", "local-tiered")
    assert job(*again, "--accept-loss") == 0
    last = parse_uri(f"local-tiered+file://{tmp_path}/again", "--log-dir")
    assert batches(last) == batches(aiven(tmp_path / "new"))
    # though markers get delete horizons, which makes them larger
    sizes = [{path.name: path.stat().st_size for path in (tmp_path / each).rglob("*.log")} for each in ("new", "again")]
    assert all(sizes[1][name] <= size for name, size in sizes[0].items())
    # the same segment ids in the other layout
    names = {path.name.partition("-")[2] for path in (tmp_path / "again").rglob("*.log")}
    assert names == {path.name.partition("-")[2] for path in (tmp_path / "new").rglob("*.log")}


def test_what_is_uploaded_during_a_run_is_not_written(tmp_path: Path) -> None:
    """The copy has no records of it."""
    for each in (range(10), range(10, 20)):
        upload(tmp_path / "in", each)

    def run_meanwhile(_: object, request: CompactionRequest) -> RunReport:
        report = clean_logs(LocalPasses, request)
        upload(tmp_path / "in", range(20, 30))
        return report

    options = ["--log-dir", f"local-tiered+file://{tmp_path}/in", "--output-dir", f"{tmp_path}/new"]
    options += ["--output-layout", "local-tiered", "--include-active", *COMPACT]
    assert executed(compact, options, run_meanwhile) == 0
    assert sorted(int(path.name.partition("-")[0]) for path in (tmp_path / "new").rglob("*.log")) == [0, 10]


@pytest.mark.parametrize(("directories", "files_of"), [(0o700, 0o600), (0o750, 0o640)])
def test_an_export_on_a_disk_is_readable_by_those_only_who_may_read_the_source(
    tmp_path: Path, directories: int, files_of: int
) -> None:
    for each in (range(10), range(10, 20)):
        upload(tmp_path / "in", each)
    for path in (tmp_path / "in", *(tmp_path / "in").rglob("*")):
        path.chmod(directories if path.is_dir() else files_of)
    outputs = {"plain": (), "aiven": ("--accept-loss",), "local-tiered": ("--accept-loss",), "backup": ("--accept-loss",)}
    for place, name in ((f"local-tiered+file://{tmp_path}/in", "uploads"), (tmp_path / "uploads-plain", "logs")):
        for layout, options in outputs.items():
            target = tmp_path / f"{name}-{layout}"
            chosen = () if layout == "plain" else ("--output-layout", layout, *options)
            assert job("--log-dir", place, "--output-dir", target, *chosen) == 0
            modes = {(each.is_dir(), each.stat().st_mode & 0o777) for each in (target, *target.rglob("*"))}
            assert modes == {(True, directories), (False, files_of)}, target


Row = tuple[Any, ...]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_backup_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def consumed(sets: Path) -> list[Row]:
    """What a consumer saw of the topic: partition, offset, timestamp, key, value, headers; bytes in hex."""
    return [_row(row) for row in json.loads((sets / "consumed.json").read_text())]


def _row(row: list[Any]) -> Row:
    return (*row[:5], tuple(map(tuple, row[5])))


def records(log_dir: str) -> list[Row]:
    """The records of a log directory, or of an export."""
    fs, found = MixedFileSystem(), []
    for log in sorted(name for name in fs.listdir(log_dir) if name.startswith("orders-")):
        for name in sorted(name for name in fs.listdir(f"{log_dir}/{log}") if name.endswith(".log")):
            for batch in iter_batches(fs.read_bytes(f"{log_dir}/{log}/{name}")):
                assert isinstance(batch, RecordBatch)
                for each in batch.records():
                    key, value = (None if it is None else it.hex() for it in (each.key, each.value))
                    headers = tuple((key_, None if it is None else it.hex()) for key_, it in each.headers)
                    found.append((int(log[-1]), each.offset, each.timestamp, key, value, headers))
    return found


def newest(rows: list[Row]) -> list[Row]:
    return sorted({(row[0], row[3]): row for row in rows}.values())


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_a_set_has_what_a_consumer_saw_and_is_compacted(
    sets: Path, consumed: list[Row], tmp_path: Path, compression: str
) -> None:
    address = f"backup+file://{sets}/{compression}"
    before = files(sets)
    assert records(parse_uri(address, "--log-dir")) == sorted(consumed)
    report = run("--log-dir", address, "--output-dir", tmp_path / "output", *COMPACT)
    assert [log.status.value for log in report.logs] == ["cleaned"]
    assert records(str(tmp_path / "output")) == newest(consumed)
    assert figures(run("--log-dir", address, "--dry-run", *COMPACT)) == figures(report)
    assert files(sets) == before
    options = ["--before", address, "--after", f"{tmp_path}/output", "--as-of-ms", str(NOW_MS), "--include-active", *COMPACT]
    assert verify.main(options) == 0


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_a_compacted_set_is_written_as_a_set(sets: Path, consumed: list[Row], tmp_path: Path, compression: str) -> None:
    target = tmp_path / "compacted"
    options = ["--log-dir", f"backup+file://{sets}/{compression}", "--output-dir", str(target), "--output-layout", "backup"]
    assert compact.main([*options, "--accept-loss", "--as-of-ms", str(NOW_MS), "--include-active", *COMPACT]) == 0
    assert records(parse_uri(f"backup+file://{target}", "--log-dir")) == newest(consumed)
    old, new = (json.loads((place / "manifest.json").read_text()) for place in (sets / compression, target))
    assert new["compression"] == compression
    through = [document["topics"][0]["partitions"][0]["covered_through"] for document in (old, new)]
    assert through[0] == through[1] >= max(row[1] for row in consumed)


def test_the_copy_is_beside_the_target_or_where_segments_are_converted(sets: Path, tmp_path: Path) -> None:
    source = f"backup+file://{sets}/zstd?spool={tmp_path}/spool"
    copies: list[str] = []

    def body(_: EngineChoice, given: Inputs) -> RunReport:
        copies.append(str(given["output_dir"]))
        assert Path(copies[0]).parent.stat().st_mode & 0o777 == 0o700
        return RunReport("r", 1, False, (LogReport("orders", 0, source, LogStatus.FAILED, "damaged"),))

    options = ["--log-dir", source, "--output-dir", f"{tmp_path}/new", "--output-layout", "backup", "--accept-loss"]
    left = tmp_path / f".new.copy.{'0' * 32}.partial"
    left.mkdir()
    given = Parser(compact.OPTIONS).parse_args(options)
    inputs = Inputs.of(compact.OPTIONS, compact.OPTIONS.complete(vars(given)), log_dirs=given.log_dirs)
    assert runs.run_on_engine(inputs, body).exit_code == 1
    assert copies[0].startswith(f"{tmp_path}/.new.copy.")
    assert list(tmp_path.iterdir()) == []
    with runs._scratch(inputs, BackupTarget("s3://bucket/new")) as scratch:
        assert Path(scratch).parent == tmp_path / "spool"
    assert list((tmp_path / "spool").iterdir()) == []
