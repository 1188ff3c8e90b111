"""Logs as tiered storage: what the plugin wrote is written again as it was, and every upload has what the log has. Producer
snapshots that a log directory lacks are replayed when they are needed. Of two runs that write a new export to one prefix, at
most one completes it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import current_thread
from types import MappingProxyType
from typing import Any

import pytest

from compaction.errors import CompactionError, CorruptLogError, StorageError, UnsupportedLogError
from compaction.exports import FORMAT, LAYOUTS, LogFile, StoredLog, TargetOptions, aiven_objects, new_export
from compaction.exports.aiven_writer import _chunk_index, _positions
from compaction.exports.tiered_writer import TieredTarget, Uploads, listed_uploads
from compaction.exports.uploads import empty_batch, new_uploads
from compaction.files import data_keys, mixed
from compaction.files.filesystem import FileRange, join
from compaction.files.local import LocalFileSystem
from compaction.files.manifest import MARKER, Marker
from compaction.files.mixed import MixedFileSystem, OutputFileSystem, marked_by
from compaction.formats.producer_snapshot import read_snapshot
from compaction.formats.record_batch import BatchHeader
from compaction.log.read_log import read_segments
from compaction.names import TopicPartition
from compaction.rules.log_view import Segment
from tests.disk import Operation, WatchedFileSystem
from tests.exports.exports import (
    LOG_NAME,
    TOPIC_ID,
    aiven,
    local_tiered,
    offsets,
    offsets_in,
    read_all,
    require_cryptography,
    upload,
    uploaded,
    write_log_dir,
)
from tests.files.remote_places import PLACE
from tests.kafka.encode import Batch, Record
from tests.log.logs import build, data_batch, iter_batches, put_snapshot, txn_batch
from tests.object_store.fixtures import files
from tests.trust.turns import Actor, Schedule

NOW_MS = 1_800_000_000_000


@pytest.fixture
def copy(source: Path, tmp_path: Path) -> Path:
    """A log directory with the log that was exported."""
    shutil.copytree(source, tmp_path / "copy" / source.name)
    return tmp_path / "copy"


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, str]:
    """A log directory with two segments, and the address of an export of them."""
    for each in (range(10), range(10, 20)):
        upload(tmp_path / "in", each)
    return write_log_dir(tmp_path / "copy", [0, *range(10)], [10, *range(10, 20)]), local_tiered(tmp_path / "in")


def tiered(path: Path, layout: str, source: str | None, uploads: Uploads = MappingProxyType({})) -> TieredTarget:
    """A target with uploads as they were listed before."""
    target = LAYOUTS[layout].target(TargetOptions(str(path), source or "", lambda _: True, accepted=FORMAT, dry_run=True))
    assert isinstance(target, TieredTarget)
    return replace(target, uploads=uploads)


def write(log_dir: Path, target: Path, layout: str, source: str | None = None) -> str:
    uploads = {} if source is None else listed_uploads(source, lambda _: True)
    return tiered(target, layout, source, uploads).write(str(log_dir), NOW_MS)


def test_what_the_plugin_wrote_is_written_again_as_it_was(coding: str, objects: Path, copy: Path, tmp_path: Path) -> None:
    """But for data keys, their authenticated data, and IVs."""
    write(copy, tmp_path / "out", "aiven", aiven(objects / coding))
    old, new = files(objects / coding), files(tmp_path / "out")
    assert list(new) == list(old)
    for name, data in old.items():
        if name.endswith(".rsm-manifest"):
            mine, theirs = json.loads(new[name]), json.loads(data)
            assert list(mine) == list(theirs)
            if "encrypted" in coding:
                keys = [each.pop("encryption") for each in (mine, theirs)]
                assert keys[0].keys() == keys[1].keys() == {"dataKey", "aad"}
                assert all(keys[0][field] != keys[1][field] for field in keys[0])
            if "zstd" in coding:
                # of another version of zstd
                assert all(each["chunkIndex"].pop("transformedChunks") for each in (mine, theirs))
            assert mine == theirs
        elif coding == "plain" or (coding == "zstd" and name.endswith(".indexes")):
            assert new[name] == data
        elif coding == "encrypted" or name.endswith(".indexes"):
            assert len(new[name]) == len(data)
    assert read_all(aiven(tmp_path / "out"), LOG_NAME) == read_all(aiven(objects / coding), LOG_NAME)


def test_each_segment_has_a_data_key_of_its_own_and_no_iv_twice(objects: Path, copy: Path, tmp_path: Path) -> None:
    require_cryptography()
    write(copy, tmp_path / "out", "aiven", aiven(objects / "encrypted"))
    keys, ivs = set(), []
    manifests = list((tmp_path / "out").rglob("*.rsm-manifest"))
    for path in manifests:
        manifest = json.loads(path.read_text())
        keys.add(data_keys.data_key(manifest["encryption"]["dataKey"], str(path)))
        log, each = path.with_suffix(".log").read_bytes(), manifest["chunkIndex"]["transformedChunkSize"]
        ivs += [log[at : at + 12] for at in range(0, len(log), each)]
    assert len(keys) == len(manifests)
    assert len(set(ivs)) == len(ivs) > len(manifests)


def moved(name: str, other: str) -> Callable[[dict[str, bytes | None]], dict[str, Any]]:
    """A manifest's sections, of which one has the place of another one."""
    return lambda sections: {**(found := _positions(sections)), name: found[other]}


def with_other_byte(data: bytes, coding: Any) -> bytes:
    return aiven_objects.encoded(bytes([data[0] ^ 1]) + data[1:], coding)


def of_other_chunks(size: int, chunk_bytes: int, coding: Any, sizes: list[int]) -> dict[str, Any]:
    """A chunk index by which the first chunk is one byte longer, and the last one is shorter."""
    found = _chunk_index(size, chunk_bytes, coding, sizes)
    each, count = found["originalChunkSize"] + 1, len(sizes)
    last = size - (count - 1) * each
    return {**found, "originalChunkSize": each, "transformedChunkSize": each - 1, "finalTransformedChunkSize": last + count - 1}


@pytest.mark.parametrize(
    ("coding", "name", "broken", "told"),
    [
        # other bytes than the log has are compressed; another key than that of the chunks is wrapped
        ("zstd", "encoded", with_other_byte, "decoded to other"),
        ("zstd-encrypted", "new_data_key", lambda wrapped, path: (bytes(32), wrapped), "it cannot be decoded: chunk 0"),
        ("plain", "_positions", moved("timestamp", "offset"), "section timestamp has other bytes"),
        ("encrypted", "_positions", moved("offset", "producerSnapshot"), "section offset has other bytes"),
        ("plain", "_positions", moved("leaderEpoch", "producerSnapshot"), "it cannot be decoded: has .*, its manifest lists"),
        ("encrypted", "encrypted", lambda data, _: data + bytes(28), "it cannot be decoded: section .* tag does not match"),
        ("plain", "_chunk_index", of_other_chunks, "it cannot be decoded: chunk 0|it is decoded to other bytes"),
        ("plain", "_chunk_index", lambda size, *given: _chunk_index(size - 1, *given), "its manifest has offsets 0 to"),
    ],
    indirect=["coding"],
)
def test_what_the_layout_reads_otherwise_is_not_completed(
    coding: str,
    name: str,
    broken: Callable[..., Any],
    told: str,
    objects: Path,
    copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"compaction.exports.aiven_writer.{name}", broken)
    with pytest.raises(StorageError, match=f"output is read back otherwise than it was written: .*({told})"):
        write(copy, tmp_path / "out", "aiven", aiven(objects / coding))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layout", ["aiven", "local-tiered"])
def test_an_upload_ends_at_its_last_offset_though_its_last_records_are_gone(tmp_path: Path, layout: str) -> None:
    epochs = [(3, 0), (5, 15)]
    uploads = [upload(tmp_path / "in", range(at, at + 10), epochs) for at in (0, 10, 20)]
    copy = write_log_dir(tmp_path / "copy", [0, 0, 3, 4], [10], [20, 25, 29], epochs=epochs)
    told = write(copy, tmp_path / "out", layout, local_tiered(tmp_path / "in"))
    assert told.startswith("3 segments, ")
    address = local_tiered(tmp_path / "out") if layout == "local-tiered" else aiven(tmp_path / "out")
    fs, log = MixedFileSystem(), join(address, "orders-0")
    found = [list(iter_batches(fs.read_bytes(join(log, f"{at:020d}.log")))) for at in (0, 10, 20)]
    headers = [[each.header for each in batches if isinstance(each.header, BatchHeader)] for batches in found]
    assert [[(each.base_offset, each.record_count) for each in some] for some in headers] == [
        [(0, 1), (3, 1), (4, 1), (9, 0)],
        [(19, 0)],
        [(25, 1), (29, 1)],
    ]
    for batches in found:
        for each in batches:
            each.ensure_valid()
    # of the leader that wrote the last offset
    assert [some[-1].leader_epoch for some in headers] == [3, 5, 5]
    assert fs.read_bytes(join(log, "leader-epoch-checkpoint")) == b"0\n2\n3 0\n5 15\n"
    # under the names that the cluster knows
    stems = {path.stem.partition("-")[2] for path in uploads}
    assert {path.stem.partition("-")[2] for path in (tmp_path / "out").rglob("*.log")} == stems


Epochs = list[tuple[int, int]]
FIRST, SECOND, THIRD = [(0, 0)], [(0, 0), (1, 10)], [(0, 0), (2, 10)]
THREE = [(0, 0), (1, 10), (2, 15)]


@pytest.mark.parametrize(
    ("layout", "uploads", "segments", "epochs", "written", "log"),
    [
        # which of them the cluster's metadata names is not known, and new leaders upload from an earlier offset
        pytest.param(
            "local-tiered",
            [(range(10), FIRST), (range(10), FIRST), (range(6, 20), FIRST), (range(20, 25), FIRST)],
            [[0, 0, 5, 7, 8], [10, 11, 16], [20, 24]], FIRST,
            [(0, [0, 5, 7, 8, 9]), (0, [0, 5, 7, 8, 9]), (6, [7, 8, 11, 16, 19]), (20, [24])],
            [0, 5, 7, 8, 9, 11, 16, 19, 24], id="all uploads of the same offsets",
        ),
        # brokers do not read it, and what the log has in its offsets may be larger
        pytest.param(
            "aiven",
            [(range(10), FIRST), (range(10, 12), SECOND), (range(10, 20), THIRD)],
            [[0, *range(10)], [10, *range(10, 20)]], THIRD,
            [(0, [*range(10)]), (10, [*range(10, 20)]), (10, [11])],
            [*range(20)], id="an upload that another leader has truncated",
        ),
        # these are in the offsets of the older leader's upload, but of a later epoch than its lineage has
        pytest.param(
            "local-tiered",
            [(range(20), SECOND), (range(15, 30), THREE)],
            [[0, 0, 12, 14], [15, *range(16, 30)]], THREE,
            [(0, [0, 12, 14, 19]), (15, [*range(16, 30)])],
            [0, 12, 14, *range(16, 30)], id="records that another leader has truncated of an upload",
        ),
    ],
)  # fmt: skip
def test_each_upload_has_the_records_of_its_offsets_and_lineage(
    tmp_path: Path,
    layout: str,
    uploads: list[tuple[range, Epochs]],
    segments: list[list[int]],
    epochs: Epochs,
    written: list[tuple[int, list[int]]],
    log: list[int],
) -> None:
    for offsets_of_upload, lineage in uploads:
        upload(tmp_path / "in", offsets_of_upload, lineage)
    copy = write_log_dir(tmp_path / "copy", *segments, epochs=epochs)
    write(copy, tmp_path / "out", layout, local_tiered(tmp_path / "in"))
    logs = [(path.name, offsets_in(LocalFileSystem(), str(path))) for path in (tmp_path / "out").rglob("*.log")]
    assert sorted((int(name.partition("-")[0]), each) for name, each in logs) == written
    assert offsets((aiven if layout == "aiven" else local_tiered)(tmp_path / "out")) == log


def test_indexes_of_a_segment_that_consists_of_others_are_rebuilt(tmp_path: Path) -> None:
    upload(tmp_path / "in", range(300))
    upload(tmp_path / "in", range(250, 700))
    copy = write_log_dir(tmp_path / "copy", [0, *range(0, 300, 2)], [300, *range(301, 700)])
    write(copy, tmp_path / "out", "local-tiered", local_tiered(tmp_path / "in"))
    found = {int(path.name.partition("-")[0]): path for path in (tmp_path / "out").rglob("*.log")}
    expected = build(250, [data_batch(offset) for offset in [*range(250, 300, 2), *range(301, 700)]])
    for kind, data in expected.files.items():
        assert found[250].with_suffix(kind).read_bytes() == data
    whole = build(0, [data_batch(offset) for offset in range(0, 300, 2)]).files
    assert found[0].read_bytes() == whole[".log"] + empty_batch(299, 0)
    assert found[0].with_suffix(".index").read_bytes() == whole[".index"]


@pytest.mark.parametrize("layout", ["aiven", "local-tiered"])
def test_a_log_directory_is_written_with_ids_that_its_segments_always_have(tmp_path: Path, layout: str, source: Path) -> None:
    """The last segment is empty; there is no snapshot at its end."""
    for name in ("a", "b"):
        copy = tmp_path / name
        shutil.copytree(source, copy / source.name)
        next((copy / source.name).glob("*104.snapshot")).unlink()
        write(copy, tmp_path / f"out-{name}", layout)
    made = files(tmp_path / "out-a")
    assert made == files(tmp_path / "out-b")
    address = local_tiered(tmp_path / "out-a") if layout == "local-tiered" else aiven(tmp_path / "out-a")
    assert read_all(address, LOG_NAME) == uploaded(source)


def test_a_segment_that_has_grown_is_an_error(tmp_path: Path) -> None:
    """Plugins read as many bytes as the cluster's metadata says."""
    path = upload(tmp_path / "in", range(3))
    copy = write_log_dir(tmp_path / "copy", [0, 0, 1])
    larger = Batch([Record(2, 0, b"key", b"v" * 200)]).encode()
    with (copy / "orders-0" / f"{0:020d}.log").open("ab") as log:
        log.write(larger)
    with pytest.raises(UnsupportedLogError, match="bytes after this run, .* before: plugins read only") as error:
        write(copy, tmp_path / "out", "local-tiered", local_tiered(tmp_path / "in"))
    assert error.value.path == str(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["copy", "in"]


def test_an_upload_without_bytes_of_which_another_one_has_the_offsets_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compaction.exports.tiered_writer._require_same", lambda *_: None)
    path = upload(tmp_path / "in", range(3))
    address = local_tiered(tmp_path / "in")
    copy, uploads = write_log_dir(tmp_path / "copy", [0, 0, 1, 2]), listed_uploads(address, lambda _: True)
    (stored,) = uploads.values()
    assert isinstance(stored, StoredLog)
    (segment,) = stored.segments
    files = {**segment.files, ".log": LogFile(0, 0, FileRange(str(path), 0, 0))}
    uploads = {log: StoredLog((replace(segment, files=files),), TOPIC_ID) for log in uploads}
    with pytest.raises(UnsupportedLogError, match="0 before: plugins read only"):
        tiered(tmp_path / "out", "aiven", address, uploads).write(str(copy), NOW_MS)


def test_a_log_whose_uploads_could_not_be_listed_is_an_error(tmp_path: Path) -> None:
    """Though they could be when the logs were read."""
    path = upload(tmp_path / "in", range(3))
    address, data = local_tiered(tmp_path / "in"), path.read_bytes()
    path.write_bytes(b"")
    uploads = listed_uploads(address, lambda _: True)
    path.write_bytes(data)
    copy = write_log_dir(tmp_path / "copy", [0, 0, 1, 2])
    with pytest.raises(CorruptLogError, match="has no complete batch") as error:
        tiered(tmp_path / "out", "aiven", address, uploads).write(str(copy), NOW_MS)
    assert error.value.path == str(path)
    with pytest.raises(CorruptLogError, match="orders-0: was not uploaded when the run began; run the command again"):
        tiered(tmp_path / "out", "aiven", address).write(str(copy), NOW_MS)


@pytest.mark.parametrize("layout", ["aiven", "local-tiered"])
@pytest.mark.parametrize(
    ("listed", "copied", "first"),
    [
        # the last upload is of the time between listing and reading
        ([range(10)], [[0, 1, 9], [10, 12, 15]], 12),
        # as this, in a segment that the cleaner has joined
        ([range(10)], [[0, 1, 12, 15]], 12),
        # a hole between the uploads
        ([range(10), range(20, 30)], [[0, 1, 11, 13, 25]], 11),
        # before the first upload
        ([range(10, 20)], [[0, 1, 9], [10, 12]], 1),
        # an upload without a manifest, when it was listed
        ([], [[0, 1, 9]], 1),
    ],
)
def test_a_batch_of_the_copy_that_no_upload_has_is_an_error(
    tmp_path: Path, layout: str, listed: list[range], copied: list[list[int]], first: int
) -> None:
    """Records that it supersedes are gone, and it would be, too."""
    for each in listed:
        upload(tmp_path / "in", each)
    copy, address = write_log_dir(tmp_path / "copy", *copied), local_tiered(tmp_path / "in")
    uploads = listed_uploads(address, lambda _: True) or {TopicPartition("orders", 0): StoredLog((), TOPIC_ID)}
    told = f"orders-0: offset {first} of the output is in no segment .*; run the command again"
    with pytest.raises(CorruptLogError, match=told):
        tiered(tmp_path / "out", layout, address, uploads).write(str(copy), NOW_MS)
    assert {path.name for path in tmp_path.iterdir()} <= {"copy", "in"}


def removed(directory: Path) -> None:
    for path in directory.rglob("10-*"):
        path.unlink()


def rewritten(directory: Path) -> None:
    (path,) = directory.rglob("10-*.log")
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (partial(upload, offsets=range(10, 20), epochs=[(0, 0), (2, 10)]), r"/10-\d+.log: was uploaded"),
        (
            partial(upload, offsets=range(20, 30), epochs=[(0, 0), (2, 15)]),
            "/orders-0: a new leader or a re-created topic has uploaded segments",
        ),
        (removed, r"/10-\d+.log: was removed or changed"),
        (rewritten, r"/10-\d+.log: was removed or changed"),
    ],
)
def test_what_is_uploaded_after_the_listing_is_not_written_under_an_old_id(
    tmp_path: Path, two: tuple[Path, str], change: Callable[[Path], object], told: str
) -> None:
    """The copy may have its records, in the offsets of the old uploads."""
    copy, address = two
    uploads = listed_uploads(address, lambda _: True)
    change(tmp_path / "in")
    with pytest.raises(CorruptLogError, match=f"{told} while the logs were read; run the command again while nothing is"):
        tiered(tmp_path / "out", "local-tiered", address, uploads).write(str(copy), NOW_MS)
    assert {path.name for path in tmp_path.iterdir()} == {"copy", "in"}


def test_a_leader_that_goes_on_uploading_does_not_fail_the_run(tmp_path: Path, two: tuple[Path, str]) -> None:
    """Neither does a new one that has all that was listed."""
    copy, address = two
    uploads = listed_uploads(address, lambda _: True)
    upload(tmp_path / "in", range(20, 30))
    upload(tmp_path / "in", range(20, 40), [(0, 0), (3, 20)])
    told = tiered(tmp_path / "out", "local-tiered", address, uploads).write(str(copy), NOW_MS)
    assert told.startswith("2 segments, ")


@pytest.mark.parametrize(("layout", "count"), [("aiven", 6), ("local-tiered", 10)])
def test_nothing_is_left_if_any_file_cannot_be_written(
    tmp_path: Path, two: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, layout: str, count: int
) -> None:
    left: Iterator[int] = iter(())

    def fail(operation: Operation) -> None:
        if operation.name == "create" and next(left, None) == 1:
            raise StorageError("no space", path=operation.path)

    monkeypatch.setattr("compaction.exports.new_export.LocalFileSystem", lambda: WatchedFileSystem(LocalFileSystem(), fail))
    copy, address = two
    for number in range(1, count + 1):
        left = iter(range(number, 0, -1))
        with pytest.raises(StorageError, match="no space"):
            write(copy, tmp_path / "out", layout, address)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "in"]
    write(copy, tmp_path / "out", layout, address)
    assert len(files(tmp_path / "out")) == count


BASES = range(0, 60, 10)
STORED = 30


@pytest.fixture
def unsnapped(tmp_path: Path) -> str:
    """Each segment has a transaction of another producer; there is one snapshot, of none."""
    path = tmp_path / "orders-0"
    path.mkdir()
    for base in BASES:
        for kind, data in build(base, [txn_batch(base, producer_id=base + 1)]).files.items():
            (path / f"{base:020d}{kind}").write_bytes(data)
    put_snapshot(LocalFileSystem(), str(path), STORED)
    return str(path)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The logs that were replayed."""
    found: list[str] = []

    def replayed(files: LocalFileSystem, path: str) -> tuple[Segment, ...]:
        found.append(path)
        return read_segments(files, path)

    monkeypatch.setattr("compaction.exports.uploads.read_segments", replayed)
    return found


def test_a_log_is_replayed_once_when_the_first_snapshot_is_read(unsnapped: str, replays: list[str]) -> None:
    made = list(new_uploads(LocalFileSystem(), TopicPartition("orders", 0), unsnapped))
    assert [each.end_offset for each in made] == [*BASES[1:], BASES[-1] + 1] and not replays
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: read_snapshot(each.snapshot()), made))
    assert replays == [unsnapped]
    producers = [[entry.producer_id for entry in entries] for entries in found]
    ends = [each.end_offset for each in made]
    assert producers == [[] if end == STORED else [base + 1 for base in BASES if base < end] for end in ends]


def test_snapshots_that_were_read_are_not_kept(unsnapped: str, replays: list[str]) -> None:
    first, *others = new_uploads(LocalFileSystem(), TopicPartition("orders", 0), unsnapped)
    data = first.snapshot()
    assert len(replays) == 1
    assert first.snapshot() == data
    assert len(replays) == 2
    assert len({each.snapshot() for each in others}) == len(others)
    assert len(replays) == 2


OUT = f"{PLACE}/out"
OURS, THEIRS = "ours", "theirs"
NAMES = ["log", "manifest"]
#: calls of a run that completes
CALLS = 11


def complete(content: str, *, failing: bool = False) -> str:
    """A run; returns what it has written, or its error."""
    try:
        with new_export._new_objects(OUT) as export:
            for name in NAMES:
                export.write(join(export.place, name), [content.encode()])
            if failing:
                raise StorageError("no space", path=OUT)
    except CompactionError as error:
        return str(error)
    return content


#: for each run what its thread calls before it calls the store
TURNS: dict[str, Callable[[], None]] = {}


def in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*given: Any, **named: Any) -> Any:
        TURNS[current_thread().name]()
        return function(*given, **named)

    return called


class InTurns(OutputFileSystem):
    """Calls the store in turn."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return in_turn(found) if name in ("mkdir", "write_file", "listdir", "unlink", "open", "remove_tree") else found


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    """Both runs, one call of the store at a time; returns what they said."""
    monkeypatch.setattr(new_export, "OutputFileSystem", InTurns)
    for module, name in ((new_export, "ObjectOutput"), (new_export, "marked_by"), (mixed, "marked_by")):
        monkeypatch.setattr(module, name, in_turn(getattr(module, name)))

    def run(chance: random.Random, theirs_at: int, failing: str | None = None) -> set[str]:
        schedule = Schedule(chance, 1, lambda _: None)
        schedule.actors = [Actor(OURS), Actor(THEIRS, starts_at=theirs_at)]
        for actor in schedule.actors:
            TURNS[actor.name] = partial(schedule.take_turn, actor)
            actor.work = partial(complete, actor.name, failing=actor.name == failing)
        schedule.run()
        return {actor.outcome for actor in schedule.actors}

    return run


class Last(random.Random):
    """Chooses the last run that has begun."""

    def choice(self, seq: Any) -> Any:
        return seq[-1]


def orders() -> Iterator[tuple[random.Random, int]]:
    """One whole run between two calls of the other, then any; the call before which the other begins."""
    yield from ((Last(0), before) for before in range(CALLS + 1))
    yield from ((random.Random(seed), 0) for seed in range(300))


def test_two_runs_at_once_do_not_mix_their_outputs(bucket: Path, turns: Callable[..., set[str]]) -> None:
    """Both have found the prefix empty before. What a run has completed is not changed by the other."""
    completed = []
    for number, order in enumerate(orders()):
        told = turns(*order)
        written = told & {OURS, THEIRS}
        assert files(bucket / "out") == {name: each.encode() for each in written for name in NAMES}, (number, told)
        assert len(written) < 2
        assert all("; let one run at a time write there" in each for each in told - written)
        completed += sorted(written)
        shutil.rmtree(bucket / "out")
    assert {OURS, THEIRS} == set(completed) and len(completed) > 200


def test_a_run_that_fails_removes_nothing_of_another_one(bucket: Path, turns: Callable[..., set[str]]) -> None:
    completed = 0
    for number, order in enumerate(orders()):
        told = turns(*order, failing=OURS)
        assert files(bucket / "out") == (dict.fromkeys(NAMES, THEIRS.encode()) if THEIRS in told else {}), (number, told)
        completed += THEIRS in told
        shutil.rmtree(bucket / "out", ignore_errors=True)
    assert completed > 20


def test_a_marker_of_another_run_is_an_error_and_is_kept(bucket: Path) -> None:
    """A run that writes another kind of output removes what it takes for that of a killed run."""
    with pytest.raises(StorageError, match="another run writes to this directory; let one run"), new_export.new_export(OUT):
        (bucket / "out" / MARKER).write_bytes(Marker("other").to_json())
    assert marked_by(OUT) == "other"
