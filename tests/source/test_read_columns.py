"""The data source without a Spark session: plans and reads of the sample and of random logs, beside a plain consumer."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import datasource as ds
from pyspark.sql.types import LongType, StructField, StructType

from compaction.errors import CorruptLogError, LockedError, UsageError
from compaction.source.arrow_columns import source_schema
from compaction.source.data_source import KafkaLogReader, KafkaLogSource
from compaction.source.read_plan import OPTIONS
from tests.golden import unpack_sample
from tests.oracle.disk import write_partition, write_producers
from tests.oracle.random_logs import Flavour, RandomLog, random_log
from tests.source.plain_consumer import EPOCH, Served, read_rows, reader_of, serve, served

ROOT = Path(__file__).resolve().parents[2]

needs_filters = pytest.mark.skipif(not hasattr(ds, "EqualTo"), reason="PySpark 4.0 tells a data source nothing about filters")

FLAVOURS = {
    "plain": Flavour(batches=80),
    "message sets": Flavour(magics=(0, 1, 2)),
    "gzip": Flavour(codecs=(1,), magics=(0, 1, 2)),
    "snappy": Flavour(codecs=(2,), magics=(0, 1, 2)),
    "lz4": Flavour(codecs=(3,), magics=(0, 1, 2)),
    "zstd": Flavour(codecs=(0, 4), magics=(1, 2)),
}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's log directory."""
    return unpack_sample(tmp_path_factory.mktemp("sample"))


def write_random(log_dir: Path, flavour: str, seed: int) -> tuple[Path, RandomLog]:
    made = random_log(seed, FLAVOURS[flavour])
    path = log_dir / "random-0"
    write_partition(path, made.segments)
    write_producers(path, made.segments[-1].next_offset, made.producers)
    return path, made


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


def test_one_partitions_directory_will_do(sample: Path) -> None:
    assert [served(row) for row in read_rows(sample / "orders-1")] == list(serve(sample / "orders-1"))


def test_topics_and_partitions_are_chosen_by_options(sample: Path) -> None:
    rows = read_rows(sample, topic="payments.* ledger", partition="orders-2")
    assert {(row["topic"], row["partition"]) for row in rows} == {
        ("payments", 0), ("payments", 1), ("payments-open", 0), ("ledger", 0), ("orders", 2),
    }  # fmt: skip


def test_control_records_come_when_asked_for(sample: Path) -> None:
    rows = read_rows(sample / "payments-0", includecontrol="true", batchcolumns="true")
    assert [served(row) for row in rows] == list(serve(sample / "payments-0", control=True))
    assert {row["control"] for row in rows} == {True, False}


def test_batch_columns_tell_of_the_batch(sample: Path) -> None:
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


def test_bounds_by_options_cut_offsets_and_times_exactly(sample: Path) -> None:
    every = list(serve(sample / "orders-0"))
    times = sorted(record.timestamp_ms for record in every)
    since, until = times[100], times[900]
    options = {"startingOffset": "200", "endingOffset": "1300", "startingTimestamp": str(since), "endingTimestamp": str(until)}
    expected = [one for one in every if 200 <= one.offset < 1300 and since <= one.timestamp_ms < until]
    assert 0 < len(expected) < 1100
    assert [served(row) for row in read_rows(sample / "orders-0", **options)] == expected


def conditions(record: Served) -> list[tuple[list[Any], Any]]:
    """Filters around one record, and what they mean."""
    time = EPOCH + timedelta(milliseconds=record.timestamp_ms)
    ms = record.timestamp_ms
    return [
        ([ds.EqualTo(("offset",), record.offset)], lambda r: r.offset == record.offset),
        ([ds.GreaterThan(("offset",), record.offset)], lambda r: r.offset > record.offset),
        ([ds.LessThanOrEqual(("offset",), record.offset)], lambda r: r.offset <= record.offset),
        ([ds.GreaterThanOrEqual(("timestamp",), time)], lambda r: r.timestamp_ms >= ms),
        ([ds.GreaterThan(("timestamp",), time)], lambda r: r.timestamp_ms > ms),
        ([ds.LessThan(("timestamp",), time)], lambda r: r.timestamp_ms < ms),
        ([ds.EqualTo(("timestamp",), time)], lambda r: r.timestamp_ms == ms),
        (
            [ds.GreaterThan(("timestamp",), time), ds.LessThan(("offset",), record.offset + 99)],
            lambda r: r.timestamp_ms > ms and r.offset < record.offset + 99,
        ),
    ]


@needs_filters
@pytest.mark.parametrize("log", ["orders-2", "customers-0", "prices-0", "payments-1", "inventory-0"])
def test_filters_taken_over_give_what_filtering_all_records_gives(sample: Path, log: str) -> None:
    every = list(serve(sample / log))
    for record in every[:: len(every) // 12]:
        for filters, holds in conditions(record):
            assert [served(row) for row in read_rows(sample / log, filters)] == [one for one in every if holds(one)], filters


@needs_filters
@pytest.mark.parametrize("flavour", ["plain", "message sets", "gzip"])
def test_filters_hold_on_random_logs_whose_times_go_back_and_forth(tmp_log_dir: Path, flavour: str) -> None:
    path, _ = write_random(tmp_log_dir, flavour, 11)
    every = list(serve(path))
    for record in every[:: len(every) // 12]:
        for filters, holds in conditions(record):
            assert [served(row) for row in read_rows(tmp_log_dir, filters)] == [one for one in every if holds(one)], filters


def bytes_to_read(reader: KafkaLogReader) -> int:
    return sum(part.end - part.start for share in reader.partitions() for part in share.value.slices)


@needs_filters
def test_filters_spare_files_and_stretches_of_files(sample: Path) -> None:
    whole = bytes_to_read(reader_of(sample))
    topic = bytes_to_read(reader_of(sample, [ds.EqualTo(("topic",), "orders"), ds.EqualTo(("partition",), 1)]))
    assert topic == sum(path.stat().st_size for path in (sample / "orders-1").glob("*.log")) < whole
    late = EPOCH + timedelta(milliseconds=max(record.timestamp_ms for record in serve(sample / "orders-1")))
    one = bytes_to_read(reader_of(sample / "orders-1", [ds.GreaterThanOrEqual(("timestamp",), late)]))
    assert one < topic / 8
    assert bytes_to_read(reader_of(sample, [ds.LessThan(("offset",), 0)])) == 0


def test_a_segments_index_spares_most_of_a_large_segment(tmp_log_dir: Path) -> None:
    path, made = write_random(tmp_log_dir, "plain", 3)
    largest = max(made.segments, key=lambda segment: len(segment.log))
    middle = largest.batches[len(largest.batches) // 2].last_offset
    spared = reader_of(path, startingoffset=str(middle), endingoffset=str(middle + 1))
    assert 0 < bytes_to_read(spared) < len(largest.log) / 2


def test_slices_are_as_large_as_asked_for_and_lose_nothing(sample: Path) -> None:
    reader = reader_of(sample / "orders-0", slicebytes="4096")
    shares = reader.partitions()
    assert len(shares) > 10
    rows = [row for part in shares for batch in reader.read(part) for row in batch.to_pylist()]
    assert [served(row) for row in rows] == list(serve(sample / "orders-0"))
    assert len(reader_of(sample / "orders-0").partitions()) == 1


def test_nothing_beyond_the_high_watermark_unless_asked_for(tmp_log_dir: Path) -> None:
    path, _ = write_random(tmp_log_dir, "plain", 5)
    middle = list(serve(path))[20].offset
    (tmp_log_dir / "replication-offset-checkpoint").write_text(f"0\n1\nrandom 0 {middle}\n")
    assert [served(row) for row in read_rows(tmp_log_dir)] == list(serve(path, end_offset=middle))
    assert [served(row) for row in read_rows(tmp_log_dir, includeunreplicated="true")] == list(serve(path))


def test_nothing_below_the_log_start(tmp_log_dir: Path) -> None:
    path, _ = write_random(tmp_log_dir, "plain", 5)
    start = list(serve(path))[20].offset
    (tmp_log_dir / "log-start-offset-checkpoint").write_text(f"0\n1\nrandom 0 {start}\n")
    assert [served(row) for row in read_rows(tmp_log_dir)] == [one for one in serve(path) if one.offset >= start]


def test_columns_can_be_chosen_by_option_and_by_schema(sample: Path) -> None:
    rows = read_rows(sample / "ledger-0", columns="offset, key")
    assert [list(row) for row in rows] == [["offset", "key"]] * len(rows)
    assert [(row["offset"], row["key"]) for row in rows] == [(one.offset, one.key) for one in serve(sample / "ledger-0")]
    reader = KafkaLogReader({"path": str(sample / "ledger-0")}, StructType([StructField("offset", LongType())]))
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == len(rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "orders"}, "no option 'topics'"),
        ({"isolation.level": "committed"}, "isolation.level 'committed' is neither"),
        ({"startingOffset": "ten"}, "startingoffset is 'ten', expected a whole number"),
        ({"includeControl": "yes"}, "includecontrol is 'yes', expected true or false"),
        ({"columns": "key,vlaue"}, "no column 'vlaue'"),
        ({"partition": "orders"}, "is not TOPIC-N"),
        ({"partition": "orders-9"}, "no such partition: orders-9"),
        ({"path": "/no/such/place"}, "no such log directory"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(sample: Path, options: dict[str, str], message: str) -> None:
    given = {"path": str(sample), **options}
    with pytest.raises(UsageError, match=message):
        KafkaLogReader(given, KafkaLogSource(given).schema()).partitions()


def test_the_page_tells_every_column_and_option() -> None:
    page = (ROOT / "docs/data-source.md").read_text(encoding="utf-8")
    named = {name.lower() for name in re.findall(r"`([\w.]+)`", page)}
    columns = {name.lower() for name in source_schema(None, batch_columns=True).fieldNames()}
    assert columns | set(OPTIONS) - {"path", "paths"} <= named


def test_a_schema_of_another_type_is_refused(sample: Path) -> None:
    from pyspark.sql.types import StringType

    with pytest.raises(UsageError, match="column offset of kafka_log is bigint, not string"):
        KafkaLogReader({"path": str(sample)}, StructType([StructField("offset", StringType())]))


def test_a_directory_that_is_in_use_is_not_read(tmp_log_dir: Path) -> None:
    write_random(tmp_log_dir, "plain", 1)
    holder = """import sys; from compaction.fs.lock import LogDirLock
with LogDirLock.acquire(sys.argv[1]): print(1, flush=True); input()"""
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_log_dir)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(LockedError, match=str(other.pid)):
            read_rows(tmp_log_dir)
        other.communicate(b"\n")
    assert read_rows(tmp_log_dir)


def test_damage_is_an_error_with_file_and_position(tmp_log_dir: Path) -> None:
    path, made = write_random(tmp_log_dir, "plain", 2)
    file = path / f"{made.segments[0].base_offset:020d}.log"
    data = bytearray(file.read_bytes())
    at = made.segments[0].batches[1].position
    data[at + 65] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptLogError, match=f"at byte {at}: batch fails its CRC"):
        read_rows(tmp_log_dir)


def test_the_log_directory_is_left_as_it_was(sample: Path) -> None:
    def content() -> dict[Path, tuple[int, bytes]]:
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(sample.rglob("*")) if path.is_file()}

    before = content()
    read_rows(sample, isolation_level="read_committed")
    assert content() == before
