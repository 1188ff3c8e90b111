"""After a kill, what lies beside the segments from the recovery point on is what their batches say."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from compaction.files.filesystem import join
from compaction.formats.checkpoints import EpochEntry, EpochRange, assign_epochs, format_leader_epochs, parse_leader_epochs
from compaction.log.checkpoint_store import Checkpoints
from compaction.log.read_log import read_segments
from compaction.names import INDEX, LEADER_EPOCHS, TIMEINDEX
from compaction.recovery.recover import recover_log
from tests.disk import FaultyFileSystem
from tests.log.logs import TOPIC, build, data_batch, data_segment, tree
from tests.recovery.small_logs import HERE, PATH, SMALL, log_with, name

EPOCHS = join(PATH, LEADER_EPOCHS)


CLEAN = Checkpoints("/logs", clean_shutdown=True)


def killed(point: int) -> Checkpoints:
    return Checkpoints("/logs", recovery_points={TOPIC: point})


def text(*entries: tuple[int, int]) -> str:
    return format_leader_epochs(EpochEntry(*each) for each in entries)


def three_segments() -> FaultyFileSystem:
    """Two inactive ones with several index entries, and an active one, of one leader epoch."""
    first, second = ([data_batch(offset) for offset in range(base, base + 90, 3)] for base in (0, 100))
    fs = log_with(
        build(0, first, interval=SMALL), build(100, second, interval=SMALL), data_segment(200, [200, 203], interval=SMALL)
    )
    fs.put(EPOCHS, text((0, 0)).encode())
    return fs


def lose_entries(fs: FaultyFileSystem, base: int) -> None:
    """Removes one entry of each index, in the middle: they are valid, and their last entries are right."""
    for kind, size in ((INDEX, 8), (TIMEINDEX, 12)):
        data = fs.read_bytes(name(base, kind))
        fs.put(name(base, kind), data[:size] + data[2 * size :])


@pytest.mark.parametrize(("point", "rebuilt"), [(0, [0, 100]), (150, [100]), (200, []), (10**6, [])])
def test_indexes_that_were_not_flushed_are_rebuilt_from_the_recovery_point_on(point: int, rebuilt: list[int]) -> None:
    fs = three_segments()
    whole = tree(fs, PATH)
    for base in (0, 100):
        lose_entries(fs, base)
    report = recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=killed(point))
    assert report.actions == [f"rebuilt the indexes of segment {base}, which was not flushed" for base in rebuilt]
    for base in (0, 100):
        for kind in (INDEX, TIMEINDEX):
            assert (fs.read_bytes(name(base, kind)) == whole[name(base, kind).rpartition("/")[2]]) is (base in rebuilt)
    assert report.segments == read_segments(fs, PATH)


@pytest.mark.parametrize("state", [CLEAN, Checkpoints("/logs")], ids=["clean", "no broker's"])
def test_indexes_are_not_read_again_without_a_kill(state: Checkpoints) -> None:
    fs = three_segments()
    lose_entries(fs, 0)
    assert recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=state).actions == []


def test_preallocated_indexes_of_a_killed_broker_are_not_written() -> None:
    fs = three_segments()
    for kind in (INDEX, TIMEINDEX):
        fs.put(name(200, kind), fs.read_bytes(name(200, kind)) + bytes(24 * 5000))
    # that of the broker has no entry for the largest timestamp yet
    fs.put(name(200, TIMEINDEX), bytes(12 * 5000))
    before = tree(fs, PATH)
    report = recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=killed(150))
    assert report.actions == ["rebuilt the indexes of segment 200, which was not flushed"]
    changed = {file for file, data in tree(fs, PATH).items() if before[file] != data}
    assert changed == {name(200, TIMEINDEX).rpartition("/")[2]}
    assert recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=killed(150)).actions == []


def of_epochs(epochs: str | None) -> FaultyFileSystem:
    """Batches of epoch 0 at 0 and 3, of 2 at 100 and 103, of 4 at 200 and 203."""
    made = []
    for base, epoch in ((0, 0), (100, 2), (200, 4)):
        made.append(build(base, [data_batch(offset, leader_epoch=epoch) for offset in (base, base + 3)]))
    fs = log_with(*made)
    if epochs is not None:
        fs.put(EPOCHS, epochs.encode())
    return fs


ASSIGNED = {
    "the latest is missing": (text((0, 0), (2, 100)), [(0, 0), (2, 100), (4, 200)]),
    "all are missing": (text(), [(2, 100), (4, 200)]),
    "the file is missing": (None, [(2, 100), (4, 200)]),
    "of another log": (text((9, 0)), [(2, 100), (4, 200)]),
    "a later epoch than that of the batches": (text((0, 0), (2, 100), (3, 101), (4, 200)), [(0, 0), (2, 100), (4, 200)]),
    "begins after its first batch": (text((0, 0), (2, 101), (4, 203)), [(0, 0), (2, 100), (4, 200)]),
}


@pytest.mark.parametrize(("epochs", "assigned"), ASSIGNED.values(), ids=ASSIGNED.keys())
def test_leader_epochs_that_contradict_the_unflushed_batches_are_not_used(
    epochs: str | None, assigned: list[tuple[int, int]]
) -> None:
    fs = of_epochs(epochs)
    report = recover_log(fs, HERE, checkpoints=killed(100))
    assert report.actions == ["assigned leader epochs in leader-epoch-checkpoint"]
    assert parse_leader_epochs(fs.read_bytes(EPOCHS).decode(), EPOCHS) == [EpochEntry(*each) for each in assigned]
    assert recover_log(fs, HERE, checkpoints=killed(100)).actions == []


AGREE = {
    "begin before their batches": text((0, 0), (2, 50), (4, 110)),
    "have epochs without batches": text((0, 0), (1, 60), (2, 70), (3, 150), (4, 190), (5, 204), (6, 210)),
    "are malformed: no broker starts with them": "0\n2\n0 0\n",
}


@pytest.mark.parametrize("epochs", AGREE.values(), ids=AGREE.keys())
def test_leader_epochs_are_kept_if_they(epochs: str) -> None:
    fs = of_epochs(epochs)
    assert recover_log(fs, HERE, checkpoints=killed(0)).actions == []
    assert fs.read_bytes(EPOCHS) == epochs.encode()


def test_leader_epochs_below_the_recovery_point_and_after_a_clean_shutdown_are_kept() -> None:
    epochs = text((0, 0), (1, 2), (2, 100), (4, 200))
    for state in (killed(100), CLEAN, Checkpoints("/logs")):
        fs = of_epochs(epochs)
        assert recover_log(fs, HERE, checkpoints=state).actions == []
        assert fs.read_bytes(EPOCHS) == epochs.encode()


def epoch_at(entries: list[EpochEntry], offset: int) -> int:
    return max(each for each in entries if each.start_offset <= offset).epoch


@pytest.mark.parametrize("present", range(16))
def test_assigned_epochs_ascend_and_are_those_of_every_batch(present: int) -> None:
    starts = [0, 2, 4, 6]
    entries = [EpochEntry(epoch, start) for epoch, start in enumerate(starts) if present >> epoch & 1]
    for low, high in combinations(range(4), 2):
        ranges = [EpochRange(epoch, starts[epoch], starts[epoch] + 1) for epoch in (low, high)]
        found = assign_epochs(entries, ranges)
        assert all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(found))
        assert [epoch_at(found, offset) for each in ranges for offset in each[1:]] == [low, low, high, high]


def test_an_epoch_lower_than_before_assigns_none() -> None:
    """As in logs that no broker has written."""
    ranges = [EpochRange(0, 0, 4), EpochRange(1, 5, 6), EpochRange(0, 7, 8), EpochRange(1, 9, 9), EpochRange(0, 10, 10)]
    assigned = [EpochEntry(0, 0), EpochEntry(1, 5)]
    assert assign_epochs(assigned[:1], ranges) == assigned
    assert assign_epochs(assigned, ranges) == assigned


def test_a_search_for_aborted_transactions_rebuilds_no_other_index() -> None:
    """As a read of committed records makes it."""
    fs = three_segments()
    lose_entries(fs, 0)
    state = Checkpoints("/logs", clean_shutdown=True, snapshots_may_lack=True)
    assert recover_log(fs, HERE, index_interval_bytes=SMALL, checkpoints=state).actions == []
