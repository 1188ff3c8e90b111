"""Rows of the data source, by its reader and by ``compaction.read_arrow``: those of a plain consumer, without Spark."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import compaction
from compaction.errors import CorruptLogError, StorageError, UsageError
from compaction.files import calls
from compaction.names import TopicPartition
from compaction.source.arrow import ArrowColumns, read_schema
from compaction.source.data_source import KafkaLogReader
from tests.dumping.segments import write_segment
from tests.kafka.encode import Batch, Record
from tests.large_log import END_OFFSET, KEYS, write_large_log
from tests.source.plain_consumer import Served, read_rows, reader_of, serve, served
from tests.source.random_partition import FLAVOURS, write_random


@pytest.mark.parametrize("flavour", list(FLAVOURS))
@pytest.mark.parametrize("seed", range(4))
def test_random_logs_are_read_as_a_plain_consumer_reads_them(tmp_log_dir: Path, flavour: str, seed: int) -> None:
    path, made = write_random(tmp_log_dir, flavour, seed)
    assert [served(row) for row in read_rows(tmp_log_dir)] == list(serve(path))
    committed = [served(row) for row in read_rows(tmp_log_dir, isolation_level="read_committed")]
    assert committed == list(serve(path, committed=True, end_offset=made.last_stable_offset))


def test_every_log_of_the_sample_is_read_to_its_high_watermark(sample: Path) -> None:
    logs = sorted(path for path in sample.glob("*-[0-9]") if path.name != "__cluster_metadata-0")
    expected = sorted(record for log in logs for record in serve(log))
    assert len(expected) > 9000
    assert sorted(served(row) for row in read_rows(sample)) == expected


def test_control_records_are_read_on_request(sample: Path) -> None:
    rows = read_rows(sample / "payments-0", includecontrol="true", batchcolumns="true")
    assert [served(row) for row in rows] == list(serve(sample / "payments-0", control=True))
    assert {row["control"] for row in rows} == {True, False}


def test_batch_columns_are_those_of_the_records_batch(sample: Path) -> None:
    rows = read_rows(sample / "payments-0", batchcolumns="true")
    batches = {(row["segment"], row["position"]) for row in rows}
    assert len(batches) > 10
    for row in rows:
        raw = (sample / "payments-0" / f"{row['segment']:020d}.log").read_bytes()[row["position"] :]
        assert int.from_bytes(raw[:8], "big") == row["baseOffset"] <= row["offset"]
        assert int.from_bytes(raw[12:16], "big") == row["leaderEpoch"]
        assert (raw[16], int.from_bytes(raw[43:51], "big")) == (row["magic"], row["producerId"])
        assert ("none", "gzip")[raw[22] & 7] == row["codec"]
        assert row["transactional"] is True
        assert row["control"] is False


def bounds(record: Served) -> list[tuple[dict[str, str], Callable[[Served], bool]]]:
    """Options around one record, and what they mean."""
    offset, ms = record.offset, record.timestamp_ms
    return [
        ({"startingOffset": str(offset), "endingOffset": str(offset + 1)}, lambda r: r.offset == offset),
        ({"startingOffset": str(offset + 1)}, lambda r: r.offset > offset),
        ({"endingOffset": str(offset)}, lambda r: r.offset < offset),
        ({"startingTimestamp": str(ms)}, lambda r: r.timestamp_ms >= ms),
        ({"endingTimestamp": str(ms)}, lambda r: r.timestamp_ms < ms),
        (
            {
                "startingTimestamp": str(ms),
                "endingTimestamp": str(ms + 1),
                "startingOffset": str(offset),
                "endingOffset": str(offset + 99),
            },
            lambda r: r.timestamp_ms == ms and offset <= r.offset < offset + 99,
        ),
        (
            {"startingTimestamp": str(ms + 1), "endingOffset": str(offset + 99)},
            lambda r: r.timestamp_ms > ms and r.offset < offset + 99,
        ),
    ]


@pytest.mark.parametrize(
    "log", ["orders-2", "customers-0", "prices-0", "payments-1", "inventory-0", "plain", "message sets", "gzip"]
)
def test_options_give_the_records_within_them(sample: Path, tmp_log_dir: Path, log: str) -> None:
    """Random logs have timestamps in no order."""
    path = write_random(tmp_log_dir, log, 11)[0] if log in FLAVOURS else sample / log
    every = list(serve(path))
    for record in every[:: len(every) // 5]:
        for options, holds in bounds(record):
            assert [served(row) for row in read_rows(path, **options)] == [one for one in every if holds(one)], options


def test_times_beyond_the_year_9999_are_shown_and_bound_a_read(tmp_log_dir: Path) -> None:
    year_20000, last = 568_971_820_800_000, 2**63 - 1
    log = tmp_log_dir / "orders-0"
    log.mkdir()
    records = [Record(at, ms, b"k", b"v") for at, ms in enumerate((0, year_20000, last // 1000, last))]
    for record in records:
        (log / f"{record.offset:020d}.log").write_bytes(Batch((record,)).encode())
    reader = reader_of(log)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    # Python has no datetime after the year 9999
    shown = [micros for batch in batches for micros in batch["timestamp"].cast("int64").to_pylist()]
    assert shown == [0, year_20000 * 1000, last // 1000 * 1000, last // 1000 * 1000]
    found = {
        since: [row["offset"] for row in read_rows(log, columns="offset", startingtimestamp=str(since))]
        for since in (0, year_20000, year_20000 + 1, last)
    }
    assert found == {0: [0, 1, 2, 3], year_20000: [1, 2, 3], year_20000 + 1: [2, 3], last: [3]}
    assert [row["offset"] for row in read_rows(log, columns="offset", endingtimestamp=str(last))] == [0, 1, 2]


def test_an_option_or_a_schema_selects_columns(sample: Path) -> None:
    rows = read_rows(sample / "ledger-0", columns="offset, key")
    assert [list(row) for row in rows] == [["offset", "key"]] * len(rows)
    assert [(row["offset"], row["key"]) for row in rows] == [(one.offset, one.key) for one in serve(sample / "ledger-0")]
    reader = KafkaLogReader({"path": str(sample / "ledger-0")}, StructType([StructField("offset", LongType())]))
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == len(rows)


def test_a_schema_of_another_type_is_refused(sample: Path) -> None:
    from pyspark.sql.types import StringType

    with pytest.raises(UsageError, match="column offset of kafka_log is bigint, not string"):
        KafkaLogReader({"path": str(sample)}, StructType([StructField("offset", StringType())]))


def test_damage_is_an_error_with_file_and_position(tmp_log_dir: Path) -> None:
    path, made = write_random(tmp_log_dir, "plain", 2)
    file = path / f"{made.segments[0].base_offset:020d}.log"
    data = bytearray(file.read_bytes())
    at = made.segments[0].batches[1].position
    data[at + 65] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptLogError, match=f"at byte {at}: batch fails its CRC"):
        read_rows(tmp_log_dir)


def test_the_log_directory_is_not_changed(sample: Path) -> None:
    def content() -> dict[Path, tuple[int, bytes]]:
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(sample.rglob("*")) if path.is_file()}

    before = content()
    read_rows(sample, isolation_level="read_committed")
    assert content() == before


@pytest.mark.parametrize("flavour", list(FLAVOURS))
def test_the_rows_are_those_of_the_data_source(tmp_log_dir: Path, flavour: str) -> None:
    write_random(tmp_log_dir, flavour, 1)
    read = compaction.read_arrow(tmp_log_dir, options={"batchColumns": True, "includeControl": True})
    assert read.read_all().to_pylist() == read_rows(tmp_log_dir, batchcolumns="true", includecontrol="true")
    for view in ("latest", "changes"):
        assert compaction.read_arrow(tmp_log_dir, view=view).read_all().to_pylist() == read_rows(tmp_log_dir, view=view)


def test_duckdb_reads_it(sample: Path) -> None:
    latest = compaction.read_arrow(sample, "orders", view="latest", columns=["partition", "offset", "superseded"])
    with duckdb.connect() as connection:
        found = connection.from_arrow(latest).aggregate("count(*), sum(superseded)").fetchall()
    expected = read_rows(sample, topic="orders", view="latest")
    assert found == [(len(expected), sum(row["superseded"] for row in expected))]


def test_a_log_that_a_batch_does_not_hold_is_read_in_threads_of_a_process_without_a_jvm(tmp_log_dir: Path) -> None:
    write_large_log(tmp_log_dir)

    def offsets(_: int) -> list[int]:
        read = compaction.read_arrow(tmp_log_dir, "orders", columns="offset,value")
        return [offset for batch in read for offset in batch.column("offset").to_pylist()]

    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(offsets, range(3)):
            assert found == list(range(END_OFFSET))
    program = "import sys, compaction; t = compaction.read_arrow(sys.argv[1], view='latest').read_all()"
    shown = "print(t.num_rows, 'pyspark' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", f"{program}; {shown}", tmp_log_dir],
        env={**os.environ, "JAVA_HOME": "/nowhere"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.stdout.split() == [str(KEYS + 1), "False"], ran.stderr


def test_a_reader_that_is_left_ends_its_call(sample: Path) -> None:
    address = f"file://{sample}"
    before = len(calls._open)
    read = compaction.read_arrow(address, "orders")
    read.read_next_batch()
    assert len(calls._open) == before + 1
    del read
    gc.collect()
    assert len(calls._open) == before


def test_the_call_of_a_reader_is_not_that_of_the_code_which_reads(sample: Path) -> None:
    outer = calls._current.get()
    read = compaction.read_arrow(sample, "orders")
    assert calls._current.get() is outer
    with calls.call():
        inner = calls._current.get()
        assert read.read_next_batch().num_rows
        assert calls._current.get() is inner
    read.read_all()
    assert calls._current.get() is outer


def test_a_file_that_is_changed_before_it_is_read_is_refused(tmp_log_dir: Path) -> None:
    made = write_segment(tmp_log_dir / "orders-0")
    read = compaction.read_arrow(tmp_log_dir)
    with made.path.open("ab") as file:
        file.write(bytes(8))
    with pytest.raises(StorageError, match="was changed after this read was planned"):
        read.read_all()


def test_what_cannot_be_read_is_said_at_once(sample: Path) -> None:
    with pytest.raises(UsageError, match="no topic here matches 'other'"):
        compaction.read_arrow(sample, "other")
    with pytest.raises(UsageError, match="column superseded needs the option view"):
        compaction.read_arrow(sample, columns="superseded")
    with pytest.raises(UsageError, match="kafka_log has no option 'colour'"):
        compaction.read_arrow(sample, options={"colour": 1})
    with pytest.raises(UsageError, match="is neither latest nor changes"):
        compaction.read_arrow(sample, view="newest")


def test_options_are_those_of_the_data_source(sample: Path) -> None:
    ends = json.dumps({"orders": {"0": 0}})
    read = compaction.read_arrow([sample], "orders", columns="partition", options={"endingOffsets": ends}).read_all()
    assert set(read["partition"].to_pylist()) == {1, 2}


LIMIT_MS = (2**63 - 1) // 1000


def task() -> ArrowColumns:
    return ArrowColumns(read_schema({"columns": "timestamp"}), TopicPartition("orders", 3))


def micros(task: ArrowColumns, *stamps: int) -> list[int]:
    columns = SimpleNamespace(timestamp_ms=np.array(stamps, np.int64), offset=np.arange(70, 70 + len(stamps)))
    made = task.batch(SimpleNamespace(columns=columns), 0)["timestamp"]  # type: ignore[arg-type]
    return list(made.cast(pa.int64()).to_pylist())


def test_timestamps_in_nanoseconds_are_not_clamped_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    nanoseconds = 1_760_000_000_000_000_000
    first, second = task(), task()
    assert micros(first, 1_760_000_000_000, nanoseconds, -(2**63), nanoseconds + 1) == [
        1_760_000_000_000_000, LIMIT_MS * 1000, -LIMIT_MS * 1000, LIMIT_MS * 1000,
    ]  # fmt: skip
    micros(first, nanoseconds)
    (warning,) = caplog.messages
    assert f"first: {nanoseconds} at offset 71 of orders-3" in warning
    assert "dump-log prints them as they are" in warning
    # a later query in the same process has a warning of its own
    micros(second, nanoseconds)
    assert len(caplog.messages) == 2


def test_all_other_timestamps_are_shown_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    assert micros(task(), -1, 0, LIMIT_MS, -LIMIT_MS) == [-1000, 0, LIMIT_MS * 1000, -LIMIT_MS * 1000]
    assert not caplog.messages
