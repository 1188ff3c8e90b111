"""Each command on an export in each layout: its report is that of the same command on the log directory that was exported."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compaction.cli.console import main
from compaction.files.calls import KEYS_VARIABLE
from tests.exports.aiven_objects import KEY_ID, AivenWriter, end_offset, new_key
from tests.exports.exchanged_uploads import Export, exchange
from tests.exports.exports import TOPIC_ID, no_exports_known, require_cryptography, write_local_tiered, write_log
from tests.golden import unpack_backup_sets, unpack_sample
from tests.object_store.fixtures import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["no_exports_known"]

#: four and a half hours after the newest record of clickstream
NOW_MS = 1_760_000_000_000 + 14 * 3_600_000
LAYOUTS = ("aiven", "local-tiered", "backup")
#: with transactions, with an open one, with two leader epochs, with the delete policy
LOGS = ("payments-0", "payments-open-0", "inventory-0", "clickstream-0")
COMPACT = "--set cleanup.policy=compact min.cleanable.dirty.ratio=0 --include-active"
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
    f"compact --log-dir PLACE {COMPACT} --dry-run",
    f"compact --log-dir PLACE {COMPACT} --output-dir OUT",
    f"expire --log-dir PLACE {BY_SIZE} --dry-run",
    f"expire --log-dir PLACE {BY_SIZE} --output-dir OUT",
    "expire --log-dir PLACE --set cleanup.policy=delete retention.ms=28800000 --output-dir OUT",
    "expire --log-dir PLACE --dry-run",
    f"erase --log-dir PLACE {COMPACT} --where prefix=payment-4 prefix=user-1 prefix=k --output-dir OUT",
    f"verify --before PLACE --after COPY {COMPACT}",
    f"verify --before PLACE --after CUT {COMPACT}",
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
    as_of = f"--as-of-ms {NOW_MS} --quiet"
    assert main(f"expire --log-dir backup+{root}/backup --output-dir {root}/set-logs {KEEP} {as_of}".split()) == 0
    for file in [each for each in (root / "set-logs").iterdir() if each.is_file()]:
        file.unlink()
    for name in ("logs", "set-logs"):
        assert main(f"compact --log-dir {root}/{name} --output-dir {root}/COPY-{name} {COMPACT} {as_of}".split()) == 0
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
            words += ["--as-of-ms", str(NOW_MS), "--report", f"{place}/report.json", "--quiet"]
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


READERS = (
    f"compact --log-dir PLACE {COMPACT} --output-dir OUT --verify",
    f"compact --log-dir PLACE {COMPACT} --dry-run",
    "dry-run --log-dir PLACE --policy cleanup.policy=compact,min.cleanable.dirty.ratio=0 --include-active",
    f"expire --log-dir PLACE {BY_SIZE} --output-dir OUT",
    f"erase --log-dir PLACE {COMPACT} --where prefix=key-1 --output-dir OUT",
    "count --log-dir PLACE",
    f"dump-log --files PLACE/orders-0/{30:020d}.log --print-data-log",
    f"verify --before PLACE --after AFTER {COMPACT}",
)


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


@pytest.mark.parametrize("call", READERS)
def test_a_command_fails_on_an_upload_with_records_that_it_cannot_have(
    call: str, impossible: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [""])
    address, upload = impossible
    write_log(tmp_path / "after" / "orders-0", range(30), range(30, 60), epochs=[(0, 0), (2, 30)])
    paths = {"PLACE": address, "OUT": f"{tmp_path}/copy", "AFTER": f"{tmp_path}/after"}
    assert main(list(_words(call, tmp_path, paths))) == 1
    assert str(upload) in "".join(capsys.readouterr())
    assert not list(tmp_path.glob("copy/orders-0/*.log"))


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
