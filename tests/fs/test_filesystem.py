"""The local file system and the overlay of a dry run: one contract for both, errors that say what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.errors import StorageError
from compaction.fs.durable import replace_file
from compaction.fs.filesystem import FileSystem, real_file, storage_errors
from compaction.fs.local import LocalFileSystem
from compaction.fs.overlay import OverlayFileSystem
from compaction.fs.ranges import view
from tests.fs.faults import FaultyFileSystem

Make = Callable[[], FileSystem]
EVERY = [LocalFileSystem, lambda: OverlayFileSystem(LocalFileSystem())]


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A directory with one file of ten bytes."""
    (tmp_path / "old").write_bytes(b"0123456789")
    (tmp_path / "old").chmod(0o640)
    os.utime(tmp_path / "old", ns=(1_234_567_890, 1_234_567_890))
    return str(tmp_path)


@pytest.mark.parametrize("make", EVERY)
class TestEveryFileSystem:
    def test_written_bytes_are_read_again(self, make: Make, place: str) -> None:
        fs = make()
        fs.write_file(f"{place}/new", b"abc")
        fs.fsync(f"{place}/new")
        fs.fsync_dir(place)
        assert (fs.read_bytes(f"{place}/new"), fs.read_bytes(f"{place}/new", 1, 1)) == (b"abc", b"b")
        assert view(fs, f"{place}/new").tobytes() == b"abc"
        assert fs.listdir(place) == ["new", "old"]

    def test_a_stretch_can_be_read_and_copied(self, make: Make, place: str) -> None:
        fs = make()
        fs.copy(f"{place}/old", f"{place}/part", 3, 4)
        fs.copy(f"{place}/part", f"{place}/piece", 1, 2)
        fs.copy(f"{place}/old", f"{place}/whole")
        assert [fs.read_bytes(f"{place}/{name}") for name in ("part", "piece", "whole")] == [b"3456", b"45", b"0123456789"]
        assert fs.read_bytes(f"{place}/part", 2, 99) == b"56"

    def test_a_copy_keeps_mode_and_time(self, make: Make, place: str) -> None:
        fs = make()
        fs.copy(f"{place}/old", f"{place}/copy")
        old, new = fs.stat(f"{place}/old"), fs.stat(f"{place}/copy")
        assert old is not None and new is not None
        assert (new.size, new.mode, new.mtime_ns) == (old.size, old.mode, old.mtime_ns) == (10, 0o640, 1_234_567_890)

    def test_a_rename_replaces_its_target(self, make: Make, place: str) -> None:
        fs = make()
        fs.write_file(f"{place}/new", b"abc")
        fs.rename(f"{place}/new", f"{place}/old")
        assert (fs.listdir(place), fs.read_bytes(f"{place}/old")) == (["old"], b"abc")

    def test_a_removed_file_is_gone_and_may_be_removed_again(self, make: Make, place: str) -> None:
        fs = make()
        fs.unlink(f"{place}/old")
        fs.unlink(f"{place}/old")
        assert (fs.listdir(place), fs.stat(f"{place}/old")) == ([], None)
        with pytest.raises(StorageError):
            fs.read_bytes(f"{place}/old")

    def test_a_new_file_takes_mode_and_time(self, make: Make, place: str) -> None:
        fs = make()
        fs.write_file(f"{place}/new", b"abc", like=f"{place}/old", mtime_ns=5_000_000_000)
        found = fs.stat(f"{place}/new")
        assert found is not None and (found.mode, found.mtime_ns, found.size) == (0o640, 5_000_000_000, 3)

    def test_a_reader_gives_the_bytes_wherever_they_are(self, make: Make, place: str) -> None:
        fs = make()
        fs.write_file(f"{place}/new", b"abcdef")
        fs.copy(f"{place}/old", f"{place}/part", 3, 4)
        for name, data in (("new", b"abcdef"), ("part", b"3456"), ("old", b"0123456789")):
            source = fs.reader(f"{place}/{name}", 0, len(data), uncached=True)
            buffer = bytearray(20)
            assert source.size() == len(data)
            assert source.read_into(memoryview(buffer), 1, 0) == len(data) - 1
            assert bytes(buffer).rstrip(b"\0") == data[1:]
            assert source.read_into(memoryview(buffer), len(data), 0) == 0
            source.close()

    def test_a_replaced_file_is_held_against_what_was_written(self, make: Make, place: str) -> None:
        fs = make()
        replace_file(fs, f"{place}/old", b"abc")
        assert (fs.listdir(place), fs.read_bytes(f"{place}/old")) == (["old"], b"abc")

    def test_an_empty_file_has_an_empty_view(self, make: Make, place: str) -> None:
        fs = make()
        fs.write_file(f"{place}/empty", b"")
        assert len(view(fs, f"{place}/empty")) == 0

    def test_changes_to_a_view_do_not_reach_the_file(self, make: Make, place: str) -> None:
        fs = make()
        found = view(fs, f"{place}/old").fetch()
        found[0] = 0
        assert fs.read_bytes(f"{place}/old") == b"0123456789"

    def test_a_directory_can_be_made_and_removed(self, make: Make, place: str) -> None:
        fs = make()
        fs.mkdir(f"{place}/sub")
        found = fs.stat(f"{place}/sub")
        assert found is not None and found.is_dir
        fs.remove_tree(f"{place}/sub")
        assert fs.stat(f"{place}/sub") is None


def test_an_overlay_leaves_the_real_files_alone(place: str) -> None:
    fs = OverlayFileSystem(LocalFileSystem())
    fs.write_file(f"{place}/new", b"abc")
    fs.rename(f"{place}/old", f"{place}/older")
    fs.unlink(f"{place}/older")
    assert [path.name for path in Path(place).iterdir()] == ["old"]
    assert (Path(place) / "old").read_bytes() == b"0123456789"


def test_an_overlay_knows_the_real_place_of_a_renamed_stretch(place: str) -> None:
    fs = OverlayFileSystem(LocalFileSystem())
    fs.copy(f"{place}/old", f"{place}/part", 3, 4)
    fs.rename(f"{place}/part", f"{place}/moved")
    assert fs.real_path(f"{place}/moved") == (f"{place}/old", 3, 4)
    assert fs.real_path(f"{place}/old") == (f"{place}/old", 0, 10)
    fs.write_file(f"{place}/new", b"abc")
    assert fs.real_path(f"{place}/new") is None
    with pytest.raises(StorageError, match="in memory only"):
        real_file(fs, f"{place}/new")


HINTS = [
    (errno.ENOSPC, "No space left on device; free some space"),
    (errno.EACCES, "Permission denied; run as the user that owns"),
    (errno.EROFS, "Read-only file system; mount it for writing, or use --output-dir"),
    (errno.ENOENT, "No such file or directory; it vanished"),
    (errno.ENAMETOOLONG, "solve this and run again"),
]


@pytest.mark.parametrize(("number", "message"), HINTS)
def test_errors_say_what_where_and_what_to_do(number: int, message: str) -> None:
    with pytest.raises(StorageError) as caught, storage_errors("/logs/orders-0/x.log", "write"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value).startswith("/logs/orders-0/x.log: cannot write: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("operation", ["read_bytes", "fsync", "listdir", "fsync_dir"])
def test_a_missing_path_is_a_storage_error(tmp_path: Path, operation: str) -> None:
    with pytest.raises(StorageError, match="No such file"):
        getattr(LocalFileSystem(), operation)(str(tmp_path / "nowhere"))


def test_the_faulty_file_system_loses_what_was_not_made_safe() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/d")
    fs.write_file("/d/a", b"old")
    fs.fsync("/d/a")
    fs.fsync_dir("/d")
    fs.put("/d/a", b"new one")
    fs.write_file("/d/b", b"b")
    fs.rename("/d/b", "/d/c")
    killed, lost = fs.after_kill(), fs.after_power_loss(None)
    assert (killed.listdir("/d"), killed.read_bytes("/d/a")) == (["a", "c"], b"new one")
    assert (lost.listdir("/d"), lost.read_bytes("/d/a")) == (["a"], b"old")
    outcomes = {tuple(fs.after_power_loss(seed).listdir("/d")) for seed in range(30)}
    assert outcomes >= {("a",), ("a", "b"), ("a", "c")}
