"""Publishing to a disk and to a store: the output appears complete or not at all, holds all files that a broker needs, and
replaces an earlier one that is unchanged. ``test_object_publish`` has what only a store does."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from compaction.errors import LockedError, StorageError, UsageError
from compaction.files.filesystem import join
from compaction.files.local import LocalFileSystem
from compaction.files.lock import lock_directory
from compaction.files.manifest import MANIFEST
from compaction.files.overlay import OverlayFileSystem
from compaction.log.checkpoint_store import read_checkpoints
from compaction.log.read_log import read_segments
from compaction.names import LogLocation, TopicPartition
from compaction.output.finished import FINISHED, differences, layout, read_finished, remove_leftovers, require_replaceable
from compaction.output.publish import Publication
from compaction.output.swap import SwapGroup
from compaction.recovery.recover import recover_log
from tests.disk import FaultyFileSystem, crash_states
from tests.files.remote_places import PLACE, begin, bucket, copying, log, publish
from tests.log.logs import TOPIC, build, data_batch, data_segment, location, put_snapshot, served, tree
from tests.object_store.fixtures import files

__all__ = ["bucket", "log"]

FS = LocalFileSystem()
OTHER = TopicPartition("payments", 1)
SEGMENT, ACTIVE = (f"orders-0/{base:020d}.log" for base in (0, 130))
on_disk = pytest.mark.parametrize("place", ["disk"], indirect=True)


@dataclass(frozen=True)
class Place:
    """A directory with the log directory ``source``, and with ``out``, as paths of a disk or as URIs of a store."""

    root: Path
    address: str

    @property
    def source(self) -> str:
        return f"{self.address}/in"

    @property
    def out(self) -> str:
        return f"{self.address}/out"

    def written(self) -> Path:
        """The directory that a run writes to."""
        return self.root / "out" if self.address == PLACE else next(self.root.glob(".out.*.partial")) / "data"

    def is_published(self) -> bool:
        return (self.root / "out" / MANIFEST).exists() if self.address == PLACE else (self.root / "out").exists()

    def beside(self) -> list[str]:
        """The entries beside the log directory and the output."""
        return sorted({path.name for path in self.root.iterdir()} - {"in", "out", "moved.log"})


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, bucket: Path, log: str) -> Place:
    """With the files beside a log of three segments."""
    source = bucket / "in"
    for offset in (90, 130):
        put_snapshot(FS, str(source / "orders-0"), offset)
    (source / "meta.properties").write_text("version=1\nnode.id=1\n")
    (source / ".kafka_cleanshutdown").write_text("{}")
    for of_a_run in (".lock", ".compaction-run.00000003", "cleaner-offset-checkpoint.0123456789abcdef.tmp"):
        (source / of_a_run).touch()
    (source / "log-start-offset-checkpoint").write_text(f"0\n2\norders 0 5\n{OTHER.topic} 1 9\n")
    (source / "cleaner-offset-checkpoint").write_text("0\n1\norders 0 90\n")
    (source / "orders-0" / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (source / "orders-0" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    return Place(bucket, PLACE if request.param == "store" else str(bucket))


def replacing(number: int) -> dict[str, Any]:
    """The options of a request that replaces an earlier output."""
    return {"call": {"as_of_ms": number}, "replace": True}


def entries(directory: Path) -> dict[str, tuple[int, bytes]]:
    """All names below a directory, with inode and content."""
    found = {str(path.relative_to(directory)): path for path in directory.rglob("*")}
    return {name: (path.lstat().st_ino, path.read_bytes() if path.is_file() else b"") for name, path in found.items()}


def test_an_output_holds_cleaned_segments_and_all_other_files_that_a_broker_needs(place: Place) -> None:
    before, out = entries(place.root / "in"), place.root / "out"
    (place.root / "in" / ACTIVE).chmod(0o640)
    publish(place.source, place.out)
    assert sorted(served(FS, str(out / "orders-0"))) == [10, 130]
    segments = {f"{base:020d}{kind}" for base in (0, 130) for kind in (".log", ".index", ".timeindex")}
    of_log = {*segments, f"{130:020d}.snapshot", "leader-epoch-checkpoint", "partition.metadata"}
    checkpoints = {f"{name}-checkpoint" for name in ("cleaner-offset", "log-start-offset")}
    of_directory = {"meta.properties", ".kafka_cleanshutdown", *checkpoints}
    assert files(out).keys() - {MANIFEST} == {f"orders-0/{name}" for name in of_log} | of_directory
    # of the published logs only
    found = read_checkpoints(FS, str(out))
    assert (found.log_starts, found.cleaner_offsets) == ({TOPIC: 5}, {TOPIC: 130})
    assert recover_log(FS, location(str(out))).actions == []
    assert entries(place.root / "in") == before
    if place.address != PLACE:
        old, new = ((place.root / each / ACTIVE).stat() for each in ("in", "out"))
        assert (old.st_mtime_ns, old.st_mode) == (new.st_mtime_ns, new.st_mode)


@on_disk
def test_nobody_else_reads_an_output_before_it_is_complete(place: Place) -> None:
    begin(place.source, place.out)
    assert place.written().parent.stat().st_mode & 0o777 == 0o700


def test_a_run_that_cannot_read_a_checkpoint_leaves_nothing(place: Place) -> None:
    (place.root / "in" / "recovery-point-offset-checkpoint").mkdir()
    with pytest.raises(StorageError):
        begin(place.source, place.out)
    assert (place.beside(), files(place.root / "out")) == ([], {})


def test_a_log_that_is_left_out_leaves_the_files_of_others(place: Place) -> None:
    publication, source = begin(place.source, place.out, **replacing(1))
    for topic in ("apples", "zebras"):
        failed = TopicPartition(topic, 0)
        publication.leave_out(LogLocation(failed, place.source, join(place.source, str(failed))))
    publication.commit(source)
    finished = read_finished(place.out)
    assert finished is not None
    assert {entry.path for entry in finished.files} == files(place.root / "out").keys() - {MANIFEST, FINISHED}


@pytest.mark.parametrize("name", [SEGMENT, ACTIVE.replace(".log", ".index"), "orders-0/partition.metadata"])
@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"?")], ids=["vanished", "cut"])
def test_no_output_appears_if_a_written_file_has_vanished_or_changed(
    place: Place, name: str, harm: Callable[[Path], None]
) -> None:
    publication, source = begin(place.source, place.out)
    harm(place.written() / name)
    told = "has changed since it was written|has 1 bytes in the store, [0-9]+ were written|has vanished"
    with pytest.raises(StorageError, match=told):
        publication.commit(source)
    assert not place.is_published()


def test_a_finished_output_is_replaced_and_nothing_is_left_beside_it(place: Place) -> None:
    publish(place.source, place.out, **replacing(1))
    first, before = read_finished(place.out), entries(place.root / "out")
    (place.root / "in" / "orders-0" / "leader-epoch-checkpoint").write_text("0\n1\n1 0\n")
    with pytest.raises(UsageError, match="exists and is not empty; name a new directory, or give --replace"):
        begin(place.source, place.out)
    publication, source = begin(place.source, place.out, **replacing(2))
    assert entries(place.root / "out") == before
    # a run that fails; in a store its tasks may still write beside the old output, which the next replacement removes
    publication.abort()
    assert entries(place.root / "out") == before
    assert bool(place.beside()) == (place.address == PLACE)
    publish(place.source, place.out, **replacing(2))
    second = read_finished(place.out)
    assert first is not None and second is not None
    assert (first.request, second.request) == ({"as_of_ms": 1}, {"as_of_ms": 2})
    assert files(place.root / "out").keys() - {MANIFEST, FINISHED} == {entry.path for entry in second.files}
    assert (place.root / "out" / "orders-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n1 0\n"
    assert place.beside() == []


def turn(out: Path) -> str:
    """A byte changes, the size does not, nor the time."""
    path = out / SEGMENT
    data, found = bytearray(path.read_bytes()), path.stat()
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    return SEGMENT


def put_link(out: Path) -> str:
    (out / "notes").symlink_to("/nowhere")
    return "notes"


def put_link_for_a_file(out: Path) -> str:
    path = out / SEGMENT
    path.rename(out.parent / "moved.log")
    path.symlink_to(out.parent / "moved.log")
    return SEGMENT


def put_directory(out: Path) -> str:
    (out / "new").mkdir()
    return "new/"


def put_file(out: Path) -> str:
    (out / "orders-0" / "sheet.xlsx").write_bytes(b"cells")
    return "orders-0/sheet.xlsx"


CHANGES = [turn, put_link, put_link_for_a_file, put_directory, put_file]


@pytest.mark.parametrize(
    ("place", "change", "meanwhile"),
    [*(("disk", change, False) for change in CHANGES), *product(["store"], [turn, put_file], [False, True])],
    indirect=["place"],
)
def test_an_output_with_any_change_is_not_replaced(place: Place, change: Callable[[Path], str], meanwhile: bool) -> None:
    """Before the run that replaces it, or while that writes."""
    publish(place.source, place.out, **replacing(1))
    begun = begin(place.source, place.out, **replacing(2)) if meanwhile else None
    name = change(place.root / "out")
    before = entries(place.root / "out")
    with pytest.raises(UsageError, match=f"--replace: this output has changed since it was written: {name}"):
        begin(place.source, place.out, **replacing(2)) if begun is None else begun[0].commit(begun[1])
    assert entries(place.root / "out") == before


@on_disk
@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_written_to_an_output_until_it_is_replaced_is_not_removed(
    place: Place, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], str], exchanges: bool
) -> None:
    """Between the comparison of the output and its replacement, however short that is."""
    publish(place.source, place.out, **replacing(1))
    told: list[str] = []
    publication, source = begin(place.source, place.out, **replacing(2))
    target = place.root / "out"
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
        publication.commit(source)
    publication.abort()
    assert told and os.path.lexists(target / told[0])
    changed = entries(target)
    assert place.beside() == []
    # and a run without the patches leaves it as it is, too
    monkeypatch.undo()
    with pytest.raises(UsageError, match="this output has changed"):
        Publication(FS, place.out, copying(place.source, **replacing(3)))
    assert entries(target) == changed


@on_disk
def test_what_appears_where_an_output_is_to_be_is_replaced_only_if_it_is_an_output(place: Place) -> None:
    """There was none when the run began."""
    target = place.root / "out"
    publication, source = begin(place.source, place.out, **replacing(1))
    (target / "orders-0").mkdir(parents=True)
    put_file(target)
    before = entries(target)
    with pytest.raises(UsageError, match="this directory has no .*: it is not an output of a run"):
        publication.commit(source)
    publication.abort()
    assert (entries(target), place.beside()) == (before, [])
    shutil.rmtree(target)
    publication, source = begin(place.source, place.out, **replacing(2))
    publish(place.source, f"{place.address}/elsewhere", **replacing(3))
    (place.root / "elsewhere").rename(target)
    publication.commit(source)
    finished = read_finished(place.out)
    assert finished is not None and finished.request == {"as_of_ms": 2}


@on_disk
def test_a_locked_output_is_exchanged_by_one_system_call(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that hold the old directory open keep it; there is no time without an output."""
    exchanged, calls = LocalFileSystem.exchange, []

    def exchange(self: LocalFileSystem, first: str, second: str) -> bool:
        with pytest.raises(LockedError):
            lock_directory(place.out)
        done = exchanged(self, first, second)
        calls.append(done and (place.root / "out" / FINISHED).exists())
        return done

    monkeypatch.setattr(LocalFileSystem, "exchange", exchange)
    for number in range(2):
        publish(place.source, place.out, **replacing(number))
    assert (calls, place.beside()) == ([True], [])
    lock_directory(place.out).close()


@on_disk
def test_an_output_that_a_broker_uses_is_not_replaced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(place.source, place.out, **replacing(1))
    monkeypatch.setattr("compaction.files.lock.lock_holder", lambda path: "process 7 (java)" if path == place.out else None)
    with pytest.raises(LockedError, match=r"--replace: process 7 \(java\) uses this output"):
        begin(place.source, place.out, **replacing(2))


@on_disk
def test_a_replaced_output_that_no_run_has_compared_is_removed_only_unchanged(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run is killed after the exchange."""
    publish(place.source, place.out, **replacing(1))
    for change in (None, put_file):
        publication, source = begin(place.source, place.out, **replacing(2))
        with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
            killed.setattr("compaction.output.publish._require_same", Mock(side_effect=KeyboardInterrupt))
            publication.commit(source)
        publication.abort()
        [retired] = place.root.glob(".out.*.replaced")
        if change is not None:
            change(retired)
        remove_leftovers(FS, place.out)
        assert retired.exists() == (change is not None)
    assert f"{retired}: keeping this replaced output, as it has changed: orders-0/sheet.xlsx is new" in caplog.text


@on_disk
def test_an_output_with_an_empty_directory_is_replaced(place: Place) -> None:
    (place.root / "in" / str(OTHER)).mkdir()
    for number in (1, 2):
        publication, source = begin(place.source, place.out, **replacing(number))
        publication.log_path(LogLocation(OTHER, place.source, join(place.source, str(OTHER))))
        publication.commit(source)
        assert (place.root / "out" / str(OTHER)).is_dir()


@on_disk
def test_what_is_recovered_in_memory_or_preallocated_is_copied_as_it_is_used(place: Place) -> None:
    log = place.root / "in" / "orders-0"
    (log.parent / ".kafka_cleanshutdown").unlink()
    (log / f"{90:020d}.timeindex").unlink()
    active = place.root / "in" / ACTIVE
    # an entry of zeros is the time 0 at the first offset
    active.with_suffix(".timeindex").write_bytes(bytes(12))
    used = {file: file.stat().st_size for file in (active, active.with_suffix(".index"), active.with_suffix(".timeindex"))}
    for file in (active, active.with_suffix(".index")):
        os.truncate(file, 10 << 20)
    overlay, here = OverlayFileSystem(FS), location(place.source)
    assert recover_log(overlay, here).actions
    publication = Publication(FS, place.out, copying(place.source))
    publication.add_log(overlay, here, [], read_segments(overlay, here.path), end_offset=None)
    publication.commit(overlay)
    out = place.root / "out" / "orders-0"
    assert (out / f"{90:020d}.timeindex").stat().st_size == 12 and not (log / f"{90:020d}.timeindex").exists()
    assert {file: (out / file.name).stat().st_size for file in used} == used
    assert active.with_suffix(".index").stat().st_size == 10 << 20
    assert read_checkpoints(FS, place.out).cleaner_offsets == {TOPIC: 90}


@on_disk
@pytest.mark.parametrize("target", ["full", "file", "in/inside", "in"])
def test_a_target_that_is_in_use_or_inside_the_source_is_refused(place: Place, target: str) -> None:
    (place.root / "full").mkdir()
    (place.root / "full/something").touch()
    (place.root / "file").touch()
    with pytest.raises(UsageError):
        Publication(FS, f"{place.address}/{target}", copying(place.source))


@on_disk
def test_only_one_run_publishes_to_a_directory_which_may_be_empty(place: Place) -> None:
    (place.root / "out").mkdir()
    # what a killed run left is removed first
    leftover = place.root / f".out.{uuid.uuid4().hex}.partial" / "data/orders-0"
    leftover.mkdir(parents=True)
    (leftover / "00000000000000000007.log").write_bytes(b"old")
    first = Publication(FS, place.out, copying(place.source))
    with pytest.raises(LockedError):
        Publication(FS, place.out, copying(place.source))
    first.abort()
    assert (place.beside(), list((place.root / "out").iterdir())) == ([], [])
    publish(place.source, place.out)
    assert sorted(served(FS, str(place.root / "out/orders-0"))) == [10, 130]


@on_disk
def test_several_log_directories_keep_their_names(place: Place) -> None:
    assert layout("/out", ["/a/one", "/b/two"]) == {"/a/one": "/out/one", "/b/two": "/out/two"}
    with pytest.raises(UsageError, match="called one"):
        layout("/out", ["/a/one", "/b/one"])
    other = place.root / "other"
    (other / "orders-0").mkdir(parents=True)
    data_segment(7, [7]).put(FS, str(other / "orders-0"))
    publication = Publication(FS, place.out, copying(place.source, str(other)))
    for log_dir in (place.source, str(other)):
        here = location(log_dir)
        publication.add_log(FS, here, [], read_segments(FS, here.path), end_offset=None)
    publication.commit(FS)
    assert sorted(served(FS, join(place.out, "in/orders-0"))) == list(range(131))
    assert sorted(served(FS, join(place.out, "other/orders-0"))) == [7]


def disk_with_source() -> FaultyFileSystem:
    fs, here = FaultyFileSystem(), location("/logs")
    fs.mkdir(here.path)
    for segment in (data_segment(0, [5, 10]), data_segment(100, [105])):
        segment.put(fs, here.path)
    fs.mkdir("/out")
    return fs


def publish_to_target(fs: FaultyFileSystem, batch: int, **options: Any) -> None:
    here = location("/logs")
    publication = Publication(fs, "/out/target", copying("/logs", **options))
    files = build(0, [data_batch(batch)]).put(fs, publication.log_path(here), ".clean")
    publication.add_log(fs, here, [SwapGroup((0,), files=files)], read_segments(fs, here.path), end_offset=100)
    publication.commit(fs)


@pytest.mark.parametrize("earlier", [False, True])
def test_after_any_interruption_the_target_has_the_earlier_output_or_the_complete_new_one(earlier: bool) -> None:
    """With two renames, as on file systems that cannot exchange names."""

    def make(step: int | None) -> FaultyFileSystem:
        fs = disk_with_source()
        if earlier:
            publish_to_target(fs, 5, **replacing(1))
        return fs.settle().run_until(step, lambda fs: publish_to_target(fs, 10, **replacing(2) if earlier else {}))

    def published(fs: FaultyFileSystem) -> dict[str, bytes] | None:
        return None if fs.stat("/out/target") is None else tree(fs, "/out/target/orders-0")

    new, old = (published(make(step)) for step in (None, 0))
    assert new is not None and len(new) == 6 and (old is not None) == earlier and new != old
    seen = set()
    for name, fs in crash_states(make):
        found = published(fs)
        if earlier:
            # what every run with this target begins with
            remove_leftovers(fs, "/out/target")
            found = published(fs)
            require_replaceable("/out/target", fs)
            assert fs.listdir("/out") == ["target"], name
        assert found in (old, new), name
        assert found != new or read_checkpoints(fs, "/out/target").cleaner_offsets == {TOPIC: 100}, name
        seen.add(found == new)
    assert seen == {False, True}


def test_requests_are_compared_by_what_they_say() -> None:
    assert differences({"a": 1, "b": [2]}, {"a": 1, "b": [2]}) == []
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == ["b", "c"]
    assert differences(None, {"a": 1}) != []
