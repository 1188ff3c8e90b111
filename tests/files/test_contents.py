"""Files are compared with what was written to them; small text files are never seen half written.

Works that advance in step: what they wait for is flushed together, and an error concerns one of them.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from compaction.errors import CorruptLogError, StorageError, UsageError
from compaction.files import read_counter
from compaction.files.contents import (
    READ_BYTES,
    View,
    borrow_buffer,
    digest_of,
    find_mismatch,
    read_device_blocks,
    read_range,
    return_buffer,
    verify_file,
    view,
)
from compaction.files.durable import DurableSteps, content_of, names_in, run_in_step
from compaction.files.filesystem import FileRange
from compaction.files.local import LocalFileSystem
from compaction.files.segment_file import SegmentReader, SegmentScan
from compaction.files.system_calls import whole_sync
from compaction.files.text_files import (
    MAX_SMALL_BYTES,
    check_writable,
    read_small,
    read_small_text,
    read_text,
    write_text,
)
from tests.disk import FaultyFileSystem, WatchedFileSystem
from tests.dumping.segments import write_segment
from tests.kafka.encode import Batch, Record

FS = LocalFileSystem()
MISMATCHES = [
    (b"abc", None),
    (b"abd", "other bytes than were written"),
    (b"ab", "2 bytes, 3 were written"),
    (b"abcd", "more than 3 bytes"),
    (b"", "0 bytes, 3 were written"),
]


@pytest.mark.parametrize(("content", "expected"), MISMATCHES)
def test_a_difference_in_size_or_bytes_is_found(tmp_path: Path, content: bytes, expected: str | None) -> None:
    (path := tmp_path / "file").write_bytes(content)
    assert find_mismatch(FS, str(path), digest_of(b"abc")) == expected
    told = f"{path}: output is read back otherwise than it was written: {expected}"
    with nullcontext() if expected is None else pytest.raises(StorageError, match=told):
        verify_file(FS, str(path), digest_of(b"abc"))


@pytest.mark.parametrize("size", [0, 1, 4097, READ_BYTES, READ_BYTES + 5])
def test_the_device_blocks_are_the_content(tmp_path: Path, size: int) -> None:
    content = bytes(range(251)) * (size // 251 + 1)
    (tmp_path / "file").write_bytes(content[:size])
    assert b"".join(block.tobytes() for block in read_device_blocks(FS, str(tmp_path / "file"))) == content[:size]


def test_a_byte_range_is_read_in_blocks(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    blocks = read_range(FS, FileRange(str(tmp_path / "file"), 2, 7), block_bytes=3)
    assert [bytes(block) for block in blocks] == [b"234", b"567", b"8"]
    with pytest.raises(StorageError, match="at byte 10: file was truncated while it was read"):
        list(read_range(FS, FileRange(str(tmp_path / "file"), 8, 4)))


def test_a_returned_buffer_is_reused() -> None:
    buffer = borrow_buffer()
    return_buffer(buffer)
    assert borrow_buffer() is buffer
    assert buffer.ctypes.data % 4096 == 0


@pytest.mark.parametrize("seed", range(5))
def test_batches_are_found_through_windows_as_in_a_local_file(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.choice([1, 100, 40_000, 70_000, 200_000]) for _ in range(60)]
    batches = [Batch([Record(i, 0, b"k", bytes(size))]).encode() for i, size in enumerate(sizes)]
    whole = b"".join(batches) + chance.choice([b"", bytes(30), batches[0][:-1], b"\xff" * 100])
    (tmp_path / "segment").write_bytes(whole)
    ranged = View("far", lambda start, length: whole[start : start + length], len(whole))
    near = SegmentScan(view(LocalFileSystem(), str(tmp_path / "segment")), check_crc=True)
    far = SegmentScan(ranged, check_crc=True)
    rows = [np.concatenate(list(scan)) for scan in (near, far)]
    assert np.array_equal(rows[0], rows[1])
    ends = [(scan.position, scan.error, scan.next_offset, scan.complete) for scan in (near, far)]
    assert ends[0] == ends[1]
    assert near.damage() == far.damage()


def test_slices_can_be_sliced() -> None:
    data = bytes(range(256)) * 1000
    ranged = View("far", lambda start, length: data[start : start + length], len(data))
    assert ranged[1000:][5:20].tobytes() == data[1005:1020]
    assert len(ranged[10:5]) == 0
    assert ranged[-3:].tobytes() == data[-3:]
    assert ranged[300_000:].tobytes() == b""
    assert ranged.any() and not ranged[0:1].any()


def test_a_file_truncated_after_the_view_was_made_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    found = view(LocalFileSystem(), str(path))
    path.write_bytes(b"0123")
    with pytest.raises(StorageError, match="at byte 4: file was truncated while it was read"):
        found.tobytes()


@pytest.mark.parametrize("last", [b"", b"x"])
def test_the_holes_of_a_file_are_not_read_to_find_a_byte(tmp_path: Path, last: bytes) -> None:
    path = tmp_path / "segment"
    with path.open("wb") as file:
        file.write(b"data")
        # it would take minutes to read
        file.seek(1 << 40)
        file.write(last)
        file.truncate((1 << 40) + 4096)
    assert view(LocalFileSystem(), str(path))[4:].any() == bool(last)


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The directory of counts, which this process knows."""
    directory = tmp_path / "counts"
    directory.mkdir()
    monkeypatch.setenv(read_counter.VARIABLE, str(directory))
    return str(directory)


def test_blocks_count_before_the_segment_is_read(tmp_path: Path, counts: str) -> None:
    made = write_segment(tmp_path / "long-0", batches=100)
    size = made.path.stat().st_size
    with SegmentReader(LocalFileSystem(), str(made.path), 0, size, block_bytes=size // 4) as reader:
        blocks = reader.blocks(check_crc=True)
        next(blocks)
        next(blocks)
        assert 0 < read_counter.total(counts) < size
        assert list(blocks)
    assert read_counter.total(counts) == size


def test_each_process_has_its_own_count_also_if_it_was_forked(counts: str) -> None:
    read_counter.count(10)
    forked = multiprocessing.get_context("fork").Process(target=read_counter.count, args=(5,))
    forked.start()
    forked.join()
    read_counter.count(1)
    assert read_counter.total(counts) == 16


def test_a_count_that_cannot_be_written_is_no_error(counts: str) -> None:
    Path(counts).rmdir()
    read_counter.count(10)
    assert read_counter.total(counts) == 0


def test_nothing_is_counted_unless_somebody_wants_to_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(read_counter.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    read_counter.count(10)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_read_in_its_encoding(tmp_path: Path) -> None:
    file = tmp_path / "a.properties"
    file.write_bytes(b"x=\xe9")
    assert read_text(str(file), "latin-1") == "x=é"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "cannot be read: No such file"),
        (".", "cannot be read: Is a directory"),
        ("bad", "at byte 2: is not utf-8 text"),
        ("huge", "is larger than 64 MiB"),
    ],
)
def test_an_unreadable_file_is_a_usage_error(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "bad").write_bytes(b"x=\xff")
    huge(tmp_path / "huge")
    with pytest.raises(UsageError) as error:
        read_text(str(tmp_path / name))
    assert message in str(error.value)


def test_a_file_is_replaced_atomically_without_leftovers(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    file.write_text("old")
    write_text(str(file), "né\n")
    assert file.read_text("utf-8") == "né\n"
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.mkdir()
    (target / "inside").touch()
    with pytest.raises(StorageError, match=r"report\.json: cannot be written"):
        write_text(str(target), "new")
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]


def test_a_path_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "new.json"))
    for name in ("no/such/dir.json", "."):
        with pytest.raises(UsageError):
            check_writable(str(tmp_path / name))


def huge(path: Path) -> None:
    """A terabyte that takes no space."""
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (huge, "is larger than 64 MiB, the limit for such files; remove it"),
        # without blocking
        (os.mkfifo, "is not a regular file; remove it"),
        (lambda path: path.write_bytes(b"0\n\xff"), "at byte 2: is not text; remove it"),
    ],
    ids=["huge", "pipe", "no text"],
)
def test_a_file_that_is_no_small_text_is_refused(tmp_path: Path, make: Callable[[Path], object], told: str) -> None:
    make(file := tmp_path / "checkpoint")
    with pytest.raises(CorruptLogError, match=f"checkpoint:? {told}"):
        read_small_text(LocalFileSystem(), str(file), "remove it")


class _Growing(LocalFileSystem):
    """Files that grow once their size was asked for."""

    def stat(self, path: str):  # type: ignore[no-untyped-def]
        found = super().stat(path)
        return found if found is None else found._replace(size=0)


def test_a_file_that_grows_past_the_limit_during_the_read_is_refused(tmp_path: Path) -> None:
    file = str(tmp_path / "checkpoint")
    Path(file).touch()
    os.truncate(file, MAX_SMALL_BYTES + 1)
    with pytest.raises(CorruptLogError, match="is larger than 64 MiB"):
        read_small(_Growing(), file, "remove it")
    os.truncate(file, MAX_SMALL_BYTES)
    assert len(read_small(_Growing(), file, "remove it")) == MAX_SMALL_BYTES


def test_a_link_planted_under_the_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    secret = tmp_path / "secret"
    secret.write_text("untouched")
    (tmp_path / ".guessed.tmp").symlink_to(secret)
    with pytest.raises(StorageError, match="cannot be written: File exists"):
        write_text(str(tmp_path / "report.json"), "new")
    assert secret.read_text() == "untouched"
    assert (tmp_path / ".guessed.tmp").is_symlink()


@pytest.mark.parametrize("umask", [0o077, 0o022])
def test_a_report_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path: Path, umask: int) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.touch()
    old.chmod(0o664)
    before = os.umask(umask)
    try:
        write_text(str(old), "x")
        write_text(str(new), "x")
    finally:
        os.umask(before)
    assert (old.stat().st_mode & 0o7777, new.stat().st_mode & 0o7777) == (0o664, 0o666 & ~umask)


MANY = 20


def work(fs: FaultyFileSystem, directory: str) -> DurableSteps[str]:
    """Writes a file, then gives it another name; returns the directory, or the error's text."""
    try:
        fs.write_file(f"{directory}/new", b"abc")
        yield content_of(f"{directory}/new")
        fs.rename(f"{directory}/new", f"{directory}/file")
        yield names_in(directory)
    except StorageError as error:
        return str(error)
    return directory


def directories(fs: FaultyFileSystem, count: int) -> list[str]:
    made = [f"/logs/{number}" for number in range(count)]
    for each in made:
        fs.mkdir(each)
    return made


def test_works_advance_together_to_the_point_where_they_wait_and_what_they_wait_for_is_durable() -> None:
    fs = FaultyFileSystem()
    made = directories(fs, MANY)
    fs.log.clear()
    assert run_in_step(fs, made, [work(fs, each) for each in made]) == made
    steps = [line.split(" ")[0] for line in fs.log]
    assert steps == [step for step in ("write", "fsync", "rename", "fsync_dir") for _ in made]
    assert all(fs.after_power_loss(None).read_bytes(f"{each}/file") == b"abc" for each in made)


def test_works_of_different_lengths_end_on_their_own() -> None:
    def counting(steps: int) -> DurableSteps[int]:
        for _ in range(steps):
            yield ()
        return steps

    assert run_in_step(FaultyFileSystem(), (), [counting(steps) for steps in (3, 0, 1)]) == [3, 0, 1]
    assert run_in_step(FaultyFileSystem(), (), []) == []


def test_an_error_is_raised_where_its_work_waits_and_others_continue() -> None:
    fs = FaultyFileSystem()
    made = directories(fs, 3)
    fs.fail = lambda operation, path: "Input/output error" if (operation, path) == ("fsync", "/logs/1/new") else None
    results = run_in_step(fs, made, [work(fs, each) for each in made])
    assert results == ["/logs/0", "/logs/1/new: cannot fsync: Input/output error", "/logs/2"]
    assert [fs.stat(f"{each}/file") is not None for each in made] == [True, False, True]


def test_an_error_that_a_work_does_not_handle_makes_the_others_clean_up() -> None:
    ended = []

    def cleaning_up() -> DurableSteps[None]:
        try:
            yield ()
            yield ()
        finally:
            ended.append(True)

    with pytest.raises(StorageError, match="no such directory"):
        run_in_step(FaultyFileSystem(), (), [cleaning_up(), (step for step in [names_in("/missing")]), cleaning_up()])
    assert ended == [True, True]


def waiting(path: Path) -> DurableSteps[str | None]:
    try:
        yield content_of(str(path))
    except StorageError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("count", "whole", "flushed"),
    [(MANY, True, 0), (4, True, 4), (MANY, False, MANY)],
    ids=["many", "few", "many, with an error of the file system"],
)
def test_many_files_are_flushed_as_a_whole_and_after_an_error_one_by_one_to_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, whole: bool, flushed: int
) -> None:
    """The fourth is missing."""
    monkeypatch.setattr("compaction.files.durable.whole_sync", lambda _: nullcontext(lambda: whole))
    fs, paths = WatchedFileSystem(LocalFileSystem()), [tmp_path / str(number) for number in range(count)]
    for number, path in enumerate(paths):
        if number != 3:
            path.write_bytes(b"abc")
    results = run_in_step(fs, [str(tmp_path)], [waiting(path) for path in paths])
    assert sum(operation.name == "fsync" for operation in fs.log) == flushed
    assert [number for number, error in enumerate(results) if error is not None] == ([3] if flushed else [])


class Library:
    """The C library, whose ``syncfs`` has a given result."""

    def __init__(self, synced: int, kind: int = 0xEF53) -> None:
        self.synced, self.kind, self.calls = synced, kind, 0

    def syncfs(self, descriptor: int) -> int:
        self.calls += 1
        return self.synced

    def fstatfs(self, descriptor: int, found: bytearray) -> int:
        found[:8] = self.kind.to_bytes(8, "little")
        return 0


@pytest.mark.parametrize(
    ("library", "release", "whole"),
    [
        (Library(0), "5.17.0-1", True),
        (Library(0, kind=0x58465342), "6.1", True),
        (Library(-1), "6.1", False),
        # FUSE
        (Library(0, kind=0x65735546), "6.1", False),
        (Library(0), "5.16.20", False),
    ],
)
def test_a_file_system_is_flushed_as_a_whole_only_if_that_reports_every_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: Library, release: str, whole: bool
) -> None:
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(sysname="Linux", release=release))
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: library)
    with whole_sync([str(tmp_path), str(tmp_path)]) as sync_all:
        assert sync_all() is whole
    assert library.calls <= 1


def test_a_missing_directory_and_no_directory_are_not_flushed_as_a_whole(tmp_path: Path) -> None:
    for directories in ([str(tmp_path), str(tmp_path / "missing")], []):
        with whole_sync(directories) as sync_all:
            assert not sync_all()
