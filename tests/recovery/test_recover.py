"""Recovery as a whole: swaps without a journal, leftover files, torn tails, damage, leader epochs, and the report that replaces
reading the segments again."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from compaction.errors import CorruptLogError
from compaction.files.filesystem import join
from compaction.formats.checkpoints import EpochEntry, EpochRange, assign_epochs, format_leader_epochs, parse_leader_epochs
from compaction.log.checkpoint_store import Checkpoints
from compaction.log.read_log import ReadOptions, read_log, read_segments
from compaction.names import INDEX, LEADER_EPOCHS, LOG, TIMEINDEX
from compaction.recovery.interrupted_swap import finish_interrupted_swap
from compaction.recovery.recover import recover_log
from tests.disk import FaultyFileSystem
from tests.log.logs import NOW_MS, Built, build, data_batch, data_segment, idempotent_batch, put_snapshot, served, tree
from tests.recovery.small_logs import CLEAN, HERE, PATH, UNKNOWN, flipped, killed, log_with, name

KINDS = (LOG, INDEX, TIMEINDEX)
EPOCHS = join(PATH, LEADER_EPOCHS)
CLEANED_0 = data_segment(0, [60, 150])
TRUNCATED_0 = Built(0, {LOG: CLEANED_0.files[LOG][:-3]})


def three() -> FaultyFileSystem:
    return log_with(data_segment(0, [5, 60]), data_segment(100, [105, 150]), data_segment(200, [200]))


def put(fs: FaultyFileSystem, segment: Built, suffixes: dict[str, str]) -> None:
    """Write a segment's files with the given suffix for each kind."""
    for kind, suffix in suffixes.items():
        fs.put(name(segment.base_offset, kind, suffix), segment.files[kind])


LEFTOVERS = [".clean", ".cleaned", ".clean.0123abcd", ".clean.0123abcd.7.part", ".deleted", ".tmp"]
#: files beside those of a log
UNDONE: dict[str, list[tuple[Built, dict[str, str]]]] = {
    **{f"leftover {suffix}": [(CLEANED_0, dict.fromkeys(KINDS, suffix))] for suffix in LEFTOVERS},
    **{
        f"{len(renamed)} of 3 renamed, others {left}": [
            (CLEANED_0, {kind: ".swap" if kind in renamed else left for kind in KINDS})
        ]
        for left in (".clean", ".cleaned")
        for renamed in ((LOG,), (LOG, INDEX))
    },
    "a higher swap with a lower unfinished output": [
        (CLEANED_0, dict.fromkeys(KINDS, ".clean")),
        (data_segment(200, [200]), dict.fromkeys(KINDS, ".swap")),
    ],
    "a truncated swap": [(TRUNCATED_0, {LOG: ".swap"})],
    "a piece of a split beside another that is unfinished": [
        (data_segment(100, [105]), dict.fromkeys(KINDS, ".cleaned")),
        (data_segment(150, [150]), dict.fromkeys(KINDS, ".swap")),
    ],
}


@pytest.mark.parametrize("left", UNDONE.values(), ids=UNDONE.keys())
def test_an_incomplete_swap_is_undone_while_its_sources_are_there(left: list[tuple[Built, dict[str, str]]]) -> None:
    fs = three()
    before = tree(fs, PATH)
    for segment, suffixes in left:
        put(fs, segment, suffixes)
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == before


def test_other_files_are_kept() -> None:
    fs = three()
    for other in ("partition.metadata", "notes.txt", "00000000000000000009.checkpoint.deleted", "leader-epoch-checkpoint"):
        fs.put(join(PATH, other), b"mine")
    before = tree(fs, PATH)
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == before


@pytest.mark.parametrize("gone", [(), (0,), (0, 100)])
def test_a_complete_swap_is_finished_with_or_without_its_sources(gone: tuple[int, ...]) -> None:
    fs = three()
    put(fs, CLEANED_0, dict.fromkeys(KINDS, ".swap"))
    for base in gone:
        for kind in KINDS:
            fs.rename(name(base, kind), name(base, kind, ".deleted"))
    finish_interrupted_swap(fs, HERE)
    assert sorted(served(fs, PATH)) == [60, 150, 200]
    assert not [file for file in fs.listdir(PATH) if file.endswith((".swap", ".deleted"))]


def test_the_last_step_of_a_swap_is_finished() -> None:
    fs = log_with(data_segment(200, [200]))
    put(fs, CLEANED_0, {LOG: "", INDEX: ".swap", TIMEINDEX: ".swap"})
    finish_interrupted_swap(fs, HERE)
    assert tree(fs, PATH) == tree(log_with(CLEANED_0, data_segment(200, [200])), PATH)


@pytest.mark.parametrize("last", [60, 99], ids=["a gap before it", "offsets go on"])
def test_a_swap_whose_sources_are_gone_is_finished_even_beside_an_old_leftover(last: int) -> None:
    fs = log_with(data_segment(0, [5, last]), *(data_segment(base, [base]) for base in (100, 200)))
    put(fs, data_segment(0, [1]), dict.fromkeys(KINDS, ".clean"))
    put(fs, data_segment(100, [150]), dict.fromkeys(KINDS, ".swap"))
    for kind in KINDS:
        fs.rename(name(100, kind), name(100, kind, ".deleted"))
    finish_interrupted_swap(fs, HERE)
    assert sorted(served(fs, PATH)) == [5, last, 150, 200]


def test_a_truncated_swap_without_sources_is_an_error() -> None:
    fs = log_with(data_segment(200, [200]))
    put(fs, TRUNCATED_0, {LOG: ".swap"})
    with pytest.raises(CorruptLogError, match=r"00\.log\.swap at byte \d+"):
        finish_interrupted_swap(fs, HERE)


@pytest.mark.parametrize("segments", [(data_segment(0, []), data_segment(100, [])), ()], ids=["empty segments", "empty log"])
def test_a_log_without_records_needs_no_recovery(segments: tuple[Built, ...]) -> None:
    assert recover_log(log_with(*segments), HERE).actions == []


TAILS = {
    "half a batch": data_batch(108)[:-7],
    "less than a header": data_batch(108)[:9],
    "zeros": bytes(5000),
    "a batch whose end was not flushed": data_batch(108)[:-9] + bytes(9),
}
UNCLEAN_TAILS = {
    "0xff": bytes([255]) * 300,
    "a batch that fails its CRC": flipped(data_batch(201), 70),
    "half a batch, then garbage": data_batch(201)[:40] + bytes([7]) * 90,
    "zeros, then garbage": bytes(100) + bytes([7]) * 90,
    "an unknown magic": data_batch(201)[:16] + bytes([9]) + data_batch(201)[17:],
    "a length that runs past the end": data_batch(201)[:8] + (1 << 30).to_bytes(4, "big") + data_batch(201)[12:],
}


@pytest.mark.parametrize("alone", [False, True], ids=["", "the only segment"])
@pytest.mark.parametrize("tail", [*TAILS.values(), *UNCLEAN_TAILS.values()], ids=[*TAILS, *UNCLEAN_TAILS])
def test_after_an_unclean_shutdown_the_active_segment_may_end_in_anything_which_is_kept(tail: bytes, alone: bool) -> None:
    fs = log_with(data_segment(200, [200])) if alone else three()
    active = name(200, LOG)
    size = len(fs.read_bytes(active))
    fs.put(active, fs.read_bytes(active) + tail)
    report = recover_log(fs, HERE)
    assert (report.torn_tail_bytes, report.segments[-1].size_bytes, report.segments[-1].next_offset) == (len(tail), size, 201)
    assert fs.read_bytes(active).endswith(tail)


#: the segment that ends in it, what ends in it, and how the broker ended
DAMAGE: dict[str, tuple[int, bytes, Checkpoints]] = {
    **{f"of an inactive segment: {tail}": (100, data, UNKNOWN) for tail, data in TAILS.items()},
    **{f"after a clean shutdown: {tail}": (200, data, CLEAN) for tail, data in UNCLEAN_TAILS.items() if "length" not in tail},
    **{f"before a valid batch: {tail}": (200, data + data_batch(202), UNKNOWN) for tail, data in UNCLEAN_TAILS.items()},
    **{
        f"bit {at} of a batch in the middle": (200, flipped(data_batch(201), at) + data_batch(202), UNKNOWN)
        for at in (8, 9, 16, 20, 40, 70)
    },
}


@pytest.mark.parametrize(("base", "data", "state"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_that_is_not_a_torn_tail_is_an_error(base: int, data: bytes, state: Checkpoints) -> None:
    fs = three()
    size = len(fs.read_bytes(name(base, LOG)))
    fs.put(name(base, LOG), fs.read_bytes(name(base, LOG)) + data)
    with pytest.raises(CorruptLogError) as caught:
        recover_log(fs, HERE, checkpoints=state)
    assert (caught.value.path, caught.value.position) == (name(base, LOG), size)


def test_the_report_replaces_reading_the_segments_again() -> None:
    fs = log_with(data_segment(0, [1]), build(10, [idempotent_batch(10, 7)]), data_segment(20, [20]))
    put_snapshot(fs, PATH, 10)
    fs.unlink(name(0, INDEX))
    report = recover_log(fs, HERE)
    # segment 0 has a snapshot without transactional producers, so it was not scanned; segment 10 holds a producer's batch
    assert report.without_producers == {20}
    assert report.segments == read_segments(fs, PATH)
    checkpoints, options = Checkpoints("/logs"), ReadOptions(NOW_MS)
    view = read_log(fs, HERE, checkpoints, options, segments=report.segments, without_producers=report.without_producers)
    assert view == read_log(fs, HERE, checkpoints, options)


def text(*entries: tuple[int, int]) -> str:
    return format_leader_epochs(EpochEntry(*each) for each in entries)


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


WRONG_BELOW_100 = text((0, 0), (1, 2), (2, 100), (4, 200))
KEPT = {
    "they begin before their batches": (text((0, 0), (2, 50), (4, 110)), killed(0)),
    "they have epochs without batches": (
        text((0, 0), (1, 60), (2, 70), (3, 150), (4, 190), (5, 204), (6, 210)),
        killed(0),
    ),
    "they are malformed: no broker starts with them": ("0\n2\n0 0\n", killed(0)),
    "they are wrong below the recovery point": (WRONG_BELOW_100, killed(100)),
    "the broker was not killed": (WRONG_BELOW_100, CLEAN),
    "there was no broker": (WRONG_BELOW_100, UNKNOWN),
}


@pytest.mark.parametrize(("epochs", "state"), KEPT.values(), ids=KEPT.keys())
def test_leader_epochs_are_kept_if(epochs: str, state: Checkpoints) -> None:
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
