"""Segment files: which are renamed and removed, and that an interruption of a deletion loses no record that should be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from compaction.config.resolver import TopicConfig
from compaction.errors import CorruptLogError
from compaction.files.durable import run_alone
from compaction.files.filesystem import FileSystem, join
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.log.checkpoint_store import Checkpoints, read_checkpoints
from compaction.log.read_log import ReadOptions, read_log, snapshots
from compaction.names import CLEAN, DELETED, LEADER_EPOCHS, LOG_STARTS, SNAPSHOT, SWAP
from compaction.output.segment_files import (
    any_log,
    change_suffixes,
    delete_segments,
    discard_unfinished,
    is_unfinished,
    remove_deleted,
)
from compaction.recovery.recover import recover_log
from compaction.rules.segment_retention import DeletionCause, DeletionPlan, Removal
from tests.disk import FaultyFileSystem, crash_states
from tests.log.broker_model import start_broker
from tests.log.logs import NOW_MS, TOPIC, data_segment, location, put_snapshot, served

HERE = location("/logs")
LOG_0, INDEX_0, TIMEINDEX_0 = (f"{0:020d}{kind}" for kind in (".log", ".index", ".timeindex"))
PRODUCER = ProducerEntry(7, 0, 3, 205, 0, NOW_MS, -1, -1)


def log_dir(*suffixes: str) -> FaultyFileSystem:
    """A log with one copy of a segment for each suffix."""
    fs = FaultyFileSystem()
    fs.mkdir(HERE.path)
    for suffix in suffixes:
        data_segment(0, [5]).put(fs, HERE.path, suffix)
    return fs


def test_a_segments_files_are_renamed_log_first_and_missing_kinds_are_skipped() -> None:
    fs = log_dir(CLEAN)
    fs.log.clear()
    change_suffixes(fs, HERE.path, 0, CLEAN, SWAP)
    assert fs.log == [f"rename {name}.clean" for name in (LOG_0, INDEX_0, TIMEINDEX_0)]
    assert fs.listdir(HERE.path) == sorted(f"{name}.swap" for name in (LOG_0, INDEX_0, TIMEINDEX_0))


def test_only_the_given_kinds_are_renamed() -> None:
    fs = log_dir("")
    change_suffixes(fs, HERE.path, 0, "", DELETED, (".index", SNAPSHOT))
    assert fs.listdir(HERE.path) == sorted([LOG_0, f"{INDEX_0}.deleted", TIMEINDEX_0])


@pytest.mark.parametrize(
    ("name", "unfinished"),
    [
        (f"{LOG_0}.clean", True),
        (f"{LOG_0}.clean.0123abcd", True),
        (f"{LOG_0}.clean.0123abcd.7.part", True),
        (f"{LOG_0}.cleaned", True),
        (LOG_0, False),
        (f"{LOG_0}.swap", False),
        (f"{LOG_0}.deleted", False),
        ("notes.clean", False),
    ],
)
def test_outputs_that_no_swap_has_renamed_are_unfinished(name: str, unfinished: bool) -> None:
    assert is_unfinished(name) == unfinished


@pytest.mark.parametrize("swapping", [False, True])
def test_cleaned_files_are_kept_while_there_are_swap_files(swapping: bool) -> None:
    fs = log_dir("", ".clean.one", ".cleaned", *([SWAP] if swapping else []))
    assert discard_unfinished(fs, HERE.path) == (3 if swapping else 6)
    assert any(name.endswith(".cleaned") for name in fs.listdir(HERE.path)) == swapping


def test_removing_deleted_files_returns_the_bytes_freed() -> None:
    fs = log_dir("", DELETED)
    fs.put(join(HERE.path, "notes.deleted"), b"not a segment's")
    assert remove_deleted(fs, HERE.path) == sum(map(len, data_segment(0, [5]).files.values()))
    assert fs.listdir(HERE.path) == sorted([LOG_0, INDEX_0, TIMEINDEX_0, "notes.deleted"])


def test_an_empty_partition_directory_has_no_log() -> None:
    assert any_log(log_dir(), HERE.path) is None
    assert any_log(log_dir(""), HERE.path) == join(HERE.path, LOG_0)


def log_of_three() -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir(HERE.path)
    for segment in (data_segment(0, [5, 10]), data_segment(100, [105]), data_segment(200, [200, 205])):
        segment.put(fs, HERE.path)
    for offset in (100, 200):
        put_snapshot(fs, HERE.path, offset)
    fs.put(join(HERE.path, LEADER_EPOCHS), b"0\n3\n0 0\n1 50\n4 150\n")
    return fs.settle()


def delete(fs: FileSystem, bases: Sequence[int], *, start: int, producers: tuple[ProducerEntry, ...] = ()) -> None:
    """Delete these segments of a log that ends at offset 206; the log start moves to ``start``."""
    view = read_log(fs, HERE, Checkpoints("/logs"), ReadOptions(NOW_MS))
    view = replace(view, log_end_offset=206, producers=producers)
    found = {segment.base_offset: segment for segment in view.segments}
    removals = tuple(Removal(found[base], DeletionCause.TIME, "") for base in bases)
    plan = DeletionPlan(view, TopicConfig(), removals, replace(view, log_start_offset=start), "")
    run_alone(fs, delete_segments(fs, HERE, plan))


def names(fs: FileSystem) -> list[str]:
    return [name for name in fs.listdir(HERE.path) if not name.endswith(DELETED)]


def test_the_oldest_segments_are_deleted_with_their_snapshots() -> None:
    fs = log_of_three()
    delete(fs, [0, 100], start=200)
    assert [name for name in names(fs) if name.startswith("0")] == [
        f"{200:020d}.{kind}" for kind in ("index", "log", "snapshot", "timeindex")
    ]
    assert read_checkpoints(fs, "/logs").log_starts == {TOPIC: 200}


def test_leader_epochs_begin_at_the_log_start() -> None:
    fs = log_of_three()
    delete(fs, [0], start=100)
    assert fs.read_bytes(join(HERE.path, LEADER_EPOCHS)) == b"0\n2\n1 100\n4 150\n"


def test_if_every_segment_is_deleted_an_empty_one_is_created() -> None:
    fs = log_of_three()
    delete(fs, [0, 100, 200], start=206, producers=(PRODUCER,))
    recover_log(fs, HERE)
    view = read_log(fs, HERE, read_checkpoints(fs, "/logs"), ReadOptions(NOW_MS))
    assert (view.log_start_offset, view.log_end_offset, len(view.segments)) == (206, 206, 1)
    assert dict(snapshots(fs, HERE.path)) == {206: [PRODUCER]}


def test_with_a_malformed_checkpoint_no_segment_is_deleted() -> None:
    fs = log_of_three()
    fs.put(join("/logs", LOG_STARTS), b"0\n7\n")
    with pytest.raises(CorruptLogError, match="7 entries declared"):
        delete(fs, [0], start=100)
    assert sorted(served(fs, HERE.path)) == [5, 10, 105, 200, 205]


@pytest.mark.parametrize("bases", [[0, 100], [0, 100, 200]])
@pytest.mark.parametrize("with_broker", [False, True])
def test_after_any_interruption_the_log_is_valid_and_can_be_deleted_from_again(bases: list[int], with_broker: bool) -> None:
    start = 200 if len(bases) == 2 else 206

    def make(step: int | None) -> FaultyFileSystem:
        return log_of_three().run_until(step, lambda fs: delete(fs, bases, start=start))

    kept = {offset for offset in (5, 10, 105, 200, 205) if offset >= start}
    for name, fs in crash_states(make):
        if with_broker:
            start_broker(fs, HERE.path)
        recover_log(fs, HERE)
        view = read_log(fs, HERE, read_checkpoints(fs, "/logs"), ReadOptions(NOW_MS))
        assert view.log_end_offset == 206, name
        assert kept <= set(served(fs, HERE.path)), name
        again = [base for base in bases if base in {segment.base_offset for segment in view.segments}]
        delete(fs, again, start=start)
        assert set(served(fs, HERE.path)) == kept, name
        assert read_log(fs, HERE, read_checkpoints(fs, "/logs"), ReadOptions(NOW_MS)).log_end_offset == 206, name
