"""The swap and its journal: their result, and that no kill, power loss or broker start during it loses a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from compaction.errors import CorruptLogError, StorageError
from compaction.files.contents import FileDigest
from compaction.files.durable import remove_temporary, run_alone, run_in_step
from compaction.files.filesystem import FileSystem, join
from compaction.files.overlay import OverlayFileSystem
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.log.checkpoint_store import CheckpointFiles, read_checkpoints
from compaction.log.read_log import read_segments
from compaction.names import (
    CLEAN,
    CLEANER_OFFSETS,
    DELETED,
    INDEX,
    LOG,
    SWAP,
    TIMEINDEX,
    TXNINDEX,
    LogLocation,
    TopicPartition,
    segment_file,
)
from compaction.output.journal import JOURNAL, Journal, JournalGroup, Source, read_journal, remove_journal, write_journal
from compaction.output.segment_files import remove_deleted
from compaction.output.swap import SwapGroup, finish_group, replace_segments, source_at
from compaction.recovery.interrupted_swap import finish_interrupted_swap
from compaction.recovery.recover import recover_log
from compaction.rules.log_view import AbortedTxn
from tests.disk import FaultyFileSystem, crash_states
from tests.log.broker_model import start_broker
from tests.log.logs import TOPIC, Built, build, data_batch, data_segment, location, marker, put_snapshot, tree, txn_batch
from tests.log.logs import served as served_by_a_broker

LOG_DIR = "/logs"
HERE = location(LOG_DIR)
END = 400
OTHER = TopicPartition("payments", 3)
GROUPS = (SwapGroup((0, 100)), SwapGroup((200, 300)))
TXN = AbortedTxn(7, 110, 120, 121)
ABORTED = {110: txn_batch(110, 7), 120: marker(120, 7, commit=False)}

#: what cleaning keeps: group base -> (offsets kept, transaction index entries)
Kept = dict[int, tuple[list[int], list[AbortedTxn]]]
PLAIN: Kept = {0: ([5, 150], [TXN]), 200: ([250, 310], [])}
CASES: dict[str, Kept] = {
    "both groups keep something": PLAIN,
    "the first group is emptied": {0: ([], []), 200: ([250], [])},
    "the last group is emptied": {0: ([5], []), 200: ([], [])},
    "a group ends before its last source": {0: ([5, 10], []), 200: ([210], [])},
    "nothing is removed": {0: ([5, 10, 60, 105, 150], [TXN]), 200: ([210, 250, 310, 390], [])},
}

WRITTEN = (FileDigest(LOG, 70, "ab" * 16, 5), FileDigest(INDEX, 8, "cd" * 16, 6))
JOURNALED = (JournalGroup(0, WRITTEN, (Source(0, 100, 1, 7), Source(90, 50, 2, 8))),)
#: name -> a change of a journal's bytes
MALFORMED: dict[str, Callable[[bytes], bytes]] = {
    "another version": lambda data: data.replace(b'"version": 2', b'"version": 99'),
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeroed": lambda data: bytes(len(data)),
    "another size": lambda data: data.replace(b'"size_bytes": ', b'"size_bytes": 1', 1),
    "no group": lambda data: data.replace(b'"groups": [', b'"groups": [], "more": [', 1),
    "a flipped bit": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "too deep": lambda data: b"[" * 100_000,
    "not an object": lambda data: b"[2]",
}


def originals() -> list[Built]:
    return [
        data_segment(0, [5, 10, 60]),
        build(100, [data_batch(105), *ABORTED.values(), data_batch(150)], txns=[TXN]),
        data_segment(200, [210, 250]),
        data_segment(300, [310, 390]),
        data_segment(400, [400, 401]),
    ]


def dirty_log() -> FaultyFileSystem:
    """A log of four inactive segments and an active one, with snapshots and checkpoints."""
    fs = FaultyFileSystem()
    fs.mkdir(HERE.path)
    for segment in originals():
        segment.put(fs, HERE.path)
    for offset in (100, 200, 300, 400):
        put_snapshot(fs, HERE.path, offset)
    fs.put(join(LOG_DIR, CLEANER_OFFSETS), format_offset_checkpoint({OTHER: 7, TOPIC: 100}).encode())
    fs.put(join(HERE.path, "partition.metadata"), b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    return fs.settle()


def write_cleaned(fs: FileSystem, kept: Kept, suffix: str = ".clean") -> tuple[SwapGroup, ...]:
    """Write and fsync each group's output, as tasks do; returns the groups."""
    groups = []
    for group in GROUPS:
        output = built(kept, group.base_offset)
        groups.append(replace(group, suffix=suffix, files=output.put(fs, HERE.path, suffix)))
    return tuple(groups)


def built(kept: Kept, base: int) -> Built:
    offsets, txns = kept[base]
    batches = {offset: data_batch(offset) for offset in offsets} | (ABORTED if txns else {})
    return build(base, [batches[offset] for offset in sorted(batches)], txns=txns)


def served(fs: FileSystem, path: str) -> dict[int, bytes | None]:
    """What a consumer gets that reads committed data."""
    return {offset: value for offset, value in served_by_a_broker(fs, path).items() if offset not in ABORTED}


def recover(fs: FileSystem) -> None:
    """Recover as a run does: it removes temporary files of the log directory once that is locked."""
    remove_temporary(fs, LOG_DIR)
    recover_log(fs, HERE)


def run(fs: FileSystem, kept: Kept, suffix: str = CLEAN) -> None:
    """Run over the log, from recovery to the removal of the sources; a log that is already clean is skipped."""
    recover(fs)
    if read_checkpoints(fs, LOG_DIR).cleaner_offsets.get(TOPIC) != END:
        run_alone(fs, replace_segments(fs, HERE, write_cleaned(fs, kept, suffix), end_offset=END))
    remove_deleted(fs, HERE.path)


def cleaned_log(kept: Kept = PLAIN) -> FaultyFileSystem:
    """The log after an undisturbed run."""
    fs = dirty_log()
    run(fs, kept)
    return fs


def everything(fs: FileSystem, *, ignore: tuple[str, ...] = ()) -> dict[str, bytes]:
    return {**tree(fs, HERE.path, ignore=ignore), **tree(fs, LOG_DIR)}


def stopped_run(kept: Kept, suffix: str = CLEAN) -> Callable[[int | None], FaultyFileSystem]:
    return lambda step: dirty_log().run_until(step, lambda fs: run(fs, kept, suffix))


def test_the_outputs_replace_their_sources_and_no_other_files_are_left() -> None:
    fs = cleaned_log()
    segments = [f"{base:020d}.{kind}" for base in (0, 200, 400) for kind in ("index", "log", "timeindex")]
    others = [f"{0:020d}.txnindex", f"{200:020d}.snapshot", f"{400:020d}.snapshot", "partition.metadata"]
    assert fs.listdir(HERE.path) == sorted(segments + others)
    assert sorted(served(fs, HERE.path)) == [5, 150, 250, 310, 400, 401]
    assert read_checkpoints(fs, LOG_DIR).cleaner_offsets == {OTHER: 7, TOPIC: END}


def test_sources_are_kept_as_deleted_until_they_are_removed() -> None:
    fs = dirty_log()
    run_alone(fs, replace_segments(fs, HERE, write_cleaned(fs, PLAIN), end_offset=END))
    deleted = [name for name in fs.listdir(HERE.path) if name.endswith(DELETED)]
    assert len(deleted) == 4 * 3 + 1 + 2
    sizes = sum(len(fs.read_bytes(join(HERE.path, name))) for name in deleted)
    assert remove_deleted(fs, HERE.path) == sizes
    assert not [name for name in fs.listdir(HERE.path) if name.endswith(DELETED)]


def test_a_deleted_file_of_another_origin_does_not_take_the_place_of_a_source() -> None:
    fs = dirty_log()
    name = join(HERE.path, segment_file(0, LOG))
    source = fs.read_bytes(name)
    fs.put(name + DELETED, b"of an earlier run")
    run_alone(fs, replace_segments(fs, HERE, write_cleaned(fs, PLAIN), end_offset=END))
    assert fs.read_bytes(name + DELETED) == source


def test_the_files_are_renamed_log_first_and_group_by_group() -> None:
    fs = dirty_log()
    groups = write_cleaned(fs, PLAIN)
    fs.log.clear()
    run_alone(fs, replace_segments(fs, HERE, groups, end_offset=None))
    renames = [line.removeprefix("rename ") for line in fs.log if line.startswith("rename 0") and line.endswith(".clean")]
    kinds = ["log", "index", "timeindex", "txnindex"]
    expected = [f"{0:020d}.{kind}.clean" for kind in kinds] + [f"{200:020d}.{kind}.clean" for kind in kinds[:3]]
    assert renames == expected


def test_only_the_output_of_the_winning_attempt_is_kept_and_its_names_are_durable() -> None:
    fs = dirty_log()
    write_cleaned(fs, {0: ([5], []), 200: ([250], [])}, ".clean.attempt-1")
    groups = write_cleaned(fs, PLAIN, ".clean.attempt-2")
    run_alone(fs, replace_segments(fs, HERE, groups, end_offset=END))
    assert sorted(served(fs.after_power_loss(None), HERE.path)) == [5, 150, 250, 310, 400, 401]
    assert not [name for name in fs.listdir(HERE.path) if ".clean" in name]


def test_a_swap_without_groups_only_moves_the_checkpoint() -> None:
    fs = dirty_log()
    before = tree(fs, HERE.path)
    run_alone(fs, replace_segments(fs, HERE, (), end_offset=END))
    assert tree(fs, HERE.path) == before
    assert read_checkpoints(fs, LOG_DIR).cleaner_offsets[TOPIC] == END


def test_a_source_with_the_size_and_mtime_of_its_output_is_not_taken_for_it() -> None:
    """The output has vanished after the commit point: the sources are kept."""
    fs = dirty_log()
    names = [join(HERE.path, segment_file(base, LOG)) for base in (0, 100)]
    first = fs.stat(names[0])
    assert first is not None
    written = FileDigest(LOG, first.size, "0" * 32, first.mtime_ns)
    group = JournalGroup(0, (written,), (source_at(fs, HERE.path, 0), source_at(fs, HERE.path, 100)))
    with pytest.raises(StorageError, match="has changed since it was written"):
        run_alone(fs, finish_group(fs, HERE.path, group))
    assert all(fs.stat(name) is not None for name in names)


def test_a_full_disk_before_the_commit_point_changes_nothing() -> None:
    fs = dirty_log()
    before = everything(fs)
    groups = write_cleaned(fs, PLAIN)
    fs.fail = lambda operation, path: "No space left" if operation == "write" and JOURNAL in path else None
    with pytest.raises(StorageError, match="No space left"):
        run_alone(fs, replace_segments(fs, HERE, groups, end_offset=END))
    assert everything(fs) == before


def full_at_the_checkpoint(fs: FaultyFileSystem, groups: Sequence[SwapGroup]) -> None:
    """A swap that fails when all outputs have replaced their sources."""
    fs.fail = lambda operation, path: "No space left" if operation == "write" and CLEANER_OFFSETS in path else None
    try:
        run_alone(fs, replace_segments(fs, HERE, groups, end_offset=END))
    finally:
        fs.fail = lambda operation, path: None


def test_after_a_full_disk_at_the_checkpoint_the_next_run_finishes_the_swap() -> None:
    fs = dirty_log()
    with pytest.raises(StorageError, match="No space left"):
        full_at_the_checkpoint(fs, write_cleaned(fs, PLAIN))
    assert sorted(served(fs, HERE.path)) == [5, 150, 250, 310, 400, 401]
    run(fs, PLAIN)
    assert everything(fs) == everything(cleaned_log())


def shortened(data: bytes) -> bytes:
    return data[:-1]


def rewritten(data: bytes) -> bytes:
    return data[:-1] + b"?"


@pytest.mark.parametrize("vanished", [True, False])
def test_an_output_that_vanishes_or_is_rewritten_before_the_commit_point_changes_nothing(vanished: bool) -> None:
    fs = dirty_log()
    before = everything(fs)
    groups, output = write_cleaned(fs, PLAIN), join(HERE.path, segment_file(200, LOG, CLEAN))
    data = rewritten(fs.read_bytes(output))
    fs.unlink(output) if vanished else fs.put(output, data)
    with pytest.raises(StorageError, match="output of this run has vanished or changed"):
        run_alone(fs, replace_segments(fs, HERE, groups, end_offset=END))
    assert everything(fs) == before


def test_a_committed_swap_of_another_run_is_finished() -> None:
    """Neither locks nor claims have excluded it."""
    fs = committed_but_not_begun()
    groups = write_cleaned(fs, {0: ([5], []), 200: ([250], [])}, ".clean.attempt-2")
    with pytest.raises(StorageError, match="another run is swapping this log"):
        run_alone(fs, replace_segments(fs, HERE, groups, end_offset=END))
    recover(fs)
    assert everything(fs) == everything(cleaned_log())


def test_a_journal_that_another_run_writes_meanwhile_is_not_replaced() -> None:
    fs = dirty_log()
    swap = replace_segments(fs, HERE, write_cleaned(fs, PLAIN), end_offset=END)
    next(swap)
    fs.put(join(HERE.path, JOURNAL), b"of another run")
    with pytest.raises(StorageError, match="another run is swapping this log"):
        next(swap)
    assert fs.read_bytes(join(HERE.path, JOURNAL)) == b"of another run"


def test_no_source_is_replaced_by_an_output_that_is_rewritten_after_the_commit_point() -> None:
    fs = dirty_log()
    groups, output = write_cleaned(fs, PLAIN), join(HERE.path, segment_file(0, LOG, SWAP))

    def rewrite(operation: str, path: str) -> None:
        if operation == "rename" and path.endswith(segment_file(0, INDEX, CLEAN)):
            fs.fail = lambda *_: None
            fs.put(output, rewritten(fs.read_bytes(output)))

    fs.fail = rewrite
    with pytest.raises(StorageError, match="output has changed since it was written"):
        run_alone(fs, replace_segments(fs, HERE, groups, end_offset=END))
    assert not [name for name in fs.listdir(HERE.path) if name.endswith(DELETED)]
    recover(fs)
    assert everything(fs) == everything(dirty_log())


@pytest.mark.parametrize("change", [shortened, rewritten])
def test_an_output_that_changes_before_the_end_of_the_swap_keeps_the_journal_and_the_sources(
    change: Callable[[bytes], bytes],
) -> None:
    fs = dirty_log()
    groups = write_cleaned(fs, PLAIN)
    log = join(HERE.path, segment_file(200, LOG))

    def harm(operation: str, path: str) -> str | None:
        if operation == "write" and CLEANER_OFFSETS in path and fs.stat(log) is not None:
            fs.put(log, change(fs.read_bytes(log)))
        return None

    fs.fail = harm
    with pytest.raises(StorageError, match="output has changed since it was written"):
        run_alone(fs, replace_segments(fs, HERE, groups, end_offset=END))
    assert fs.stat(join(HERE.path, JOURNAL)) is not None
    sources = {segment_file(base, LOG) + DELETED for base in (0, 100, 200, 300)}
    assert sources <= set(fs.listdir(HERE.path))
    fs.fail = lambda operation, path: None
    recover(fs)
    dirty, kept = served(dirty_log(), HERE.path), PLAIN[0][0]
    assert served(fs, HERE.path) == {offset: value for offset, value in dirty.items() if offset in kept or offset >= 200}
    assert read_checkpoints(fs, LOG_DIR).cleaner_offsets == read_checkpoints(dirty_log(), LOG_DIR).cleaner_offsets


def lost_sources(fs: FileSystem) -> list[str]:
    """The sources that a swap with a journal could not be rolled back to."""
    names = {join(HERE.path, segment_file(each.base_offset, LOG)): each.files[LOG] for each in originals()}
    found = {name: [fs.read_bytes(each) for each in (name, name + DELETED) if fs.stat(each) is not None] for name in names}
    return [name for name, data in names.items() if JOURNAL in fs.listdir(HERE.path) and data not in found[name]]


@pytest.mark.parametrize("kept", CASES.values(), ids=CASES.keys())
def test_after_any_interruption_recovery_restores_the_sources_or_finishes_the_swap(kept: Kept) -> None:
    start, end = everything(dirty_log()), everything(cleaned_log(kept))
    seen = set()
    for name, fs in crash_states(stopped_run(kept, f"{CLEAN}.attempt-1")):
        assert not lost_sources(fs), name
        recover(fs)
        found = everything(fs)
        assert found in (start, end), name
        seen.add(found == end)
        run(fs, kept)
        assert everything(fs) == end, name
    assert seen == {False, True}


@pytest.mark.parametrize("kept", CASES.values(), ids=CASES.keys())
def test_a_broker_started_after_any_interruption_serves_every_survivor(kept: Kept) -> None:
    before, survivors = (served(fs, HERE.path) for fs in (dirty_log(), cleaned_log(kept)))
    for name, fs in crash_states(stopped_run(kept)):
        start_broker(fs, HERE.path)
        found = served(fs, HERE.path)
        assert survivors.items() <= found.items(), name
        assert found.items() <= before.items(), name
        assert all(one.next_offset <= later.base_offset for one, later in pairwise(read_segments(fs, HERE.path))), name
        recover_log(fs, HERE)
        again = served(fs, HERE.path)
        assert survivors.items() <= again.items(), name
        assert again.items() <= found.items(), name


def test_recovery_can_itself_be_interrupted() -> None:
    start, end = everything(dirty_log()), everything(cleaned_log())
    for first in range(0, stopped_run(PLAIN)(None).done, 4):
        for second in range(first % 5, 40, 5):
            fs = stopped_run(PLAIN)(first).after_power_loss(first)
            again = fs.run_until(second, recover).after_power_loss(second)
            recover(again)
            assert everything(again) in (start, end), (first, second)


def test_a_dry_run_reads_the_recovered_log_and_writes_nothing() -> None:
    for name, fs in crash_states(stopped_run(PLAIN), seeds=0):
        before = everything(fs)
        done = fs.done
        overlay = OverlayFileSystem(fs)
        recover_log(overlay, HERE)
        assert (everything(fs), fs.done) == (before, done), name
        planned = everything(overlay)
        recover_log(fs, HERE)
        assert planned == everything(fs), name


@pytest.mark.parametrize(
    ("base", "changed", "left"),
    [
        (0, [5, 7], [5, 7, 105, 150, 210, 250, 310, 390, 400, 401]),
        # of the second group
        (300, [310, 320, 390], [5, 150, 210, 250, 310, 320, 390, 400, 401]),
    ],
)
def test_a_swap_is_rolled_back_if_a_source_has_changed(base: int, changed: list[int], left: list[int]) -> None:
    fs = committed_but_not_begun()
    data_segment(base, changed).put(fs, HERE.path)
    recover_log(fs, HERE)
    assert sorted(served(fs, HERE.path)) == left
    assert read_checkpoints(fs, LOG_DIR).cleaner_offsets[TOPIC] == 100
    assert not [name for name in fs.listdir(HERE.path) if "clean" in name or name == JOURNAL]


def test_a_rollback_leaves_no_index_that_the_first_source_did_not_have() -> None:
    """A broker that starts before the rest of the recovery would use the output's."""
    fs = dirty_log()
    for kind in (INDEX, TIMEINDEX):
        fs.unlink(join(HERE.path, segment_file(0, kind)))
    before = everything(fs.settle())
    later = segment_file(200, LOG, CLEAN)
    fs.fail = lambda operation, path: "No space left" if operation == "rename" and path.endswith(later) else None
    with pytest.raises(StorageError):
        run_alone(fs, replace_segments(fs, HERE, write_cleaned(fs, PLAIN), end_offset=END))
    fs.fail = lambda operation, path: None
    log = join(HERE.path, segment_file(0, LOG))
    fs.put(log, fs.read_bytes(log)[:-1] + b"?")
    assert segment_file(0, TXNINDEX) in fs.listdir(HERE.path)
    finish_interrupted_swap(fs, HERE)
    assert everything(fs) == before


def test_a_swap_with_a_damaged_output_and_a_lost_source_is_an_error_that_changes_nothing() -> None:
    fs = stopped_after("rename 00000000000000000300.log")
    swap = join(HERE.path, f"{200:020d}.log.swap")
    fs.put(swap, fs.read_bytes(swap)[:-1] + b"?")
    fs.unlink(join(HERE.path, f"{300:020d}.log{DELETED}"))
    before = everything(fs)
    with pytest.raises(CorruptLogError, match="neither the output of an earlier swap nor the segment") as raised:
        recover_log(fs, HERE)
    assert raised.value.path == join(HERE.path, f"{300:020d}.log")
    assert everything(fs) == before


def test_a_swap_is_rolled_back_if_a_broker_has_deleted_a_source_since() -> None:
    """Its retention deletes the oldest segments; they do not come back with the output."""
    fs = committed_but_not_begun()
    for base in (0, 100, 200):
        fs.unlink(join(HERE.path, segment_file(base, LOG)))
    recover_log(fs, HERE)
    assert sorted(served(fs, HERE.path)) == [310, 390, 400, 401]


def test_a_rollback_keeps_the_indexes_of_sources_that_still_have_their_names() -> None:
    fs = stopped_after("rename 00000000000000000000.log.clean")
    swap = join(HERE.path, segment_file(0, LOG, SWAP))
    fs.put(swap, fs.read_bytes(swap)[:-1] + b"?")
    finish_interrupted_swap(fs, HERE)
    assert everything(fs) == everything(dirty_log())


def test_a_damaged_output_is_not_taken_for_the_lost_source_that_it_equals_in_size_and_mtime() -> None:
    fs = dirty_log()
    log = join(HERE.path, segment_file(0, LOG))
    group = SwapGroup((0, 100), files=data_segment(0, [5, 10, 60]).put(fs, HERE.path, CLEAN))
    with pytest.raises(StorageError, match="No space left"):
        full_at_the_checkpoint(fs, (group,))
    # the journal has the mtime of the source
    before, output = fs.stat(log + DELETED), fs.inode(log)
    assert before is not None
    output.data, output.mtime_ns = output.data[:-1] + b"?", before.mtime_ns
    fs.unlink(log + DELETED)
    with pytest.raises(CorruptLogError, match="neither the output of an earlier swap nor the segment"):
        finish_interrupted_swap(fs, HERE)


@pytest.mark.parametrize("links", [True, False])
def test_an_output_that_a_broker_swaps_in_meanwhile_keeps_its_name(links: bool) -> None:
    """Locks may not work: a broker starts just before a source becomes ``.deleted``."""
    fs, log = committed_but_not_begun(), join(HERE.path, segment_file(0, LOG))

    def start(operation: str, path: str) -> None:
        if (operation, path) == ("second name" if links else "rename", log):
            fs.fail = lambda *_: None
            fs.rename(log + SWAP, log)

    fs.fail = start
    if not links:
        fs.link = lambda *_: False  # type: ignore[method-assign]
    recover(fs)
    assert sorted(served(fs, HERE.path)) == [5, 150, 250, 310, 400, 401]
    assert JOURNAL not in fs.listdir(HERE.path)


def test_a_checkpoint_that_has_moved_since_is_kept() -> None:
    fs = committed_but_not_begun()
    fs.put(join(LOG_DIR, CLEANER_OFFSETS), format_offset_checkpoint({TOPIC: 300}).encode())
    recover_log(fs, HERE)
    assert sorted(served(fs, HERE.path)) == [5, 150, 250, 310, 400, 401]
    assert read_checkpoints(fs, LOG_DIR).cleaner_offsets == {TOPIC: 300}


@pytest.mark.parametrize("change", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_journal_fails_the_log_and_changes_nothing(change: Callable[[bytes], bytes]) -> None:
    """Its outputs may be the only copies of some records, so nothing is removed."""
    fs = committed_but_not_begun()
    name = join(HERE.path, JOURNAL)
    fs.put(name, change(fs.read_bytes(name)))
    before = everything(fs)
    with pytest.raises(CorruptLogError, match="journal of an earlier run is malformed"):
        recover_log(fs, HERE)
    assert everything(fs) == before


def test_a_journal_is_dropped_if_a_broker_has_cleaned_the_outputs_since() -> None:
    fs = stopped_after("rename 00000000000000000200.timeindex.swap")
    start_broker(fs, HERE.path)
    data_segment(0, [150]).put(fs, HERE.path)
    recover_log(fs, HERE)
    assert sorted(served(fs, HERE.path)) == [150, 250, 310, 400, 401]
    assert JOURNAL not in fs.listdir(HERE.path)


def test_a_journal_is_dropped_if_a_broker_was_stopped_while_it_cleaned_the_outputs_again() -> None:
    fs = stopped_after("rename 00000000000000000200.timeindex.swap")
    start_broker(fs, HERE.path)
    data_segment(0, [150]).put(fs, HERE.path, SWAP)
    for kind in (LOG, INDEX, TIMEINDEX, TXNINDEX):
        fs.rename(join(HERE.path, segment_file(0, kind)), join(HERE.path, segment_file(0, kind, DELETED)))
    recover_log(fs, HERE)
    assert sorted(served(fs, HERE.path)) == [150, 250, 310, 400, 401]
    assert not [name for name in fs.listdir(HERE.path) if name == JOURNAL or name.endswith((SWAP, DELETED))]


def test_indexes_that_a_broker_has_rebuilt_are_not_damage() -> None:
    fs = stopped_after("rename 00000000000000000000.log.clean")
    start_broker(fs, HERE.path)
    recover(fs)
    # the broker removes these with the sources; their data has been removed
    lost = (".snapshot", ".txnindex")
    assert everything(fs, ignore=lost) == everything(cleaned_log(), ignore=lost)


def test_an_output_that_a_broker_has_touched_does_not_fail_the_log() -> None:
    fs = stopped_after("rename 00000000000000000200.timeindex.swap")
    fs.inode(join(HERE.path, f"{200:020d}.timeindex")).mtime_ns += 10**9
    recover(fs)
    assert everything(fs) == everything(cleaned_log())


def committed_but_not_begun() -> FaultyFileSystem:
    """The log right after the commit point of a swap."""
    return stopped_after(f"rename {JOURNAL}.")


def stopped_after(change: str) -> FaultyFileSystem:
    """The log after a kill just after the first change that starts with ``change``."""
    for step in range(stopped_run(PLAIN)(None).done):
        fs = stopped_run(PLAIN)(step)
        if any(line.startswith(change) for line in fs.log):
            return fs.after_kill()
    raise AssertionError(f"no {change}")


def test_logs_swapped_in_step_each_have_their_sources_or_their_outputs_after_any_interruption() -> None:
    names = [TopicPartition("orders", number) for number in range(3)]
    partitions = [LogLocation(each, LOG_DIR, join(LOG_DIR, str(each))) for each in names]

    def swap(stop_before: int | None) -> FaultyFileSystem:
        fs = FaultyFileSystem()
        outputs = []
        for each in partitions:
            fs.mkdir(each.path)
            for segment in originals():
                segment.put(fs, each.path)
            files = built(PLAIN, 0).put(fs, each.path, ".clean")
            outputs.append(replace(GROUPS[0], suffix=".clean", files=files))
        fs.put(join(LOG_DIR, CLEANER_OFFSETS), format_offset_checkpoint({OTHER: 7}).encode())
        fs.settle()
        checkpoints = CheckpointFiles(fs)
        works = [
            replace_segments(fs, each, [output], end_offset=200, checkpoints=checkpoints)
            for each, output in zip(partitions, outputs, strict=True)
        ]
        return fs.run_until(stop_before, lambda fs: run_in_step(fs, [each.path for each in partitions], works))

    undisturbed = swap(None)
    assert sum(line.startswith(f"rename {CLEANER_OFFSETS}") for line in undisturbed.log) == 1
    start, end = served(swap(0), partitions[0].path), served(undisturbed, partitions[0].path)
    assert sorted(start) == [5, 10, 60, 105, 150, 210, 250, 310, 390, 400, 401]
    assert sorted(end) == [5, 150, 210, 250, 310, 390, 400, 401]
    seen = set()
    for name, fs in crash_states(swap, seeds=1):
        remove_temporary(fs, LOG_DIR)
        for each in partitions:
            recover_log(fs, each)
            moved = read_checkpoints(fs, LOG_DIR).cleaner_offsets.get(each.topic_partition) == 200
            assert served(fs, each.path) == (end if moved else start), (name, each.path)
            seen.add(moved)
    assert seen == {False, True}


def partition_directory() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir(HERE.path)
    return fs


@pytest.mark.parametrize(
    "journal",
    [Journal(JOURNALED, 90, 200, "token"), Journal(JOURNALED, None, None), Journal((), None, 200)],
    ids=["checkpoint moves", "checkpoint is unchanged", "no groups"],
)
def test_a_journal_is_read_as_it_was_written_even_after_a_power_loss(journal: Journal) -> None:
    fs = partition_directory()
    run_alone(fs, write_journal(fs, HERE.path, journal))
    assert read_journal(fs.after_power_loss(None), HERE.path) == journal


def test_a_log_without_a_journal_has_no_committed_swap() -> None:
    fs = partition_directory()
    assert read_journal(fs, HERE.path) is None
    run_alone(fs, write_journal(fs, HERE.path, Journal(JOURNALED, 90, 200)))
    run_alone(fs, remove_journal(fs, HERE.path))
    assert read_journal(fs.after_power_loss(None), HERE.path) is None


@pytest.mark.parametrize(
    "group",
    [
        JournalGroup(-1, WRITTEN, ()),
        JournalGroup(2**63, WRITTEN, ()),
        JournalGroup(0, WRITTEN[1:], ()),
        JournalGroup(0, (), ()),
        JournalGroup(0, (WRITTEN[0], FileDigest("/../../etc/passwd", 1, "", 1)), ()),
        JournalGroup(0, WRITTEN, (Source(-1, 1, 1, 1),)),
    ],
    ids=["negative", "too large", "no log", "no file", "another kind", "negative source"],
)
def test_a_journal_with_a_valid_checksum_names_segment_files_only(group: JournalGroup) -> None:
    fs = partition_directory()
    run_alone(fs, write_journal(fs, HERE.path, Journal((group,), None, 1)))
    with pytest.raises(CorruptLogError, match="malformed"):
        read_journal(fs, HERE.path)
