"""Each command on an export in each layout: its report is that of the same command on the log directory that was exported."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from compaction.commands import compact, count, dry_run, dump_log, erase, expire, verify
from compaction.erasure.erase_keys import erase_keys
from compaction.files.calls import KEYS_VARIABLE
from compaction.policies.compare_policies import compare_with
from compaction.run.compact import clean_logs
from tests.certifier.certify import certify
from tests.commands.calls import verify_request
from tests.executed import executed
from tests.exports.test_local_tiered import put_segments
from tests.files.layouts.aiven_objects import KEY_ID, AivenWriter, end_offset, new_key
from tests.files.layouts.exchanged_uploads import Export, exchange
from tests.files.layouts.exports import TOPIC_ID, no_exports_known, require_cryptography, write_local_tiered
from tests.golden import unpack_backup_sets, unpack_sample
from tests.local_passes import LocalPasses
from tests.object_store.fixtures import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["no_exports_known"]

#: four and a half hours after the newest record of clickstream
NOW_MS = 1_760_000_000_000 + 14 * 3_600_000
LAYOUTS = ("aiven", "local-tiered", "backup")
#: with transactions, with an open one, with two leader epochs, with the delete policy
LOGS = ("payments-0", "payments-open-0", "inventory-0", "clickstream-0")
COMPACT = ("--set", "cleanup.policy=compact", "min.cleanable.dirty.ratio=0")
KEEP = ("--set", "cleanup.policy=delete", "retention.bytes=-1", "retention.ms=-1")
BY_SIZE = (*KEEP[:2], "retention.bytes=3000", "retention.ms=-1")
BY_TIME = (*KEEP[:2], "retention.ms=28800000")
POLICIES = (
    "configured", "cleanup.policy=compact,min.cleanable.dirty.ratio=0", "cleanup.policy=delete,retention.bytes=3000",
    "cleanup.policy=[compact,delete],retention.ms=28800000,delete.retention.ms=0,min.cleanable.dirty.ratio=0",
)  # fmt: skip
#: of reports; an export, which is only copied, has no .deleted files
_OF_ONE_RUN = frozenset({"run_id", "seconds", "task_seconds", "options", "salt", "sha256", "deleted_bytes"})


class Place:
    """Logs at an address, and a directory for what commands write."""

    def __init__(self, address: str, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.address, self.scratch, self._capsys = address, scratch, capsys
        self.output = scratch / "output"
        self.names = sorted(path.name for path in (scratch / "logs").iterdir() if path.name != ".lock")
        self.segments = sorted(path.relative_to(scratch / "logs") for path in (scratch / "logs").rglob("*.log"))

    def run(
        self, command: ModuleType, *options: object, work: Callable[[Any], Any] | None = None, log_dir: str = "--log-dir"
    ) -> Any:
        """A command's exit code, its report, its errors, and the files of its copy."""
        report = self.scratch / "report.json"
        given = [log_dir, self.address, "--as-of-ms", NOW_MS, "--report", report, *options]
        execute = None if work is None else lambda _, request: work(request)
        code = executed(command, list(map(str, given)), execute)
        errors = self._shown(self._capsys.readouterr().err)
        return code, _scrubbed(json.loads(self._shown(report.read_text()))), errors, files(self.output)

    def printed(self, command: ModuleType, *options: object) -> Any:
        """A command's exit code, and what it prints."""
        code = executed(command, list(map(str, options)))
        told = self._capsys.readouterr()
        assert told.out or told.err
        # the order of what is wrong with files depends on their paths
        return code, *(sorted(self._shown(text).splitlines()) for text in told)

    def _shown(self, text: str) -> str:
        for path in (self.address.replace("+/", "+file:///"), self.address, str(self.scratch)):
            text = text.replace(path, "PLACE")
        return text


def _scrubbed(document: Any) -> Any:
    """A report without what differs between any two runs."""
    if isinstance(document, dict):
        return {name: _scrubbed(value) for name, value in document.items() if name not in _OF_ONE_RUN}
    # hashed keys are in the order of their hashes
    return sorted(map(_scrubbed, document), key=json.dumps) if isinstance(document, list) else document


def _compared(place: Place, *options: object) -> Any:
    policies = [word for policy in POLICIES for word in ("--policy", policy)]
    return place.run(dry_run, *policies, *options, work=partial(compare_with, LocalPasses))


def _compacted(place: Place, *options: object) -> Any:
    found = place.run(compact, *COMPACT, "--include-active", *options, work=partial(clean_logs, LocalPasses))
    assert found[1]["totals"]["cleaned"], found[2]
    return found


def _erased(place: Place) -> Any:
    keys = ("--where", "prefix=payment-4", "prefix=user-1", "prefix=k", "--include-active")
    found = place.run(erase, *keys, *COMPACT, "--output-dir", place.output, work=partial(erase_keys, LocalPasses))
    assert found[1]["erasure"]["keys_found"], found[2]
    return found


def _verified(place: Place) -> Any:
    """The copy of the log directory against the place, and the same without a segment."""
    copy = place.scratch / "copy"
    code = executed(compact, ["--log-dir", str(place.scratch / "logs"), "--output-dir", str(copy), "--include-active", *COMPACT,
        "--as-of-ms", str(NOW_MS), "--quiet"], lambda _, request: clean_logs(LocalPasses, request),
    )  # fmt: skip
    assert code == 0

    def found() -> Any:
        options = ["--before", place.address, "--after", str(copy), "--as-of-ms", str(NOW_MS), "--include-active", *COMPACT]
        report = certify(verify_request(options))
        return report.exit_code, [[line.replace(str(place.scratch), "") for line in log.lines()] for log in report.logs]

    holds = found()
    assert holds[0] == 0
    next(copy.rglob("*.log")).unlink()
    return holds, found()


COMMANDS: Mapping[str, Callable[[Place], Any]] = MappingProxyType({
    "dry-run": _compared,
    "dry-run --include-active": lambda place: _compared(place, "--include-active", "--assume-default-policy"),
    "dry-run --explain": lambda place: place.run(
        dry_run, "--explain", *place.names, "--policy", POLICIES[1], "--policy", POLICIES[2]
    ),
    "compact --dry-run": lambda place: _compacted(place, "--dry-run"),
    "compact": lambda place: _compacted(place, "--output-dir", place.output),
    "expire --dry-run": lambda place: place.run(expire, *BY_SIZE, "--dry-run"),
    "expire by size": lambda place: place.run(expire, *BY_SIZE, "--output-dir", place.output),
    "expire by time": lambda place: place.run(expire, *BY_TIME, "--output-dir", place.output),
    "expire without a policy": lambda place: place.run(expire, "--dry-run"),
    "erase": _erased,
    "verify": _verified,
    "dump-log of logs": lambda place: place.printed(
        dump_log, "--files", *(f"{place.address}/{name}" for name in place.names), "--print-data-log"
    ),
    "dump-log of segments": lambda place: place.printed(
        dump_log, "--files", *(f"{place.address}/{name}" for name in place.segments), "--deep-iteration"
    ),
    "count": lambda place: place.printed(count, "--log-dir", place.address, "--partitions"),
    "count bytes": lambda place: place.printed(count, "--log-dir", place.address, "--bytes", "--partitions"),
    "count committed": lambda place: place.printed(
        count, "--log-dir", place.address, "--output", "json", "--isolation-level", "read_committed"
    ),
})  # fmt: skip


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
    copied = ["--log-dir", f"backup+{root}/backup", "--output-dir", f"{root}/set-logs", "--as-of-ms", str(NOW_MS), *KEEP]
    assert expire.main(copied) == 0
    for file in [each for each in (root / "set-logs").iterdir() if each.is_file()]:
        file.unlink()
    before = files(root)
    yield root
    # a copy shares the lock of its source
    assert {path: data for path, data in files(root).items() if not path.endswith("/.lock")} == before


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


@pytest.fixture(scope="module")
def known() -> dict[tuple[str, Path], Any]:
    """By command and log directory, its result."""
    return {}


#: a set has no indexes
CASES = [(layout, command) for layout in LAYOUTS for command in COMMANDS if (layout, command) != ("backup", "dump-log of logs")]


@pytest.mark.parametrize(("layout", "command"), CASES)
def test_a_command_on_an_export_reports_what_it_does_of_the_log_directory(
    layout: str,
    command: str,
    exported: Path,
    known: dict[tuple[str, Path], Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, f"{KEY_ID}={exported}/key.pem")
    log_dir = of_log_dir(layout, exported)

    def result(name: str, address: str) -> Any:
        shutil.copytree(log_dir, tmp_path / name / "logs")
        capsys.readouterr()
        return COMMANDS[command](Place(address, tmp_path / name, capsys))

    if (command, log_dir) not in known:
        known[command, log_dir] = result("there", f"{log_dir}")
    found = result("here", f"{layout}+{exported / layout}")
    assert found == known[command, log_dir]


#: options of each command, and the work of those that clean
READERS: Mapping[str, tuple[Any, tuple[str, ...], Callable[..., Any] | None]] = MappingProxyType({
    "compact": (compact, ("--output-dir", "OUT", "--include-active", "--verify", *COMPACT), clean_logs),
    "compact --dry-run": (compact, ("--dry-run", "--include-active", *COMPACT), clean_logs),
    "dry-run": (dry_run, ("--policy", POLICIES[1], "--include-active"), compare_with),
    "expire": (expire, ("--output-dir", "OUT", *BY_SIZE), None),
    "erase": (erase, ("--where", "prefix=key-1", "--output-dir", "OUT", "--include-active", *COMPACT), erase_keys),
    "count": (count, (), None),
})  # fmt: skip


@pytest.fixture(params=["exchanged", "cut"])
def impossible(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The address of an export, and the upload that has batches of a leader whose records were truncated, or lost its end."""
    export = Export(tmp_path, "local-tiered")
    export.add(range(30), ((0, 0),))
    first, second = (export.add(range(30, 60), ((0, 0), (epoch, 30))) for epoch in (1, 2))
    if request.param == "cut":
        second.write_bytes(second.read_bytes()[:-20])
        return export.address, second
    exchange(first, second, ".log")
    return export.address, first


@pytest.mark.parametrize("command", READERS)
def test_a_command_fails_on_an_upload_with_records_that_it_cannot_have(
    command: str, impossible: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, options, work = READERS[command]
    given = ["--log-dir", impossible[0], *(option.replace("OUT", f"{tmp_path}/copy") for option in options)]
    code = executed(module, given, None if work is None else lambda _, request: work(LocalPasses, request))
    told = capsys.readouterr()
    assert code == 1
    assert str(impossible[1]) in told.out + told.err
    assert not list(tmp_path.glob("copy/orders-0/*.log"))


def test_dump_log_and_verify_fail_on_an_upload_with_records_that_it_cannot_have(
    impossible: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, upload = impossible
    assert dump_log.main(["--files", f"{address}/orders-0/{30:020d}.log", "--print-data-log"]) == 1
    assert str(upload) in "".join(capsys.readouterr())
    put_segments(tmp_path / "copy" / "orders-0", range(30), range(30, 60), epochs="0\n2\n0 0\n2 30\n")
    assert verify.main(["--before", address, "--after", f"{tmp_path}/copy", "--include-active", *COMPACT]) == 1
    assert str(upload) in "".join(capsys.readouterr())


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_data_source_has_the_rows_of_the_log_directory(layout: str, spark: SparkSession, exported: Path) -> None:
    from compaction.source.data_source import register

    register(spark)
    os.environ.pop(KEYS_VARIABLE)
    reader = spark.read.format("kafka_log").option("privateKeys", f"{KEY_ID}={exported}/key.pem")
    found = reader.load(f"{layout}+{exported / layout}").collect()
    assert found == spark.read.format("kafka_log").load(str(of_log_dir(layout, exported))).collect() != []
