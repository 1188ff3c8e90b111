"""Commands on exports of tiered storage and backup sets: in each layout, what a command reports is what it reports of the log
directory that was exported; and exports that are written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from compaction.cli.console import main
from compaction.cli.parser import Parser
from compaction.commands import compact, runs, verify
from compaction.config.request import CompactionRequest
from compaction.engine_choice import EngineChoice
from compaction.exports.backup_writer import BackupTarget
from compaction.files.calls import KEYS_VARIABLE
from compaction.files.filesystem import join
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import parse_uri
from compaction.formats.record_batch import RecordBatch
from compaction.options.inputs import Inputs
from compaction.report import LogReport, LogStatus, RunReport
from compaction.run.compact import clean_logs
from tests.executed import executed
from tests.exports.aiven_objects import KEY_ID, AivenWriter, end_offset, new_key
from tests.exports.exports import (
    LOG_NAME,
    TOPIC_ID,
    aiven,
    coding,
    no_exports_known,
    objects,
    require_cryptography,
    upload,
    write_local_tiered,
)  # fmt: skip
from tests.golden import unpack_backup_sets, unpack_sample
from tests.local_passes import LocalPasses
from tests.log.logs import iter_batches
from tests.object_store.fixtures import files
from tests.object_store.local_run import COMPACT, NOW_MS, figures, run

__all__ = ["coding", "no_exports_known", "objects"]

#: four and a half hours after the newest record of clickstream
SOON_MS = 1_760_000_000_000 + 14 * 3_600_000
LAYOUTS = ("aiven", "local-tiered", "backup")
#: with transactions, with an open one, with two leader epochs, with the delete policy
LOGS = ("payments-0", "payments-open-0", "inventory-0", "clickstream-0")
CLEAN = " ".join((*COMPACT, "--include-active"))
KEEP = "--set cleanup.policy=delete retention.bytes=-1 retention.ms=-1"
BY_SIZE = "--set cleanup.policy=delete retention.bytes=3000 retention.ms=-1"
POLICIES = (
    "--policy configured --policy cleanup.policy=compact,min.cleanable.dirty.ratio=0"
    " --policy cleanup.policy=delete,retention.bytes=3000"
    " --policy cleanup.policy=[compact,delete],retention.ms=28800000,delete.retention.ms=0,min.cleanable.dirty.ratio=0"
)
#: ``COPY`` is a compacted copy of the log directory, ``CUT`` the same without a segment
CALLS = (
    f"dry-run --log-dir PLACE {POLICIES}",
    f"dry-run --log-dir PLACE {POLICIES} --include-active --assume-default-policy",
    "dry-run --log-dir PLACE --explain NAMES --policy cleanup.policy=compact cleanup.policy=delete,retention.bytes=3000",
    f"compact --log-dir PLACE {CLEAN} --dry-run",
    f"compact --log-dir PLACE {CLEAN} --output-dir OUT",
    f"expire --log-dir PLACE {BY_SIZE} --dry-run",
    f"expire --log-dir PLACE {BY_SIZE} --output-dir OUT",
    "expire --log-dir PLACE --set cleanup.policy=delete retention.ms=28800000 --output-dir OUT",
    "expire --log-dir PLACE --dry-run",
    f"erase --log-dir PLACE {CLEAN} --where prefix=payment-4 prefix=user-1 prefix=k --output-dir OUT",
    f"verify --before PLACE --after COPY {CLEAN}",
    f"verify --before PLACE --after CUT {CLEAN}",
    "dump-log --files PLACE/NAMES --print-data-log",
    "dump-log --files PLACE/SEGMENTS --deep-iteration",
    "count --log-dir PLACE --partitions",
    "count --log-dir PLACE --bytes --partitions",
    "count --log-dir PLACE --output json --isolation-level read_committed",
)
#: a set has no indexes
CASES = [(layout, call) for layout in LAYOUTS for call in CALLS if layout != "backup" or "PLACE/NAMES" not in call]
#: of reports; an export, which is only copied, has no .deleted files
_OF_ONE_RUN = frozenset({"run_id", "seconds", "task_seconds", "options", "salt", "sha256", "deleted_bytes"})


def _scrubbed(document: Any) -> Any:
    """A report without what differs between any two runs."""
    if isinstance(document, dict):
        return {name: _scrubbed(value) for name, value in document.items() if name not in _OF_ONE_RUN}
    # hashed keys are in the order of their hashes
    return sorted(map(_scrubbed, document), key=json.dumps) if isinstance(document, list) else document


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Exports, by layout: ``logs`` in two of them, ``set-logs`` in the third. No command changes them."""
    require_cryptography()
    root = tmp_path_factory.mktemp("exported")
    sample, key = unpack_sample(root), new_key(root / "key.pem")
    for name in LOGS:
        log = shutil.copytree(sample / name, root / "logs" / name)
        (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
        _remove_what_is_not_uploaded(log)
        AivenWriter(compressed=True, key=key, chunk_bytes=300).write(log, root / "aiven")
        write_local_tiered(log, root / "local-tiered")
    (unpack_backup_sets(root) / "zstd").rename(root / "backup")
    as_of = f"--as-of-ms {SOON_MS} --quiet"
    assert main(f"expire --log-dir backup+{root}/backup --output-dir {root}/set-logs {KEEP} {as_of}".split()) == 0
    for file in [each for each in (root / "set-logs").iterdir() if each.is_file()]:
        file.unlink()
    for name in ("logs", "set-logs"):
        assert main(f"compact --log-dir {root}/{name} --output-dir {root}/COPY-{name} {CLEAN} {as_of}".split()) == 0
        shutil.copytree(root / f"COPY-{name}", root / f"CUT-{name}")
        max((root / f"CUT-{name}").rglob("*.log"), key=lambda path: (path.stat().st_size, path)).unlink()
    before = files(root)
    yield root
    # a copy shares the lock of its source
    assert {path: data for path, data in files(root).items() if not path.endswith("/.lock")} == {
        path: data for path, data in before.items() if not path.endswith("/.lock")
    }


def _remove_what_is_not_uploaded(log: Path) -> None:
    """An empty active segment, and snapshots that are not at the end of a segment."""
    ends = {f"{end_offset(segment):020d}" for segment in log.glob("*.log") if segment.stat().st_size}
    for file in [*log.glob("*.log"), *log.glob("*.snapshot")]:
        if not file.stat().st_size:
            for each in log.glob(f"{file.stem}.*[gx]"):
                each.unlink()
        elif file.suffix == ".snapshot" and file.stem not in ends:
            file.unlink()


def of_log_dir(layout: str, exported: Path) -> Path:
    """The log directory that is in an export."""
    return exported / ("set-logs" if layout == "backup" else "logs")


def _words(call: str, log_dir: Path, paths: Mapping[str, str]) -> Iterator[str]:
    """The words of a call on these paths."""
    lists = {
        "NAMES": sorted(path.name for path in log_dir.iterdir() if path.is_dir()),
        "SEGMENTS": sorted(str(path.relative_to(log_dir)) for path in log_dir.rglob("*.log")),
    }
    for word in call.split():
        names = next((key for key in lists if key in word), "")
        for name in lists.get(names, [""]):
            each = word.replace(names, name) if names else word
            for key, path in paths.items():
                each = each.replace(key, path)
            yield each


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, Path], Any]:
    """By call and log directory, its result."""
    return {}


@pytest.mark.parametrize(("layout", "call"), CASES)
def test_a_command_on_an_export_reports_what_it_does_of_the_log_directory(
    layout: str,
    call: str,
    exported: Path,
    known: dict[tuple[str, Path], Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, f"{KEY_ID}={exported}/key.pem")
    monkeypatch.setattr("sys.argv", [""])
    log_dir = of_log_dir(layout, exported)

    def result(name: str, address: str) -> Any:
        """The exit code, the report or what is printed, errors, and the files of a copy."""
        place = tmp_path / name
        place.mkdir()
        paths = {
            "PLACE": address,
            "OUT": f"{place}/out",
            **{each: f"{exported}/{each}-{log_dir.name}" for each in ("COPY", "CUT")},
        }
        words, reports = list(_words(call, log_dir, paths)), call.split()[0] not in ("dump-log", "count")
        if reports:
            words += ["--as-of-ms", str(SOON_MS), "--report", f"{place}/report.json", "--quiet"]
        capsys.readouterr()
        code = main(words)

        def shown(text: str) -> str:
            for path in (address.replace("+/", "+file:///"), address, str(place)):
                text = text.replace(path, "PLACE")
            return text

        out, err = map(shown, capsys.readouterr())
        report: Any = _scrubbed(json.loads(shown((place / "report.json").read_text()))) if reports else sorted(out.splitlines())
        if words[0] in ("compact", "erase"):
            assert report["totals"]["cleaned"], err
        # the order of what is wrong with files depends on their paths
        return code, report, sorted(err.splitlines()), files(place / "out")

    if (call, log_dir) not in known:
        known[call, log_dir] = result("there", f"{log_dir}")
    assert result("here", f"{layout}+{exported / layout}") == known[call, log_dir]


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
def test_a_set_has_what_a_consumer_saw_and_is_compacted_to_a_log_directory_and_to_a_set(
    sets: Path, consumed: list[Row], tmp_path: Path, compression: str
) -> None:
    address, target = f"backup+file://{sets}/{compression}", tmp_path / "compacted"
    before = files(sets)
    assert records(parse_uri(address, "--log-dir")) == sorted(consumed)
    report = run("--log-dir", address, "--output-dir", tmp_path / "output", *COMPACT)
    assert [log.status.value for log in report.logs] == ["cleaned"]
    assert records(str(tmp_path / "output")) == newest(consumed)
    assert figures(run("--log-dir", address, "--dry-run", *COMPACT)) == figures(report)
    rules = ["--as-of-ms", str(NOW_MS), "--include-active", *COMPACT]
    assert verify.main(["--before", address, "--after", f"{tmp_path}/output", *rules]) == 0
    options = ["--output-dir", str(target), "--output-layout", "backup", "--accept-loss"]
    assert compact.main(["--log-dir", address, *options, *rules]) == 0
    assert records(parse_uri(f"backup+file://{target}", "--log-dir")) == newest(consumed)
    assert files(sets) == before
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
