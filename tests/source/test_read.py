"""The rows of the data source without Spark, by its reader and by ``compaction.read_arrow``, are those of a plain consumer;
those of views, of a dictionary. And which parts of which segments a read covers."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import compaction
from compaction.errors import CorruptLogError, LockedError, StorageError, UsageError
from compaction.files import calls
from compaction.files.local import LocalFileSystem
from compaction.names import TopicPartition
from compaction.source import latest
from compaction.source.arrow import ArrowColumns, read_schema
from compaction.source.data_source import KafkaLogReader, KafkaLogSource, end_offsets
from compaction.source.read_plan import OPTIONS, ReadRequest, plan_read, read_ends
from tests.conftest import ROOT
from tests.dumping.segments import write_segment
from tests.exports.exports import local_tiered, upload, write_log_dir
from tests.files.test_lock import held_elsewhere
from tests.kafka.encode import Batch, Record
from tests.large_log import END_OFFSET, KEYS, write_large_log
from tests.log.logs import data_segment
from tests.source.plain_consumer import FLAVOURS, Served, read_rows, read_served, reader_of, serve, served, write_random


def test_options_select_topics_and_partitions(sample: Path) -> None:
    rows = read_rows(sample, topic="payments.* ledger", partition="orders-2")
    assert {(row["topic"], row["partition"]) for row in rows} == {
        ("payments", 0), ("payments", 1), ("payments-open", 0), ("ledger", 0), ("orders", 2),
    }  # fmt: skip


def bytes_to_read(reader: KafkaLogReader) -> int:
    return sum(part.end - part.start for share in reader.partitions() for part in share.value[0].slices)


def test_options_skip_files_and_parts_of_files(sample: Path) -> None:
    whole = bytes_to_read(reader_of(sample))
    topic = bytes_to_read(reader_of(sample, partition="orders-1"))
    assert topic == sum(path.stat().st_size for path in (sample / "orders-1").glob("*.log")) < whole
    late = max(record.timestamp_ms for record in serve(sample / "orders-1"))
    one = bytes_to_read(reader_of(sample / "orders-1", startingtimestamp=str(late)))
    assert one < topic / 8
    assert bytes_to_read(reader_of(sample, endingoffset="0")) == 0


def test_the_offset_index_skips_most_of_a_large_segment(tmp_log_dir: Path) -> None:
    path, made = write_random(tmp_log_dir, "plain", 3)
    largest = max(made.segments, key=lambda segment: len(segment.log))
    middle = largest.batches[len(largest.batches) // 2].last_offset
    spared = reader_of(path, startingoffset=str(middle), endingoffset=str(middle + 1))
    assert 0 < bytes_to_read(spared) < len(largest.log) / 2


def test_small_slices_contain_every_record(sample: Path) -> None:
    reader = reader_of(sample / "orders-0", slicebytes="4096")
    shares = reader.partitions()
    assert len(shares) > 10
    rows = [row for part in shares for batch in reader.read(part) for row in batch.to_pylist()]
    assert [served(row) for row in rows] == list(serve(sample / "orders-0"))
    assert len(reader_of(sample / "orders-0").partitions()) == 1


def test_records_past_the_high_watermark_are_read_on_request_and_those_below_the_log_start_never(tmp_log_dir: Path) -> None:
    path, _ = write_random(tmp_log_dir, "plain", 5)
    every = list(serve(path))
    start, end = every[20].offset, every[40].offset
    for name, offset in (("log-start-offset-checkpoint", start), ("replication-offset-checkpoint", end)):
        (tmp_log_dir / name).write_text(f"0\n1\nrandom 0 {offset}\n")
    assert read_served(tmp_log_dir) == [each for each in every if start <= each.offset < end]
    assert read_served(tmp_log_dir, includeunreplicated="true") == every[20:]


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
        ({"topic": "ordrs"}, "topic: no topic here matches 'ordrs'"),
        ({"topic": "orders-1"}, "no topic here matches 'orders-1'; a partition is selected by the option partition"),
        ({"topic": "orders ordrs"}, "topic: no topic here matches 'ordrs'"),
        ({"path": "{sample}/orders-1", "topic": "prices"}, "topic: no topic here matches 'prices'"),
        ({"startingOffset": "-5"}, "startingoffset is -5, expected a number from 0 to "),
        ({"endingOffset": "-1"}, "endingoffset is -1, expected a number from 0 to "),
        ({"endingTimestamp": "9223372036854775808"}, "endingtimestamp is 9223372036854775808, expected a number from "),
        ({"startingOffset": "1_0"}, "startingoffset is '1_0', expected a whole number"),
        ({"sliceBytes": "0"}, "slicebytes is 0, expected a number from 1 to "),
        ({"startingOffsets": '{"ordrs": {"0": 3}}'}, "startingoffsets: ordrs-0 is not among the selected logs"),
        ({"topic": "prices", "endingOffsets": '{"orders": {"0": 3}}'}, "endingoffsets: orders-0 is not among"),
        ({"view": "newest"}, "view 'newest' is neither latest nor changes"),
        ({"view": "latest", "tombstones": "no"}, "tombstones 'no' is neither keep nor drop"),
        ({"view": "changes", "tombstones": "drop"}, "tombstones is an option of view=latest"),
        ({"tombstones": "drop"}, "tombstones is an option of view=latest"),
        ({"view": "latest", "isolation.level": "read_uncommitted"}, "a view has no aborted data"),
        ({"view": "latest", "startingtimestamp": "1"}, "startingtimestamp cannot be combined with a view"),
        ({"view": "latest", "includecontrol": "true"}, "includecontrol cannot be combined with a view"),
        ({"startingoffset": "1", "startingoffsets": "earliest"}, "startingoffset and startingoffsets are both given"),
        ({"startingoffsets": "latest"}, "startingoffsets 'latest' has no offsets of partitions"),
        ({"startingoffsets": '{"orders": {"0": -1}}'}, "has no offsets of partitions"),
        ({"endingoffsets": '{"orders": {"0": 1.5}}'}, "has no offsets of partitions"),
        ({"endingoffsets": '{"orders": {"x": 1}}'}, "has no offsets of partitions"),
        ({"endingoffsets": '{"orders": 3}'}, "has no offsets of partitions"),
        ({"path": "{empty}"}, "no logs here: no directory is named TOPIC-N"),
        ({"columns": "superseded"}, "column superseded needs the option view"),
        ({"columns": "change", "view": "latest"}, "column change needs the option view"),
    ],
)
def test_a_wrong_option_is_named(sample: Path, tmp_path: Path, options: dict[str, str], message: str) -> None:
    given = {"path": str(sample), **options}
    given["path"] = given["path"].format(sample=sample, empty=tmp_path)
    with pytest.raises(UsageError, match=message):
        KafkaLogReader(given, KafkaLogSource(given).schema()).partitions()
    with pytest.raises(UsageError, match=message):
        compaction.read_arrow(given.pop("path"), options=given)


def test_the_page_documents_every_column_and_option() -> None:
    page = (ROOT / "docs/data-source.md").read_text(encoding="utf-8")
    named = {name.lower() for name in re.findall(r"`([\w.]+)`", page)}
    columns = {name.lower() for name in KafkaLogSource({"batchColumns": "true"}).schema().fieldNames()}
    assert columns | set(OPTIONS) - {"path", "paths"} <= named


@pytest.mark.parametrize("view", [{}, {"view": "latest"}])
def test_a_plan_is_not_used_for_files_that_were_changed(tmp_log_dir: Path, view: dict[str, str]) -> None:
    path, made = write_random(tmp_log_dir, "plain", 1)
    reader = reader_of(path, **view)
    planned, arrow = reader.partitions(), compaction.read_arrow(path, options=view)
    assert [batch for part in planned for batch in reader.read(part)]
    # another file that begins with the same batches, as after a run in place
    first = path / f"{made.segments[0].base_offset:020d}.log"
    content = first.read_bytes()
    first.unlink()
    first.write_bytes(content + content)
    with pytest.raises(StorageError, match=r"0\.log: was changed after this DataFrame was planned, .*; load it again"):
        [list(reader.read(part)) for part in planned]
    with pytest.raises(StorageError, match="was changed after this read was planned"):
        arrow.read_all()


def test_a_read_has_no_option_of_an_earlier_one_in_the_same_process(tmp_path: Path) -> None:
    upload(tmp_path / "export", range(10))
    address, local = local_tiered(tmp_path / "export"), write_log_dir(tmp_path / "local", range(10, 12))
    joined, alone = bytes_to_read(reader_of(address, tail=str(local))), bytes_to_read(reader_of(address))
    assert alone > bytes_to_read(reader_of(tmp_path / "local")) > 0
    assert bytes_to_read(reader_of(address, tail=str(local))) == joined != alone
    ends = [json.loads(end_offsets(address, **options)) for options in ({"tail": str(local)}, {})]
    assert ends == [{"orders": {"0": 12}}, {"orders": {"0": 10}}]


def test_a_directory_in_use_is_not_read(tmp_log_dir: Path) -> None:
    write_random(tmp_log_dir, "plain", 1)
    with held_elsewhere(tmp_log_dir) as holder, pytest.raises(LockedError, match=str(holder)):
        read_rows(tmp_log_dir)
    assert read_rows(tmp_log_dir)


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_without_a_usable_index_the_whole_segment_is_read(tmp_log_dir: Path, kind: str) -> None:
    path, made = write_random(tmp_log_dir, "plain", 3)
    segment = max(made.segments, key=lambda each: len(each.log))
    index, middle = path / f"{segment.base_offset:020d}.{kind}", segment.batches[len(segment.batches) // 2].last_offset
    options = {"startingoffset": str(middle), "endingoffset": str(middle + 1)}
    unusable = [b"x", bytes(each ^ (i % 8 == 7) for i, each in enumerate(segment.index))]
    if kind == "timeindex":
        last, unusable = str(max(each.max_timestamp for each in segment.batches)), [b"x"]
        options = {
            "startingoffset": str(segment.base_offset),
            "endingoffset": str(segment.next_offset),
            "startingtimestamp": last,
        }
    assert bytes_to_read(reader_of(path, **options)) < len(segment.log)
    index.unlink()
    assert bytes_to_read(reader_of(path, **options)) == len(segment.log)
    for content in unusable:
        index.write_bytes(content)
        assert bytes_to_read(reader_of(path, **options)) == len(segment.log)


@pytest.fixture
def dirs(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        log = tmp_path / name / "orders-0"
        log.mkdir(parents=True)
        data_segment(0, range(3)).put(LocalFileSystem(), str(log))
    return [f"{tmp_path}/a", f"{tmp_path}/b"]


@pytest.mark.parametrize("below", [[], [0], [0, 1]], ids=["log directories", "one log", "two logs"])
def test_the_data_source_refuses_it(dirs: list[str], below: list[int]) -> None:
    paths = [f"{path}/orders-0" if at in below else path for at, path in enumerate(dirs)]
    request = ReadRequest.parse({"paths": json.dumps(paths)})
    for read in (lambda: plan_read(request, 0), lambda: read_ends(request)):
        with pytest.raises(UsageError, match="this partition is also in "):
            read()


def test_a_log_that_is_given_twice_is_read_once(dirs: list[str]) -> None:
    request = ReadRequest.parse({"paths": json.dumps([dirs[0], f"{dirs[0]}/orders-0"])})
    assert sum(len(task.slices) for task in plan_read(request, 0)) == 1


@pytest.mark.parametrize("flavour", list(FLAVOURS))
@pytest.mark.parametrize("seed", range(4))
def test_random_logs_are_read_as_a_plain_consumer_reads_them(tmp_log_dir: Path, flavour: str, seed: int) -> None:
    path, made = write_random(tmp_log_dir, flavour, seed)
    assert read_served(tmp_log_dir) == list(serve(path))
    committed = read_served(tmp_log_dir, isolation_level="read_committed")
    assert committed == list(serve(path, committed=True, end_offset=made.last_stable_offset))


def test_every_log_of_the_sample_is_read_to_its_high_watermark_and_not_changed(sample: Path) -> None:
    def content() -> dict[Path, tuple[int, bytes]]:
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in sample.rglob("*") if path.is_file()}

    logs, before = sorted(path for path in sample.glob("*-[0-9]") if path.name != "__cluster_metadata-0"), content()
    expected = sorted(record for log in logs for record in serve(log))
    assert len(expected) > 9000
    assert sorted(read_served(sample)) == expected
    assert content() == before


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


def bounds(record: Served) -> list[tuple[dict[str, int], Callable[[Served], bool]]]:
    """Options around one record, and what they mean."""
    offset, ms = record.offset, record.timestamp_ms
    within = {"startingTimestamp": ms, "endingTimestamp": ms + 1, "startingOffset": offset, "endingOffset": offset + 99}
    later = {"startingTimestamp": ms + 1, "endingOffset": offset + 99}
    return [
        ({"startingOffset": offset, "endingOffset": offset + 1}, lambda r: r.offset == offset),
        ({"startingOffset": offset + 1}, lambda r: r.offset > offset),
        ({"endingOffset": offset}, lambda r: r.offset < offset),
        ({"startingTimestamp": ms}, lambda r: r.timestamp_ms >= ms),
        ({"endingTimestamp": ms}, lambda r: r.timestamp_ms < ms),
        (within, lambda r: r.timestamp_ms == ms and offset <= r.offset < offset + 99),
        (later, lambda r: r.timestamp_ms > ms and r.offset < offset + 99),
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
            given = {name: str(value) for name, value in options.items()}
            assert read_served(path, **given) == [one for one in every if holds(one)], options


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


@pytest.mark.parametrize("view", [{}, {"view": "latest"}])
def test_damage_is_an_error_with_file_and_position(tmp_log_dir: Path, view: dict[str, str]) -> None:
    made = write_segment(tmp_log_dir / "orders-0")
    write_segment(tmp_log_dir / "orders-0", base=300)
    content = bytearray(made.path.read_bytes())
    content[made.positions[3] + 70] ^= 1
    made.path.write_bytes(content)
    with pytest.raises(CorruptLogError, match=rf"{made.path} at byte {made.positions[3]}: batch fails its CRC"):
        read_rows(tmp_log_dir, **view)


@pytest.mark.parametrize("flavour", list(FLAVOURS))
def test_the_rows_are_those_of_the_data_source(tmp_log_dir: Path, flavour: str) -> None:
    write_random(tmp_log_dir, flavour, 1)
    read = compaction.read_arrow(tmp_log_dir, options={"batchColumns": True, "includeControl": True})
    assert read.read_all().to_pylist() == read_rows(tmp_log_dir, batchcolumns="true", includecontrol="true")
    for view in ("latest", "changes"):
        assert compaction.read_arrow(tmp_log_dir, view=view).read_all().to_pylist() == read_rows(tmp_log_dir, view=view)


def test_duckdb_reads_it(sample: Path) -> None:
    latest = compaction.read_arrow([sample], "orders", view="latest", columns=["partition", "offset", "superseded"])
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


def micros(task: ArrowColumns, *stamps: int) -> list[int]:
    columns = SimpleNamespace(timestamp_ms=np.array(stamps, np.int64), offset=np.arange(70, 70 + len(stamps)))
    made = task.batch(SimpleNamespace(columns=columns), 0)["timestamp"]  # type: ignore[arg-type]
    return list(made.cast(pa.int64()).to_pylist())


def test_timestamps_in_nanoseconds_are_not_clamped_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    nanoseconds, limit_ms = 1_760_000_000_000_000_000, (2**63 - 1) // 1000
    first, second = (ArrowColumns(read_schema({"columns": "timestamp"}), TopicPartition("orders", 3)) for _ in range(2))
    assert micros(first, -1, 0, limit_ms, -limit_ms) == [-1000, 0, limit_ms * 1000, -limit_ms * 1000]
    assert not caplog.messages
    clamped = micros(first, 1_760_000_000_000, nanoseconds, -(2**63), nanoseconds + 1)
    assert clamped == [1_760_000_000_000_000, limit_ms * 1000, -limit_ms * 1000, limit_ms * 1000]
    micros(first, nanoseconds)
    (warning,) = caplog.messages
    assert f"first: {nanoseconds} at offset 71 of orders-3" in warning
    assert "dump-log prints them as they are" in warning
    # a later query in the same process has a warning of its own
    micros(second, nanoseconds)
    assert len(caplog.messages) == 2


View = list[tuple[Served, int]]


def newest(records: Iterable[Served], first: int = 0, end: int | None = None, *, tombstones: bool = True) -> View:
    """By a dictionary: the newest record of each key in the order of offsets, with the number of older ones."""
    found: dict[tuple[str, int, bytes], tuple[Served, int]] = {}
    for each in records:
        if each.key is not None and each.offset >= first and (end is None or each.offset < end):
            key = each.topic, each.partition, each.key
            found[key] = each, found[key][1] + 1 if key in found else 0
    return sorted(each for each in found.values() if tombstones or each[0].value is not None)


def viewed(rows: Iterable[dict[str, Any]]) -> View:
    return [(served(row), row["superseded"]) for row in rows]


@pytest.mark.parametrize("memory", [256 << 20, 5 * 48], ids=["in memory", "spooled"])
@pytest.mark.parametrize("flavour", list(FLAVOURS))
def test_random_logs_have_the_view_of_a_dictionary(
    tmp_log_dir: Path, flavour: str, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest, "TABLE_BYTES", memory)
    for seed in range(2):
        log_dir = tmp_log_dir / str(seed)
        path, made = write_random(log_dir, flavour, seed)
        every = list(serve(path, committed=True, end_offset=made.last_stable_offset))
        assert viewed(read_rows(log_dir, view="latest")) == newest(every)
        assert viewed(read_rows(log_dir, view="latest", slicebytes="700", tombstones="drop")) == newest(every, tombstones=False)
        middle, late = (every[len(every) * part // 4].offset for part in (2, 3))
        offsets = {
            "startingoffsets": json.dumps({"random": {"0": middle}}), "endingoffsets": json.dumps({"random": {"0": late}}),
        }  # fmt: skip
        assert viewed(read_rows(log_dir, view="latest", slicebytes="700", **offsets)) == newest(every, middle, late)


def test_changes_are_upserts_and_deletes(sample: Path) -> None:
    rows = read_rows(sample / "ledger-0", view="changes")
    assert viewed(rows) == newest(serve(sample / "ledger-0", committed=True))
    assert {(row["change"], row["value"] is None) for row in rows} == {("upsert", False), ("delete", True)}


def test_columns_are_those_that_are_named(sample: Path) -> None:
    expected = [{"superseded": count, "offset": each.offset} for each, count in newest(serve(sample / "orders-1"))]
    assert read_rows(sample / "orders-1", view="latest", columns="superseded,offset") == expected
    batches = read_rows(sample / "orders-1", view="latest", batchcolumns="true")
    assert [row["superseded"] for row in batches] == [row["superseded"] for row in expected]
    assert all(row["baseOffset"] <= row["offset"] for row in batches)


def test_logs_without_records_in_the_view_have_no_rows(sample: Path) -> None:
    assert read_rows(sample / "never-written-0", view="latest") == []
    assert read_rows(sample / "orders-0", view="latest", startingoffsets='{"orders": {"0": 99999}}') == []


def test_offsets_of_partitions_bound_reads_without_a_view(sample: Path) -> None:
    options = {"startingoffsets": '{"orders": {"0": 1490, "1": -2}}', "endingoffsets": '{"orders": {"1": 7, "2": -1}}'}
    rows = read_rows(sample, topic="orders", **options)
    found: dict[int, list[int]] = {partition: [] for partition in range(3)}
    for row in rows:
        found[row["partition"]].append(row["offset"])
    assert found == {0: list(range(1490, 1500)), 1: list(range(7)), 2: list(range(1500))}


def test_the_offsets_reached_are_the_start_of_the_next_read(sample: Path) -> None:
    reached = end_offsets(str(sample), topic="orders payments-open")
    ends = json.loads(reached)
    assert ends["orders"] == {"0": 1500, "1": 1500, "2": 1500}
    assert read_rows(sample, topic="orders payments-open", startingoffsets=reached, endingoffsets=reached) == []
    committed = json.loads(end_offsets(str(sample), topic="payments-open", view="latest"))
    offsets = [row["offset"] for row in read_rows(sample, topic="payments-open", view="latest")]
    assert max(offsets) < committed["payments-open"]["0"] < ends["payments-open"]["0"]


def test_topics_and_partitions_select_the_logs_of_a_view(sample: Path) -> None:
    tasks = [part.value[0] for part in reader_of(sample, view="latest", topic="orders", partition="prices-0").partitions()]
    assert [str(task.topic_partition) for task in tasks] == ["orders-0", "orders-1", "orders-2", "prices-0"]
