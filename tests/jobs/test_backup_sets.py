"""The commands on backup sets that the real kafka-backup has written (version 0.25.2 of its core, in each compression)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compaction.errors import UsageError
from compaction.formats.record_batch.batch import RecordBatch, iter_batches
from compaction.fs.uri import parse_uri
from compaction.stores.mixed import MixedFileSystem
from jobs import compact, count_keys, dump_log, verify
from tests.certifier.certify import certify
from tests.golden import unpack_backup_sets
from tests.object_store.fixtures import files
from tests.object_store.local_run import COMPACT, NOW_MS, figures, run
from tests.stores.layouts.exports import no_exports_known

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
    found = certify(verify.read_call(verify.parser().parse_args(options)).request)
    assert [(log.status.value, log.violations) for log in found.logs] == [("holds", ())]


def test_records_of_a_set_are_counted_and_dumped(sets: Path, consumed: list[Row], capsys: pytest.CaptureFixture[str]) -> None:
    assert count_keys.main(["--log-dir", f"backup+file://{sets}/lz4", "--output", "json"]) == 0
    (topic,) = json.loads(capsys.readouterr().out)["topics"]
    assert (topic["records"], topic["keys"]) == (len(consumed), len(newest(consumed)))
    assert dump_log.main(["--files", f"backup+file://{sets}/zstd/orders-0", "--print-data-log"]) == 0
    assert capsys.readouterr().out.count("| offset: ") == sum(row[0] == 0 for row in consumed)


@pytest.mark.slow
@pytest.mark.spark
def test_a_set_is_read_by_the_data_source(spark: SparkSession, sets: Path, consumed: list[Row]) -> None:
    from compaction.source.data_source import register

    register(spark)
    rows = spark.read.format("kafka_log").load(f"backup+file://{sets}/zstd").collect()
    assert sorted((row.partition, row.offset, None if row.key is None else row.key.hex()) for row in rows) == sorted(
        (row[0], row[1], row[3]) for row in consumed
    )


def test_a_set_is_not_changed(sets: Path, tmp_path: Path) -> None:
    for options, what in (
        ((), "cannot be compacted in place: a backup set has a manifest"),
        (("--output-dir", f"{sets}/zstd/out"), "--output-dir overlaps the log directory"),
    ):
        with pytest.raises(UsageError, match=what):
            run("--log-dir", f"backup+file://{sets}/zstd", *options, *COMPACT)
    assert compact.parser() is not None
