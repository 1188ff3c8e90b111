"""The commands on backup sets that the real kafka-backup has written (version 0.25.2 of its core, in each compression)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compaction.cli.parser import Parser
from compaction.commands import compact, runs, verify
from compaction.exports.backup_writer import BackupTarget
from compaction.files.mixed import MixedFileSystem
from compaction.files.uri import parse_uri
from compaction.formats.message_set import iter_batches
from compaction.formats.record_batch import RecordBatch
from compaction.options.inputs import Inputs
from compaction.report import LogReport, LogStatus
from compaction.run_report import RunReport
from tests.files.layouts.exports import no_exports_known
from tests.golden import unpack_backup_sets
from tests.object_store.fixtures import files
from tests.object_store.local_run import COMPACT, NOW_MS, figures, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["no_exports_known"]

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


@pytest.mark.slow
@pytest.mark.spark
def test_a_set_is_read_by_the_data_source(spark: SparkSession, sets: Path, consumed: list[Row]) -> None:
    from compaction.source.data_source import register

    register(spark)
    rows = spark.read.format("kafka_log").load(f"backup+file://{sets}/zstd").collect()
    assert sorted((row.partition, row.offset, None if row.key is None else row.key.hex()) for row in rows) == sorted(
        (row[0], row[1], row[3]) for row in consumed
    )


@pytest.mark.parametrize("source", ["none", "zstd", "lz4"])
def test_a_compacted_set_is_written_as_a_set(sets: Path, consumed: list[Row], tmp_path: Path, source: str) -> None:
    target = tmp_path / "compacted"
    options = ["--log-dir", f"backup+file://{sets}/{source}", "--output-dir", str(target), "--output-layout", "backup"]
    assert compact.main([*options, "--accept-loss", "--as-of-ms", str(NOW_MS), "--include-active", *COMPACT]) == 0
    assert records(parse_uri(f"backup+file://{target}", "--log-dir")) == newest(consumed)
    old, new = (json.loads((place / "manifest.json").read_text()) for place in (sets / source, target))
    assert new["compression"] == source
    through = [document["topics"][0]["partitions"][0]["covered_through"] for document in (old, new)]
    assert through[0] == through[1] >= max(row[1] for row in consumed)


def test_the_copy_is_beside_the_target_or_where_segments_are_converted(sets: Path, tmp_path: Path) -> None:
    source = f"backup+file://{sets}/zstd?spool={tmp_path}/spool"
    copies: list[str] = []

    def body(given: Inputs) -> RunReport:
        copies.append(str(given["output_dir"]))
        assert Path(copies[0]).parent.stat().st_mode & 0o777 == 0o700
        return RunReport("r", 1, False, (LogReport("orders", 0, source, LogStatus.FAILED, "damaged"),))

    options = ["--log-dir", source, "--output-dir", f"{tmp_path}/new", "--output-layout", "backup", "--accept-loss"]
    left = tmp_path / f".new.copy.{'0' * 32}.partial"
    left.mkdir()
    given = Parser(compact.OPTIONS).parse_args(options)
    inputs = Inputs.of(compact.OPTIONS, compact.OPTIONS.complete(vars(given)), log_dirs=given.log_dirs)
    assert runs.in_layout(inputs, body).exit_code == 1
    assert copies[0].startswith(f"{tmp_path}/.new.copy.")
    assert list(tmp_path.iterdir()) == []
    with runs._scratch(inputs, BackupTarget("s3://bucket/new")) as scratch:
        assert Path(scratch).parent == tmp_path / "spool"
    assert list((tmp_path / "spool").iterdir()) == []
