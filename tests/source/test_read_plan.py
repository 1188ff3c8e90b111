"""Which parts of which segments a read covers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from compaction.errors import LockedError, StorageError, UsageError
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.log.checkpoint_store import read_checkpoints
from compaction.log.discover import Selector, discover
from compaction.log.read_log import ReadOptions, read_log
from compaction.rules.log_view import Segment
from compaction.source.data_source import KafkaLogReader, KafkaLogSource, end_offsets
from compaction.source.read_plan import OPTIONS, ReadRequest, first_offset_since, plan_read, positions_of, read_ends
from tests.exports.exports import local_tiered, upload, write_log_dir
from tests.files.test_lock import held_elsewhere
from tests.log.logs import data_segment
from tests.oracle.segments import NaiveSegment
from tests.source.plain_consumer import read_rows, reader_of, serve, served
from tests.source.random_partition import write_random

ROOT = Path(__file__).resolve().parents[2]


def test_the_directory_of_one_partition_can_be_read(sample: Path) -> None:
    assert [served(row) for row in read_rows(sample / "orders-1")] == list(serve(sample / "orders-1"))


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


def test_records_past_the_high_watermark_are_read_only_on_request(tmp_log_dir: Path) -> None:
    path, _ = write_random(tmp_log_dir, "plain", 5)
    middle = list(serve(path))[20].offset
    (tmp_log_dir / "replication-offset-checkpoint").write_text(f"0\n1\nrandom 0 {middle}\n")
    assert [served(row) for row in read_rows(tmp_log_dir)] == list(serve(path, end_offset=middle))
    assert [served(row) for row in read_rows(tmp_log_dir, includeunreplicated="true")] == list(serve(path))


def test_records_below_the_log_start_are_not_read(tmp_log_dir: Path) -> None:
    path, _ = write_random(tmp_log_dir, "plain", 5)
    start = list(serve(path))[20].offset
    (tmp_log_dir / "log-start-offset-checkpoint").write_text(f"0\n1\nrandom 0 {start}\n")
    assert [served(row) for row in read_rows(tmp_log_dir)] == [one for one in serve(path) if one.offset >= start]


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
        ({"columns": "superseded"}, "column superseded needs the option view"),
        ({"columns": "change", "view": "latest"}, "column change needs the option view"),
    ],
)
def test_a_wrong_option_is_named(sample: Path, options: dict[str, str], message: str) -> None:
    given = {"path": str(sample), **options}
    given["path"] = given["path"].format(sample=sample)
    with pytest.raises(UsageError, match=message):
        KafkaLogReader(given, KafkaLogSource(given).schema()).partitions()


def test_a_directory_without_logs_is_an_error_and_not_an_empty_frame(tmp_path: Path) -> None:
    given = {"path": str(tmp_path)}
    with pytest.raises(UsageError, match="no logs here: no directory is named TOPIC-N"):
        KafkaLogReader(given, KafkaLogSource(given).schema()).partitions()


def test_the_page_documents_every_column_and_option() -> None:
    page = (ROOT / "docs/data-source.md").read_text(encoding="utf-8")
    named = {name.lower() for name in re.findall(r"`([\w.]+)`", page)}
    columns = {name.lower() for name in KafkaLogSource({"batchColumns": "true"}).schema().fieldNames()}
    assert columns | set(OPTIONS) - {"path", "paths"} <= named


@pytest.mark.parametrize("view", [{}, {"view": "latest"}])
def test_a_plan_is_not_used_for_files_that_were_changed(tmp_log_dir: Path, view: dict[str, str]) -> None:
    path, made = write_random(tmp_log_dir, "plain", 1)
    reader = reader_of(path, **view)
    planned = reader.partitions()
    assert [batch for part in planned for batch in reader.read(part)]
    # another file that begins with the same batches, as after a run in place
    first = path / f"{made.segments[0].base_offset:020d}.log"
    content = first.read_bytes()
    first.unlink()
    first.write_bytes(content + content)
    with pytest.raises(StorageError, match=r"0\.log: was changed after this DataFrame was planned, .*; load it again"):
        [list(reader.read(part)) for part in planned]


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


FS = MixedFileSystem()


def largest(log_dir: Path, flavour: str = "plain") -> tuple[str, Segment, NaiveSegment]:
    """The largest segment of a random log: the log's path, the segment, and its twin that the plain reader made."""
    path, made = write_random(log_dir, flavour, 3)
    (location,) = discover(FS, [str(log_dir)], Selector())
    view = read_log(FS, location, read_checkpoints(FS, str(log_dir)), ReadOptions(now_ms=0))
    naive = max(made.segments, key=lambda segment: len(segment.log))
    return str(path), next(each for each in view.segments if each.base_offset == naive.base_offset), naive


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_without_a_usable_index_the_whole_segment_is_read(tmp_log_dir: Path, kind: str) -> None:
    path, segment, _ = largest(tmp_log_dir)
    index = Path(path) / f"{segment.base_offset:020d}.{kind}"
    data = index.read_bytes()
    contents = [None, b"x"] if kind == "timeindex" else [None, b"x", bytes(each ^ (i % 8 == 7) for i, each in enumerate(data))]
    for content in contents:
        index.unlink(missing_ok=True)
        if content is not None:
            index.write_bytes(content)
        if kind == "index":
            middle = (segment.base_offset + segment.next_offset) // 2
            assert positions_of(FS, path, segment, middle, middle) == (0, segment.size_bytes)
        else:
            assert first_offset_since(FS, path, segment, segment.largest_timestamp_ms) == segment.base_offset


def test_records_below_the_first_offset_since_a_time_are_older(tmp_log_dir: Path) -> None:
    path, segment, naive = largest(tmp_log_dir)
    records = [record for batch in naive.batches for record in batch.records()]
    found = {first_offset_since(FS, path, segment, each.timestamp): each.timestamp for each in records}
    assert len(found) > 2
    for offset, time in found.items():
        assert all(record.timestamp < time for record in records if record.offset < offset)


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
