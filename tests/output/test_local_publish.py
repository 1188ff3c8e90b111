"""Publishing to a disk: the target appears complete or not at all, and holds all files that a broker needs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compaction.errors import LockedError, StorageError, UsageError
from compaction.files.filesystem import FileSystem, join
from compaction.files.local import LocalFileSystem
from compaction.files.lock import LogDirLock
from compaction.files.overlay import OverlayFileSystem
from compaction.log.checkpoint_store import read_checkpoints
from compaction.log.read_log import read_segments
from compaction.names import LogLocation, TopicPartition
from compaction.output.finished import FINISHED, layout, remove_leftovers, require_replaceable
from compaction.output.publish import Publication
from compaction.output.swap import SwapGroup
from compaction.recovery.recover import recover_log
from tests.disk import FaultyFileSystem, crash_states
from tests.log.logs import TOPIC, build, data_batch, data_segment, location, put_snapshot, served, tree
from tests.output.requests import copying

FS = LocalFileSystem()
OTHER = TopicPartition("payments", 1)


def source_dir(root: Path) -> str:
    """A log directory with one log of three segments, and the files beside its logs."""
    log_dir = root / "source"
    here = location(str(log_dir))
    Path(here.path).mkdir(parents=True)
    for segment in (data_segment(0, [5, 10]), data_segment(100, [105]), data_segment(200, [200])):
        segment.put(FS, here.path)
    for offset in (100, 200):
        put_snapshot(FS, here.path, offset)
    (log_dir / "meta.properties").write_text("version=1\nnode.id=1\n")
    (log_dir / ".kafka_cleanshutdown").write_text("{}")
    (log_dir / ".lock").touch()
    (log_dir / "log-start-offset-checkpoint").write_text(f"0\n2\norders 0 5\n{OTHER.topic} 1 9\n")
    (log_dir / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 100\n")
    (Path(here.path) / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    return str(log_dir)


def publish(log_dir: str, target: str) -> None:
    here = location(log_dir)
    publication = Publication.begin(FS, target, copying(log_dir))
    output = build(0, [data_batch(10)])
    group = SwapGroup(0, (0, 100), ".clean.one", files=output.put(FS, publication.log_path(here), ".clean.one"))
    add(publication, OverlayFileSystem(FS), here, [group], end_offset=200)
    publication.commit(OverlayFileSystem(FS))


def add(
    publication: Publication, fs: FileSystem, here: LogLocation, groups: list[SwapGroup], *, end_offset: int | None
) -> None:
    """Add a log in its present state."""
    publication.add_log(fs, here, groups, read_segments(fs, here.path), end_offset=end_offset)


def snapshot_of(path: str) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(Path(path).rglob("*")) if file.is_file()}


def test_the_target_holds_cleaned_and_other_segments(tmp_path: Path) -> None:
    log_dir = source_dir(tmp_path)
    publish(log_dir, str(tmp_path / "target"))
    target = location(str(tmp_path / "target"))
    assert sorted(served(FS, target.path)) == [10, 200]
    assert recover_log(FS, target).actions == []


def test_the_target_holds_the_other_files_that_a_broker_needs(tmp_path: Path) -> None:
    log_dir = source_dir(tmp_path)
    publish(log_dir, str(tmp_path / "target"))
    names = set(snapshot_of(str(tmp_path / "target")))
    assert {"meta.properties", ".kafka_cleanshutdown", "orders-0/leader-epoch-checkpoint"} <= names
    assert "orders-0/00000000000000000200.snapshot" in names
    assert not {name for name in names if "00000000000000000100" in name or ".lock" in name or ".clean." in name}


def test_checkpoints_have_entries_of_the_published_logs_only(tmp_path: Path) -> None:
    log_dir = source_dir(tmp_path)
    publish(log_dir, str(tmp_path / "target"))
    found = read_checkpoints(FS, str(tmp_path / "target"))
    assert (found.log_starts, found.cleaner_offsets) == ({TOPIC: 5}, {TOPIC: 200})


def test_the_source_is_not_changed(tmp_path: Path) -> None:
    log_dir = source_dir(tmp_path)
    before = snapshot_of(log_dir)
    publish(log_dir, str(tmp_path / "target"))
    assert snapshot_of(log_dir) == before


def test_copies_keep_mtime_and_mode(tmp_path: Path) -> None:
    log_dir = source_dir(tmp_path)
    name = "orders-0/00000000000000000200.log"
    (Path(log_dir) / name).chmod(0o640)
    publish(log_dir, str(tmp_path / "target"))
    old, new = (Path(log_dir) / name).stat(), (tmp_path / "target" / name).stat()
    assert (old.st_mtime_ns, old.st_mode) == (new.st_mtime_ns, new.st_mode)


def test_indexes_rebuilt_in_memory_are_published(tmp_path: Path) -> None:
    log_dir = source_dir(tmp_path)
    here = location(log_dir)
    (Path(here.path) / "00000000000000000100.timeindex").unlink()
    overlay = OverlayFileSystem(FS)
    assert recover_log(overlay, here).actions
    publication = Publication.begin(FS, str(tmp_path / "target"), copying(log_dir))
    add(publication, overlay, here, [], end_offset=None)
    publication.commit(overlay)
    assert (tmp_path / "target/orders-0/00000000000000000100.timeindex").stat().st_size == 12
    assert not (Path(here.path) / "00000000000000000100.timeindex").exists()
    assert read_checkpoints(FS, str(tmp_path / "target")).cleaner_offsets == {TOPIC: 100}


def test_preallocated_tails_take_no_space_in_a_copy(tmp_path: Path) -> None:
    log_dir = source_dir(tmp_path)
    (Path(log_dir) / ".kafka_cleanshutdown").unlink()
    active = Path(log_dir) / "orders-0/00000000000000000200.log"
    used = {file: file.stat().st_size for file in (active, active.with_suffix(".index"), active.with_suffix(".timeindex"))}
    for file in used:
        os.truncate(file, 10 << 20)
    publish(log_dir, str(tmp_path / "target"))
    copies = {file: tmp_path / "target/orders-0" / file.name for file in used}
    assert {file: copy.stat().st_size for file, copy in copies.items()} == used
    assert active.with_suffix(".index").stat().st_size == 10 << 20


def test_a_time_index_entry_of_zeros_is_copied(tmp_path: Path) -> None:
    log_dir = source_dir(tmp_path)
    active = Path(log_dir) / "orders-0/00000000000000000200.timeindex"
    active.write_bytes(bytes(12))
    publish(log_dir, str(tmp_path / "target"))
    assert (tmp_path / "target/orders-0" / active.name).read_bytes() == bytes(12)


def test_an_empty_target_directory_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    publish(source_dir(tmp_path), str(tmp_path / "target"))
    assert (tmp_path / "target/meta.properties").exists()


@pytest.mark.parametrize("target", ["full", "file", "source/inside", "source"])
def test_a_target_that_is_in_use_or_inside_the_source_is_refused(tmp_path: Path, target: str) -> None:
    log_dir = source_dir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/something").touch()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError):
        Publication.begin(FS, str(tmp_path / target), copying(log_dir))


def test_two_runs_cannot_publish_to_the_same_directory(tmp_path: Path) -> None:
    log_dir = source_dir(tmp_path)
    first = Publication.begin(FS, str(tmp_path / "target"), copying(log_dir))
    with pytest.raises(LockedError):
        Publication.begin(FS, str(tmp_path / "target"), copying(log_dir))
    first.abort()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_run_that_cannot_read_a_checkpoint_leaves_nothing(tmp_path: Path) -> None:
    log_dir = source_dir(tmp_path)
    (Path(log_dir) / "recovery-point-offset-checkpoint").mkdir()
    with pytest.raises(StorageError):
        Publication.begin(FS, str(tmp_path / "target"), copying(log_dir))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_the_hidden_directory_of_a_killed_run_is_removed_first(tmp_path: Path) -> None:
    log_dir = source_dir(tmp_path)
    leftover = tmp_path / f".target.{uuid.uuid4().hex}.partial" / "data/orders-0"
    leftover.mkdir(parents=True)
    (leftover / "00000000000000000007.log").write_bytes(b"old")
    publish(log_dir, str(tmp_path / "target"))
    assert sorted(served(FS, str(tmp_path / "target/orders-0"))) == [10, 200]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


@pytest.mark.parametrize("name", [f"{0:020d}.log", f"{200:020d}.index", "partition.metadata"])
@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"?")], ids=["vanished", "cut"])
def test_the_target_does_not_appear_if_a_written_file_has_vanished_or_changed(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    log_dir, target = source_dir(tmp_path), tmp_path / "target"
    here = location(log_dir)
    (Path(here.path) / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    publication = Publication.begin(FS, str(target), copying(log_dir))
    add(publication, FS, here, [], end_offset=None)
    [written] = tmp_path.glob(f".target.*.partial/data/orders-0/{name}")
    harm(written)
    with pytest.raises(StorageError, match="has changed since it was written"):
        publication.commit(FS)
    assert not target.exists()


def test_several_log_directories_keep_their_names(tmp_path: Path) -> None:
    assert layout("/out", ["/a/one", "/b/two"]) == {"/a/one": "/out/one", "/b/two": "/out/two"}
    with pytest.raises(UsageError, match="called one"):
        layout("/out", ["/a/one", "/b/one"])


def disk_with_source() -> FaultyFileSystem:
    fs, here = FaultyFileSystem(), location("/logs")
    fs.mkdir(here.path)
    for segment in (data_segment(0, [5, 10]), data_segment(100, [105])):
        segment.put(fs, here.path)
    fs.mkdir("/out")
    return fs


def publish_to_target(fs: FaultyFileSystem, batch: int, **options: Any) -> None:
    publication = Publication.begin(fs, "/out/target", copying("/logs", **options))
    files = build(0, [data_batch(batch)]).put(fs, publication.log_path(location("/logs")), ".clean")
    add(publication, fs, location("/logs"), [SwapGroup(0, (0,), files=files)], end_offset=100)
    publication.commit(fs)


def test_after_any_interruption_the_target_is_complete_or_absent() -> None:
    def make(step: int | None) -> FaultyFileSystem:
        return disk_with_source().settle().run_until(step, lambda fs: publish_to_target(fs, 10))

    complete = tree(make(None), "/out/target/orders-0")
    assert len(complete) == 6
    seen = set()
    for name, fs in crash_states(make):
        found = fs.stat("/out/target")
        seen.add(found is not None)
        if found is not None:
            assert tree(fs, "/out/target/orders-0") == complete, name
            assert read_checkpoints(fs, "/out/target").cleaner_offsets == {TOPIC: 100}, name
    assert seen == {False, True}


def test_logs_are_published_to_the_directory_of_their_source(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = source_dir(tmp_path / "a"), source_dir(tmp_path / "b")
    two = str(Path(two).rename(tmp_path / "b/other"))
    publication = Publication.begin(FS, str(tmp_path / "target"), copying(one, two))
    for log_dir in (one, two):
        add(publication, FS, LogLocation(TOPIC, log_dir, join(log_dir, "orders-0")), [], end_offset=None)
    publication.commit(FS)
    assert sorted(served(FS, str(tmp_path / "target/source/orders-0"))) == [5, 10, 105, 200]
    assert sorted(served(FS, str(tmp_path / "target/other/orders-0"))) == [5, 10, 105, 200]


def test_after_any_interruption_of_a_replacement_there_is_the_old_or_the_new_output() -> None:
    """With two renames, as on file systems that cannot exchange names."""

    def make(step: int | None) -> FaultyFileSystem:
        fs = disk_with_source()
        publish_to_target(fs, 5, call={"as_of_ms": 1}, replace=True)
        return fs.settle().run_until(step, lambda fs: publish_to_target(fs, 10, call={"as_of_ms": 2}, replace=True))

    new, old = (tree(make(step), "/out/target/orders-0") for step in (None, 0))
    assert new != old
    seen = set()
    for name, fs in crash_states(make):
        # what every run with this target begins with
        remove_leftovers(fs, "/out/target")
        found = tree(fs, "/out/target/orders-0")
        assert found in (old, new), name
        seen.add(found == new)
        require_replaceable("/out/target", fs)
        assert fs.listdir("/out") == ["target"], name
    assert seen == {False, True}


def test_a_replaced_output_is_exchanged_by_one_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that hold the old directory open keep it; there is no time without an output."""
    log_dir, target = source_dir(tmp_path), tmp_path / "target"
    missing: list[bool] = []

    def exchange(self: LocalFileSystem, first: str, second: str) -> bool:
        done = exchanged(self, first, second)
        missing.append(not (done and (target / FINISHED).exists()))
        return done

    exchanged = LocalFileSystem.exchange
    monkeypatch.setattr(LocalFileSystem, "exchange", exchange)
    for round_number in range(2):
        publication = Publication.begin(FS, str(target), copying(log_dir, call={"round": round_number}, replace=True))
        add(publication, OverlayFileSystem(FS), location(log_dir), [], end_offset=None)
        publication.commit(OverlayFileSystem(FS))
    assert missing == [False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


SEGMENT = f"orders-0/{0:020d}.log"


def turn(target: Path) -> str:
    """A byte changes, the size does not, nor the time."""
    path = target / SEGMENT
    data, found = bytearray(path.read_bytes()), path.stat()
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    return SEGMENT


def put_link(target: Path) -> str:
    (target / "notes").symlink_to("/nowhere")
    return "notes"


def put_link_for_a_file(target: Path) -> str:
    path = target / SEGMENT
    path.rename(target.parent / "moved.log")
    path.symlink_to(target.parent / "moved.log")
    return SEGMENT


def put_directory(target: Path) -> str:
    (target / "new").mkdir()
    return "new/"


def put_file(target: Path) -> str:
    (target / "orders-0" / "sheet.xlsx").write_bytes(b"cells")
    return "orders-0/sheet.xlsx"


CHANGES = [turn, put_link, put_link_for_a_file, put_directory, put_file]


def entries(target: Path) -> dict[str, tuple[int, bytes]]:
    """All names below a directory, with inode and content."""
    found = {str(path.relative_to(target)): path for path in target.rglob("*")}
    return {name: (path.lstat().st_ino, path.read_bytes() if path.is_file() else b"") for name, path in found.items()}


def begin_replacement(tmp_path: Path, *, first: bool = False) -> Publication:
    log_dir = str(tmp_path / "source") if not first else source_dir(tmp_path)
    request = copying(log_dir, call={"first": first}, replace=True)
    publication = Publication.begin(FS, str(tmp_path / "target"), request)
    add(publication, OverlayFileSystem(FS), location(log_dir), [], end_offset=None)
    if first:
        publication.commit(OverlayFileSystem(FS))
    return publication


@pytest.mark.parametrize("change", CHANGES)
def test_an_output_with_any_change_is_not_replaced(tmp_path: Path, change: Callable[[Path], str]) -> None:
    begin_replacement(tmp_path, first=True)
    name = change(tmp_path / "target")
    before = entries(tmp_path / "target")
    with pytest.raises(UsageError, match=f"--replace: this output has changed since it was written: {name}"):
        begin_replacement(tmp_path)
    assert entries(tmp_path / "target") == before


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_written_to_an_output_until_it_is_replaced_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], str], exchanges: bool
) -> None:
    """Between the comparison of the output and its replacement, however short that is."""
    begin_replacement(tmp_path, first=True)
    told: list[str] = []
    publication, target = begin_replacement(tmp_path), tmp_path / "target"
    usual, rename = LocalFileSystem.exchange, LocalFileSystem.rename

    def exchange(self: LocalFileSystem, first: str, second: str) -> bool:
        if exchanges and not told:
            told.append(change(target))
        return exchanges and usual(self, first, second)

    def renamed(self: LocalFileSystem, source: str, to: str) -> None:
        if source == str(target) and not told:
            told.append(change(target))
        rename(self, source, to)

    monkeypatch.setattr(LocalFileSystem, "exchange", exchange)
    monkeypatch.setattr(LocalFileSystem, "rename", renamed)
    with pytest.raises(UsageError, match="this output has changed since it was written: .* has changed during this run"):
        publication.commit(OverlayFileSystem(FS))
    publication.abort()
    assert told and os.path.lexists(target / told[0])
    changed = entries(target)
    assert {path.name for path in tmp_path.iterdir()} - {"moved.log"} == {"source", "target"}
    # and a run without the patches leaves it as it is, too
    monkeypatch.undo()
    with pytest.raises(UsageError, match="this output has changed"):
        begin_replacement(tmp_path)
    assert entries(target) == changed


def test_an_output_is_locked_while_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_replacement(tmp_path, first=True)
    told: list[str] = []
    publication, target = begin_replacement(tmp_path), str(tmp_path / "target")
    usual = LocalFileSystem.exchange

    def exchange(self: LocalFileSystem, first: str, second: str) -> bool:
        with pytest.raises(LockedError) as locked:
            LogDirLock.acquire(target)
        told.append(str(locked.value))
        return usual(self, first, second)

    monkeypatch.setattr(LocalFileSystem, "exchange", exchange)
    publication.commit(OverlayFileSystem(FS))
    assert len(told) == 1
    LogDirLock.acquire(target).release()


def test_a_replaced_output_that_no_run_has_compared_is_removed_only_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run is killed after the exchange."""
    begin_replacement(tmp_path, first=True)
    for change in (None, put_file):
        publication = begin_replacement(tmp_path)
        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr("compaction.output.publish._require_same", interrupt)
            publication.commit(OverlayFileSystem(FS))
        publication.abort()
        [retired] = tmp_path.glob(".target.*.replaced")
        if change is not None:
            change(retired)
        remove_leftovers(FS, str(tmp_path / "target"))
        assert retired.exists() == (change is not None)
    assert f"{retired}: keeping this replaced output, as it has changed: orders-0/sheet.xlsx is new" in caplog.text


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_output_with_an_empty_directory_is_replaced(tmp_path: Path) -> None:
    for first in (True, False):
        log_dir = source_dir(tmp_path) if first else str(tmp_path / "source")
        publication = Publication.begin(FS, str(tmp_path / "target"), copying(log_dir, call={}, replace=True))
        Path(log_dir, str(OTHER)).mkdir(exist_ok=True)
        publication.log_path(LogLocation(OTHER, log_dir, join(log_dir, str(OTHER))))
        publication.commit(OverlayFileSystem(FS))
        assert (tmp_path / "target" / str(OTHER)).is_dir()
