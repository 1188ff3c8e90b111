"""Checkpoint files: what is read, what a change leaves alone, and that a stop never garbles one."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from compaction.errors import CorruptLogError, StorageError
from compaction.files.durable import run_alone
from compaction.log.checkpoint_store import Change, CheckpointFiles, read_checkpoints
from compaction.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    TopicPartition,
)
from tests.disk import FaultyFileSystem, Operation, WatchedFileSystem, crash_states

A, B = TopicPartition("a", 0), TopicPartition("b.c", 12)
PATH = f"/logs/{CLEANER_OFFSETS}"
GARBLED = [b"1\n0\n", b"x\n", b"0\n2\na 0 5\n", b"0\n1\na 0\n", b"0\n1\na 0 x\n", b"\xff\xfe", b"0\n-1\n"]


def update(fs: FaultyFileSystem, name: str, changes: dict[TopicPartition, int | None], like: str | None = None) -> None:
    files = CheckpointFiles(fs)
    for topic_partition, offset in changes.items():
        run_alone(fs, files.file("/logs", name).change(Change(topic_partition, offset, like=like)))


def log_dir(**files: bytes) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir("/logs")
    for name, data in files.items():
        fs.put(f"/logs/{name}", data)
    return fs.settle()


def with_offsets(*entries: str) -> FaultyFileSystem:
    """A directory with these entries of the cleaner."""
    return log_dir(**{CLEANER_OFFSETS: "\n".join(["0", str(len(entries)), *entries, ""]).encode()})


def test_each_file_has_its_own_offsets() -> None:
    files = {LOG_STARTS: b"0\n1\na 0 1\n", HIGH_WATERMARKS: b"0\n1\na 0 2\n", CLEANER_OFFSETS: b"0\n2\na 0 3\nb.c 12 4\n"}
    found = read_checkpoints(log_dir(**files), "/logs")
    assert (found.log_starts, found.high_watermarks, found.cleaner_offsets) == ({A: 1}, {A: 2}, {A: 3, B: 4})
    found.require_valid()


@pytest.mark.parametrize("data", [None, b"", b"0\n", b"0\n0\n"])
def test_missing_and_empty_files_have_no_entries(data: bytes | None) -> None:
    found = read_checkpoints(log_dir(**({} if data is None else {CLEANER_OFFSETS: data})), "/logs")
    found.require_valid()
    assert found.cleaner_offsets == {}


@pytest.mark.parametrize(
    ("files", "recovery_points"),
    [
        pytest.param({}, None, id="no broker has used the directory"),
        pytest.param({RECOVERY_POINTS: b"0\n1\na 0 7\n"}, {A: 7}, id="killed"),
        pytest.param({RECOVERY_POINTS: b"noise"}, {}, id="killed, recovers everything"),
        pytest.param({META_PROPERTIES: b""}, {}, id="killed before the first recovery points were written"),
        pytest.param({META_PROPERTIES: b"", CLEAN_SHUTDOWN: b""}, None, id="shut down cleanly without them"),
        pytest.param({RECOVERY_POINTS: b"0\n1\na 0 7\n", CLEAN_SHUTDOWN: b""}, None, id="shut down cleanly"),
    ],
)
def test_recovery_points_count_if_the_broker_was_killed(
    files: dict[str, bytes], recovery_points: dict[TopicPartition, int] | None
) -> None:
    found = read_checkpoints(log_dir(**files), "/logs")
    found.require_valid()
    assert found.recovery_points == recovery_points


@pytest.mark.parametrize("data", GARBLED)
@pytest.mark.parametrize("name", [CLEANER_OFFSETS, LOG_STARTS, HIGH_WATERMARKS])
def test_a_malformed_file_is_reported_with_its_name_and_not_changed(name: str, data: bytes) -> None:
    fs = log_dir(**{name: data})
    with pytest.raises(CorruptLogError) as caught:
        read_checkpoints(fs, "/logs").require_valid()
    assert caught.value.path == f"/logs/{name}"
    with pytest.raises(CorruptLogError):
        update(fs, name, {A: 7})
    assert fs.read_bytes(f"/logs/{name}") == data


CHANGES = [
    ({A: 7}, b"0\n2\na 0 7\nb.c 12 4\n"),
    ({TopicPartition("new", 1): 9}, b"0\n3\na 0 3\nb.c 12 4\nnew 1 9\n"),
    ({A: None}, b"0\n1\nb.c 12 4\n"),
    ({A: None, B: None}, b"0\n0\n"),
    ({TopicPartition("other", 0): None}, b"0\n2\na 0 3\nb.c 12 4\n"),
]


@pytest.mark.parametrize(("changes", "expected"), CHANGES)
def test_a_change_keeps_other_entries(changes: dict[TopicPartition, int | None], expected: bytes) -> None:
    fs = with_offsets("a 0 3", "b.c 12 4")
    update(fs, CLEANER_OFFSETS, changes)
    assert fs.read_bytes(PATH) == expected
    assert fs.listdir("/logs") == [CLEANER_OFFSETS]


def test_an_unchanged_file_is_not_written() -> None:
    fs = with_offsets("a 0 3")
    done = fs.done
    update(fs, CLEANER_OFFSETS, {A: 3})
    assert fs.done == done


def test_a_new_file_takes_mode_and_owner_of_the_one_named() -> None:
    fs = log_dir(meta=b"")
    fs.inode("/logs/meta").mode = 0o600
    update(fs, CLEANER_OFFSETS, {A: 1}, like="/logs/meta")
    found = fs.stat(PATH)
    assert found is not None and found.mode == 0o600


@pytest.mark.parametrize("before", [None, b"0\n1\na 0 3\n"])
def test_a_crash_at_any_operation_leaves_the_old_or_the_new_file(before: bytes | None) -> None:
    def make(step: int | None) -> FaultyFileSystem:
        fs = log_dir(**({} if before is None else {CLEANER_OFFSETS: before}))
        return fs.run_until(step, lambda fs: update(fs, CLEANER_OFFSETS, {A: 8}))

    seen = set()
    for name, fs in crash_states(make):
        found = fs.read_bytes(PATH) if fs.stat(PATH) is not None else None
        assert found in (before, b"0\n1\na 0 8\n"), name
        seen.add(found)
    assert len(seen) == 2


def syncs_slowly(operation: Operation) -> None:
    """As a disk does."""
    if operation.name == "fsync":
        time.sleep(0.01)


def test_changes_of_many_threads_are_batched_into_few_writes() -> None:
    fs, logs = WatchedFileSystem(log_dir(), syncs_slowly), [TopicPartition("t", number) for number in range(200)]
    files = CheckpointFiles(fs)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda tp: run_alone(fs, files.file("/logs", CLEANER_OFFSETS).change(Change(tp, tp.partition))), logs))
    assert read_checkpoints(fs, "/logs").cleaner_offsets == {tp: tp.partition for tp in logs}
    assert sum(step.name == "rename" for step in fs.log) <= 100
    assert fs.read_bytes(PATH).decode().splitlines()[2:] == [f"t {number} {number}" for number in range(200)]


def test_an_entry_is_returned_during_a_write_without_reading_the_file_again() -> None:
    logs = [TopicPartition("t", number) for number in range(200)]
    fs = WatchedFileSystem(with_offsets(*(f"t {number} {number}" for number in range(200))), syncs_slowly)
    files = CheckpointFiles(fs)

    def move(tp: TopicPartition) -> int | None:
        before = files.file("/logs", CLEANER_OFFSETS).offset(tp)
        run_alone(fs, files.file("/logs", CLEANER_OFFSETS).change(Change(tp, 1000, (before,))))
        return before

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(move, logs)) == list(range(200))
    assert read_checkpoints(fs, "/logs").cleaner_offsets == dict.fromkeys(logs, 1000)
    # once by the run, once by the line above
    assert sum((step.name, step.path) == ("read", PATH) for step in fs.log) == 2


def test_a_change_is_durable_on_return() -> None:
    fs = with_offsets("a 0 3")
    run_alone(fs, CheckpointFiles(fs).file("/logs", CLEANER_OFFSETS).change(Change(A, 9)))
    for seed in (None, 1, 2, 3):
        assert read_checkpoints(fs.after_power_loss(seed), "/logs").cleaner_offsets == {A: 9}


@pytest.mark.parametrize(("expected", "after"), [((3,), 9), ((None,), 3), ((4,), 3), (None, 9)])
def test_a_change_may_expect_the_current_value(expected: tuple[int | None] | None, after: int) -> None:
    fs = with_offsets("a 0 3")
    run_alone(fs, CheckpointFiles(fs).file("/logs", CLEANER_OFFSETS).change(Change(A, 9, expected)))
    assert read_checkpoints(fs, "/logs").cleaner_offsets == {A: after}


def test_changes_by_another_process_are_detected() -> None:
    fs = with_offsets("a 0 3")
    files = CheckpointFiles(fs)
    assert files.file("/logs", CLEANER_OFFSETS).offset(A) == 3
    fs.put(PATH, b"0\n2\na 0 5\nb.c 12 6\n")
    assert files.file("/logs", CLEANER_OFFSETS).offset(A) == 5
    run_alone(fs, files.file("/logs", CLEANER_OFFSETS).change(Change(A, 7)))
    assert read_checkpoints(fs, "/logs").cleaner_offsets == {A: 7, B: 6}


def test_all_waiting_threads_fail_on_a_malformed_file() -> None:
    fs = log_dir(**{CLEANER_OFFSETS: b"noise"})
    files = CheckpointFiles(fs)

    def change(number: int) -> bool:
        try:
            run_alone(fs, files.file("/logs", CLEANER_OFFSETS).change(Change(TopicPartition("t", number), 1)))
        except CorruptLogError:
            return True
        return False

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(change, range(32)))
    assert fs.read_bytes(PATH) == b"noise"


def test_an_unreadable_checkpoint_is_damage_of_its_directory() -> None:
    def broken(operation: Operation) -> None:
        if operation.name == "read":
            raise StorageError("cannot read: Input/output error", path=operation.path)

    found = read_checkpoints(WatchedFileSystem(with_offsets(), broken), "/logs")
    assert [str(error) for error in found.damage] == [f"{PATH}: cannot read: Input/output error"]
    with pytest.raises(StorageError):
        found.require_valid()
