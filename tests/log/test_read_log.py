"""Finding logs: which directories are logs, and which of them a call asks for. Reading one at rest: sizes and offsets of its
segments, its bounds, and its producers; then changes since it was read, and the byte ranges that tasks read: they cover a
segment without gaps, and never trust a damaged index."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from compaction.config.entries import LONG_MAX
from compaction.errors import CorruptLogError, StorageError, UsageError
from compaction.files.filesystem import join
from compaction.files.local import LocalFileSystem
from compaction.files.overlay import OverlayFileSystem
from compaction.formats.producer_snapshot import ProducerEntry, write_snapshot
from compaction.log.checkpoint_store import Checkpoints
from compaction.log.discover import Selector, check_log_dirs, discover
from compaction.log.read_log import (
    ByteRange,
    ReadOptions,
    cut_segment,
    has_changed,
    read_log,
    read_segments,
    require_same_indexes,
    require_unchanged,
)
from compaction.names import INDEX, LOG, SNAPSHOT, TIMEINDEX, TopicPartition, segment_file
from compaction.rules.log_view import AbortedTxn, LogView
from tests.disk import FaultyFileSystem
from tests.log.logs import (
    NOW_MS,
    TOPIC,
    Built,
    build,
    data_batch,
    data_segment,
    idempotent_batch,
    location,
    marker,
    put_snapshot,
    txn_batch,
)
from tests.recovery.small_logs import HERE, log_with

FS = LocalFileSystem()
ODD = [
    "orders-0.0123456789abcdef0123456789abcdef-delete",
    "orders-1.0123456789abcdef0123456789abcdef-future",
    "orders-2.0123456789abcdef0123456789abcdef-stray",
    "__cluster_metadata-0",
    "remote-log-index-cache",
    "lost+found",
    "orders",
    "orders-",
    "-3",
    "orders-x",
    "orders-99999999999",
    "orders-4294967296",
    "Ünknown-0",
    ".hidden",
]


def make(root: Path, *names: str) -> str:
    for name in names:
        (root / name).mkdir(parents=True)
    return str(root)


def found(log_dir: str | list[str], topics: list[str] | None = None, partitions: list[str] | None = None) -> list[str]:
    dirs = check_log_dirs(FS, [log_dir] if isinstance(log_dir, str) else log_dir)
    return [str(log.topic_partition) for log in discover(FS, dirs, Selector.parse(topics or [], partitions or []))]


def test_logs_are_found_by_topic_and_partition_number(tmp_path: Path) -> None:
    log_dir = make(tmp_path, "orders-10", "orders-2", "a-b-0", "__consumer_offsets-7", "a.b_c-0")
    assert found(log_dir) == ["__consumer_offsets-7", "a-b-0", "a.b_c-0", "orders-2", "orders-10"]


@pytest.mark.parametrize("name", ODD)
def test_other_directories_are_skipped(tmp_path: Path, name: str) -> None:
    assert found(make(tmp_path, name, "orders-0")) == ["orders-0"]


def test_a_linked_directory_is_found_once_and_a_file_is_no_log(tmp_path: Path) -> None:
    log_dir = make(tmp_path / "logs", "orders-0")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "logs/moved-0").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "logs/alias-0").symlink_to(tmp_path / "logs/orders-0")
    (tmp_path / "logs/broken-0").symlink_to(tmp_path / "nowhere")
    (tmp_path / "logs/file-0").touch()
    (tmp_path / "link").symlink_to(log_dir)
    for given in ([log_dir], [log_dir, log_dir + "/", str(tmp_path / "link"), log_dir + "/../logs"]):
        assert found(given) == ["moved-0", "orders-0"]


SELECTIONS = [
    ([], [], ["a-0", "a-1", "ab-0", "b-0"]),
    (["a"], [], ["a-0", "a-1"]),
    (["a.*"], [], ["a-0", "a-1", "ab-0"]),
    (["a", "b"], [], ["a-0", "a-1", "b-0"]),
    (["nothing"], [], []),
    ([], ["a-1"], ["a-1"]),
    (["b"], ["a-1"], ["a-1", "b-0"]),
]


@pytest.mark.parametrize(("topics", "partitions", "expected"), SELECTIONS)
def test_topics_and_partitions_select_logs(
    tmp_path: Path, topics: list[str], partitions: list[str], expected: list[str]
) -> None:
    assert found(make(tmp_path, "a-0", "a-1", "ab-0", "b-0"), topics, partitions) == expected


NEITHER = "a broker starts on neither: move away the one whose disk has failed"


@pytest.fixture
def disks(tmp_path: Path) -> list[str]:
    """A broker's two disks with one partition on both."""
    dirs = [make(tmp_path / name, "t-0", f"only-{ord(name)}") for name in ("a", "b")]
    for log_dir in dirs:
        Path(log_dir, "meta.properties").write_text("version=1\nnode.id=1\n")
    return dirs


def test_a_partition_in_two_directories_is_an_error_that_names_both(disks: list[str]) -> None:
    for partitions in ([], ["t-0"]):
        with pytest.raises(UsageError, match=rf"/a/t-0: this partition is also in .*/b/t-0; {NEITHER}"):
            found(disks, partitions=partitions)
    # what is not selected is not read twice
    assert found(disks, topics=["only"]) == ["only-97", "only-98"]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("0\n1\nt 0 7\n", "0\n0\n", 0),
        ("0\n0\n", "0\n1\nt 0 7\n", 1),
        ("0\n1\nt 0 7\n", "0\n1\nt 0 5\n", None),
        ("garbled", "0\n1\nt 0 5\n", 1),
        ("0\n1\nt 0 5\n", "garbled", 0),
    ],
)
def test_of_a_partition_that_a_broker_moved_the_one_is_named_that_it_would_keep(
    disks: list[str], first: str, second: str, kept: int | None
) -> None:
    for log_dir, text in zip(disks, (first, second), strict=True):
        Path(log_dir, "cleaner-offset-checkpoint").write_text(text)
    told = NEITHER
    if kept is not None:
        told = f"would keep {disks[kept]}/t-0, whose cleaner-offset-checkpoint has it: "
        told += f"move {disks[1 - kept]}/t-0 away, or leave out its log"
    with pytest.raises(UsageError, match=f"this partition is also in .*/b/t-0; .*{told}"):
        found(disks)


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ("version=1\nnode.id=2\n", "they are replicas of brokers 1 and 2: give the directories of one broker in a call"),
        ("version=9\n", NEITHER),
        ("node.id", NEITHER),
    ],
)
def test_replicas_of_two_brokers_are_not_read_as_one_log(disks: list[str], properties: str, told: str) -> None:
    Path(disks[1], "meta.properties").write_text(properties)
    with pytest.raises(UsageError, match=told):
        found(disks)


DAY_MS = 86_400_000


def read(fs: FaultyFileSystem, now_ms: int = NOW_MS, **checkpoints: int) -> LogView:
    found = {name: {TOPIC: offset} for name, offset in checkpoints.items()}
    return read_log(fs, HERE, Checkpoints("/logs", **found), ReadOptions(now_ms))  # type: ignore[arg-type]


def test_a_segment_has_the_properties_of_its_files() -> None:
    built = build(100, [data_batch(offset) for offset in range(100, 160, 2)], interval=256, txns=[AbortedTxn(1, 90, 104, 105)])
    fs = log_with(built, data_segment(200, [200]))
    segment = read(fs).segments[0]
    assert (segment.base_offset, segment.next_offset) == (100, 159)
    assert segment.size_bytes == len(built.files[LOG])
    assert (segment.index_bytes, segment.time_index_bytes) == (len(built.files[INDEX]), len(built.files[TIMEINDEX]))
    assert (segment.first_batch_timestamp_ms, segment.largest_timestamp_ms) == (NOW_MS + 100, NOW_MS + 158)
    assert segment.aborted_txns == (AbortedTxn(1, 90, 104, 105),)


@pytest.mark.parametrize("kind", [INDEX, TIMEINDEX])
def test_a_preallocated_tail_is_ignored(kind: str) -> None:
    built = build(0, [data_batch(offset) for offset in range(40)], interval=256)
    fs = log_with(built, data_segment(200, [200]))
    expected = read(fs)
    name = join(HERE.path, segment_file(0, kind))
    mtime_ns = expected.segments[0].mtime_ns
    fs.put(name, built.files[kind] + bytes(10 * 1024 * 1024 // 24 * 24))
    found = read(fs)
    assert (found, found.segments[0].mtime_ns) == (expected, mtime_ns)


def test_an_empty_segment_ends_where_it_begins() -> None:
    segment = read(log_with(data_segment(50, []), data_segment(60, [60]))).segments[0]
    assert (segment.next_offset, segment.size_bytes, segment.first_batch_timestamp_ms) == (50, 0, LONG_MAX)


def test_timestamps_of_the_active_segment_are_read_past_its_index() -> None:
    built = data_segment(0, [5, 6])
    fs = log_with(Built(0, {LOG: built.files[LOG], INDEX: b"", TIMEINDEX: b""}))
    assert read(fs).segments[0].largest_timestamp_ms == NOW_MS + 6


def test_a_directory_without_segments_is_an_empty_log() -> None:
    view = read(log_with(), log_starts=17)
    assert (view.segments, view.log_start_offset, view.log_end_offset, view.last_stable_offset) == ((), 17, 17, 17)


BOUNDS = [
    # log start, high watermark -> log start, high watermark
    ({}, (100, 302)),
    ({"log_starts": 50}, (100, 302)),
    ({"log_starts": 150}, (150, 302)),
    ({"log_starts": 302}, (302, 302)),
    ({"high_watermarks": 200}, (100, 200)),
    ({"high_watermarks": 50}, (100, 100)),
    ({"high_watermarks": 999}, (100, 302)),
    ({"log_starts": 250, "high_watermarks": 200}, (250, 250)),
    # the cleaner's offset is not compared with the others
    ({"cleaner_offsets": 9999}, (100, 302)),
]


@pytest.mark.parametrize(("checkpoints", "expected"), BOUNDS)
def test_the_bounds_follow_checkpoints_and_segments(checkpoints: dict[str, int], expected: tuple[int, int]) -> None:
    view = read(log_with(data_segment(100, [105]), data_segment(300, [301])), **checkpoints)
    assert (view.log_start_offset, view.high_watermark) == expected
    assert (view.log_end_offset, view.last_stable_offset) == (302, expected[1])
    assert view.cleaner_checkpoint == checkpoints.get("cleaner_offsets")


def test_a_log_start_past_the_log_end_is_an_error() -> None:
    with pytest.raises(CorruptLogError, match="ends at offset 302, before its log start 303"):
        read(log_with(data_segment(300, [301])), log_starts=303)


def test_a_malformed_checkpoint_fails_the_log() -> None:
    damaged = Checkpoints("/logs", damage=(CorruptLogError("line 1: version 9", path="/logs/x-checkpoint"),))
    with pytest.raises(CorruptLogError, match="version 9"):
        read_log(log_with(data_segment(0, [1])), HERE, damaged, ReadOptions(NOW_MS))


def producers_of(view: LogView) -> dict[int, tuple[int, int]]:
    return {entry.producer_id: (entry.last_data_offset, entry.current_txn_first_offset) for entry in view.producers}


def with_transactions(tail: Sequence[bytes] = ()) -> FaultyFileSystem:
    return log_with(
        build(0, [idempotent_batch(0, 1), txn_batch(1, 2), idempotent_batch(2, 3)]),
        build(10, [txn_batch(10, 2, sequence=1), marker(11, 2, commit=True), txn_batch(12, 4), *tail]),
    )


def producer(producer_id: int, last_data_offset: int, current_txn_first_offset: int = -1) -> ProducerEntry:
    return ProducerEntry(producer_id, 0, 0, last_data_offset, 0, NOW_MS, -1, current_txn_first_offset)


ALL = {1: (0, -1), 2: (10, -1), 3: (2, -1), 4: (12, 12)}
#: if it is the newest snapshot, at offset 10, the producers before that it lacks are not replayed
EIGHT = write_snapshot([producer(8, 9)])
AFTER_EIGHT = {2: (10, -1), 4: (12, 12), 8: (9, -1)}
#: snapshots by offset, log start -> producers
SNAPSHOTS: list[tuple[dict[int, bytes], int, dict[int, tuple[int, int]]]] = [
    ({}, 0, ALL),
    # batches below the log start are not replayed
    ({}, 2, {2: (10, -1), 3: (2, -1), 4: (12, 12)}),
    ({5: write_snapshot([producer(99, 4)]), 10: write_snapshot([producer(2, 1, 1), producer(8, 9)])}, 0, AFTER_EIGHT),
    # within a segment, and at the log end
    ({12: write_snapshot([])}, 0, {4: (12, 12)}),
    ({13: write_snapshot([producer(4, 12, 12)])}, 0, {4: (12, 12)}),
    # a malformed one is skipped for an older one
    *(({10: EIGHT, 13: damage}, 0, AFTER_EIGHT) for damage in (b"", b"\0\1", b"\0\1" + bytes(8), b"\0\7garbage")),
    # outside the log
    *(({offset: EIGHT}, 0, ALL) for offset in (0, 14, 99)),
]


@pytest.mark.parametrize(("snapshots", "log_start", "producers"), SNAPSHOTS)
def test_replay_starts_at_the_newest_valid_snapshot_of_the_log(
    snapshots: dict[int, bytes], log_start: int, producers: dict[int, tuple[int, int]]
) -> None:
    fs = with_transactions()
    for offset, data in snapshots.items():
        fs.put(join(HERE.path, segment_file(offset, SNAPSHOT)), data)
    view = read(fs, log_starts=log_start)
    assert (producers_of(view), view.last_stable_offset) == (producers, 12)


def test_an_open_transaction_below_the_log_start_bounds_the_stable_offset_at_the_log_start() -> None:
    fs = log_with(build(0, [txn_batch(1, 2), data_batch(5)]), data_segment(10, [10]))
    put_snapshot(fs, HERE.path, 10, [producer(2, 1, 1)])
    assert read(fs, log_starts=5).last_stable_offset == 5


def test_damage_in_replayed_batches_is_reported_with_its_position() -> None:
    fs = with_transactions()
    name = join(HERE.path, segment_file(0, LOG))
    data = bytearray(fs.read_bytes(name))
    at = len(idempotent_batch(0, 1))
    data[at + 16] = 9
    fs.put(name, bytes(data))
    with pytest.raises(CorruptLogError) as caught:
        read(fs)
    assert (caught.value.path, caught.value.position) == (name, at)


def test_entries_of_other_logs_are_ignored() -> None:
    other = {TopicPartition("orders", 1): 5}
    view = read_log(log_with(data_segment(0, [1])), HERE, Checkpoints("/logs", other, other, other), ReadOptions(NOW_MS))
    assert (view.log_start_offset, view.high_watermark, view.cleaner_checkpoint) == (0, 2, None)


def test_many_producers_over_many_blocks_are_all_found() -> None:
    batches = [idempotent_batch(offset, offset % 37, sequence=offset // 37) for offset in range(2000)]
    found = producers_of(read(log_with(build(0, batches))))
    assert found == {offset % 37: (offset, -1) for offset in range(2000 - 37, 2000)}


@pytest.mark.parametrize(
    ("newest", "recovery_points", "producers"),
    [
        pytest.param(b"\0\1garbage", None, [1, 2], id="malformed"),
        pytest.param(b"\0\1garbage", {}, [], id="malformed, killed"),
        pytest.param(write_snapshot([]), None, [], id="valid"),
        pytest.param(None, None, [], id="none"),
    ],
)
def test_producers_that_a_malformed_snapshot_hides_are_retained_though_they_have_expired(
    newest: bytes | None, recovery_points: dict[TopicPartition, int] | None, producers: list[int]
) -> None:
    """Kafka finds them in the batches and keeps their emptied batches."""
    fs = log_with(build(0, [idempotent_batch(0, 1), idempotent_batch(1, 2)]), data_segment(10, [10]))
    if newest is not None:
        fs.put(join(HERE.path, segment_file(10, SNAPSHOT)), newest)
    view = read_log(fs, HERE, Checkpoints("/logs", recovery_points=recovery_points), ReadOptions(NOW_MS + 3 * DAY_MS, DAY_MS))
    assert [one.producer_id for one in view.producers] == producers


@pytest.mark.parametrize(
    ("recovery_points", "last_data_offset"),
    [
        pytest.param(None, 0, id="shut down cleanly"),
        pytest.param({}, -1, id="killed, never flushed"),
        pytest.param({TOPIC: 15}, -1, id="killed, recovered from the marker's segment on"),
        pytest.param({TOPIC: 20}, 0, id="killed, recovered from a later segment on"),
    ],
)
def test_a_killed_broker_forgets_expired_producers_before_each_segment_that_it_recovers(
    recovery_points: dict[TopicPartition, int] | None, last_data_offset: int
) -> None:
    """The batch is a day old, the marker after it is not."""
    segments = build(0, [idempotent_batch(0, 7)]), build(10, [marker(10, 7, commit=False)]), data_segment(20, [20])
    fs = log_with(*segments)
    batch = ProducerEntry(7, 0, 0, 0, 0, NOW_MS + 10, 3, -1)
    put_snapshot(fs, HERE.path, 20, [batch])
    view = read_log(fs, HERE, Checkpoints("/logs", recovery_points=recovery_points), ReadOptions(NOW_MS + DAY_MS + 5, DAY_MS))
    assert [(one.producer_id, one.last_data_offset) for one in view.producers] == [(7, last_data_offset)]


def test_a_killed_broker_recovers_a_segment_that_begins_before_the_log_start_and_past_the_recovery_point() -> None:
    """As ``LogLoader.recoverLog``: it recovers all segments, also from their middle."""
    fs = log_with(build(100, [data_batch(100), txn_batch(103, 4)]), data_segment(110, [110]))
    checkpoints = Checkpoints("/logs", {TOPIC: 102}, recovery_points={})
    view = read_log(fs, HERE, checkpoints, ReadOptions(NOW_MS))
    assert producers_of(view) == {4: (103, 103)}
    assert view.last_stable_offset == 103


def test_a_snapshot_is_read_again_if_it_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    fs, read_bytes, reads = with_transactions(), FaultyFileSystem.read_bytes, list[str]()
    put_snapshot(fs, HERE.path, 10, [producer(8, 9)])

    def wrong_once(files: FaultyFileSystem, path: str, *bounds: int) -> bytes:
        data = read_bytes(files, path, *bounds)
        if path.endswith(SNAPSHOT):
            reads.append(path)
            return data if reads[1:] else b"\xff" + data[1:]
        return data

    monkeypatch.setattr(FaultyFileSystem, "read_bytes", wrong_once)
    assert producers_of(read(fs)) == AFTER_EIGHT
    assert len(reads) > 1


FS = LocalFileSystem()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of two segments."""
    made = Path(location(str(tmp_path)).path)
    made.mkdir()
    for segment in (data_segment(0, [5, 10]), data_segment(100, [105])):
        segment.put(FS, str(made))
    return made


def view_of(path: Path) -> LogView:
    log_dir = str(path.parent)
    return read_log(FS, location(log_dir), Checkpoints(log_dir), ReadOptions(NOW_MS))


def truncate(log: Path) -> None:
    os.truncate(log, 10)


def touch(log: Path) -> None:
    os.utime(log, ns=(1, 1))


def exchange(log: Path) -> None:
    """By a file of the same bytes and modification time."""
    copy, found = log.with_suffix(".copy"), log.stat()
    copy.write_bytes(log.read_bytes())
    os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
    copy.rename(log)


CHANGES: list[Callable[[Path], object]] = [truncate, touch, exchange, Path.unlink]


def test_a_log_that_was_not_written_to_has_not_changed(path: Path) -> None:
    view = view_of(path)
    assert not has_changed(FS, view)
    require_unchanged(FS, FS, str(path), view.segments)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_segment_is_detected(path: Path, change: Callable[[Path], object]) -> None:
    view = view_of(path)
    change(path / segment_file(0, LOG))
    assert has_changed(FS, view)
    with pytest.raises(StorageError, match=r"0{20}\.log: segment has changed since it was read; the log is unchanged"):
        require_unchanged(FS, FS, str(path), view.segments)


def test_a_new_segment_and_a_removed_log_are_changes(path: Path) -> None:
    view = view_of(path)
    data_segment(200, [200]).put(FS, str(path))
    assert has_changed(FS, view)
    path.rename(path.with_name("orders-1"))
    assert has_changed(FS, view)


def test_a_renamed_segment_is_followed_through_an_overlay_to_the_disk(path: Path) -> None:
    view, overlay = view_of(path), OverlayFileSystem(FS)
    overlay.rename(str(path / segment_file(0, LOG)), str(path / segment_file(0, LOG, ".swap")))
    overlay.rename(str(path / segment_file(0, LOG, ".swap")), str(path / segment_file(0, LOG)))
    require_unchanged(overlay, FS, str(path), view.segments)
    touch(path / segment_file(0, LOG))
    with pytest.raises(StorageError, match="segment has changed"):
        require_unchanged(overlay, FS, str(path), view.segments)


@pytest.mark.parametrize(("base", "kind"), [(0, TIMEINDEX), (100, TIMEINDEX)])
def test_a_copied_index_with_as_many_other_entries_is_refused(path: Path, base: int, kind: str) -> None:
    """As when the disk returns zeros for a page between the plan and the copy: the index of the last segment is valid then."""
    segments = view_of(path).segments
    require_same_indexes(FS, str(path), segments)
    index = path / segment_file(base, kind)
    assert any(index.read_bytes())
    index.write_bytes(bytes(index.stat().st_size))
    with pytest.raises(StorageError, match="indexes have changed since they were read"):
        require_same_indexes(FS, str(path), segments)


OFFSETS = range(100, 1100)


@pytest.fixture
def fs() -> FaultyFileSystem:
    """A segment of a thousand batches with an index entry for every few of them."""
    return log_with(data_segment(100, OFFSETS, interval=500))


def cut(fs: FaultyFileSystem, target_bytes: int) -> tuple[ByteRange, ...]:
    segment = read_segments(fs, HERE.path)[0]
    return cut_segment(fs, HERE.path, segment, target_bytes)


@pytest.mark.parametrize("target_bytes", [1_000, 10_000, 50_000, 60_000, 10**9])
def test_the_ranges_cover_the_segment_at_batch_boundaries(fs: FaultyFileSystem, target_bytes: int) -> None:
    ranges = cut(fs, target_bytes)
    data = fs.read_bytes(join(HERE.path, segment_file(100, LOG)))
    assert [each.start for each in ranges] == [0, *(each.end for each in ranges[:-1])]
    assert [each.first_offset for each in ranges] == [100, *(each.end_offset for each in ranges[:-1])]
    assert (ranges[-1].end, ranges[-1].end_offset) == (len(data), 1100)
    assert all(int.from_bytes(data[each.start : each.start + 8], "big") == each.first_offset for each in ranges)
    # a segment slightly larger than the target is one range
    assert (len(ranges) > 1) == (target_bytes < len(data) * 2 / 3)


@pytest.mark.parametrize("entry", ["other offset", "other position", "past the end", "none, as the index is missing"])
def test_an_index_entry_without_its_batch_is_not_a_boundary(fs: FaultyFileSystem, entry: str) -> None:
    name = join(HERE.path, segment_file(100, INDEX))
    segment = read_segments(fs, HERE.path)[0]
    index = bytearray(fs.read_bytes(name))
    for at in range(0, len(index), 8):
        if entry == "other offset":
            index[at + 3] ^= 1
        elif entry == "other position":
            index[at + 7] ^= 1
        else:
            index[at + 4 : at + 8] = (segment.size_bytes - 10 + at).to_bytes(4, "big")
    fs.put(name, bytes(index))
    if entry.startswith("none"):
        fs.unlink(name)
    assert cut_segment(fs, HERE.path, segment, 10_000) == (ByteRange(0, segment.size_bytes, 100, 1100),)


def test_a_batch_with_an_invalid_checksum_is_not_a_boundary(fs: FaultyFileSystem) -> None:
    segment = read_segments(fs, HERE.path)[0]
    before = cut_segment(fs, HERE.path, segment, 10_000)
    name = join(HERE.path, segment_file(100, LOG))
    data = bytearray(fs.read_bytes(name))
    data[before[1].start + 60] ^= 1
    fs.put(name, bytes(data))
    after = cut_segment(fs, HERE.path, segment, 10_000)
    assert before[1].start not in [each.start for each in after]
    assert len(after) == len(before) - 1
