"""One contract for the local file system, the overlay of a dry run and the disk in memory; errors with a remedy.

Then what is an overlay's own, and a log whose first segments are files of another directory.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from compaction.errors import StorageError
from compaction.files.contents import view
from compaction.files.durable import replace_file
from compaction.files.filesystem import FileRange, FileSystem, real_file, storage_errors
from compaction.files.local import LocalFileSystem
from compaction.files.overlay import NamesSynced, OverlayFileSystem, Removed, Splice, SplicedFileSystem, Written
from tests.disk import FaultyFileSystem

MTIME_NS = 1_234_567_890


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A directory with one file of ten bytes."""
    (tmp_path / "old").write_bytes(b"0123456789")
    (tmp_path / "old").chmod(0o640)
    os.utime(tmp_path / "old", ns=(MTIME_NS, MTIME_NS))
    return str(tmp_path)


def in_memory(directory: str) -> FaultyFileSystem:
    made = FaultyFileSystem()
    made.mkdir(directory)
    made.write_file(f"{directory}/old", b"0123456789", mtime_ns=MTIME_NS)
    made.inode(f"{directory}/old").mode = 0o640
    return made.settle()


@pytest.fixture(params=["disk", "overlay", "memory"])
def fs(request: pytest.FixtureRequest, directory: str) -> FileSystem:
    if request.param == "memory":
        return in_memory(directory)
    return LocalFileSystem() if request.param == "disk" else OverlayFileSystem(LocalFileSystem())


class TestEveryFileSystem:
    def test_written_bytes_are_read_again(self, fs: FileSystem, directory: str) -> None:
        fs.write_file(f"{directory}/new", b"abc")
        fs.fsync(f"{directory}/new")
        fs.fsync_dir(directory)
        assert (fs.read_bytes(f"{directory}/new"), fs.read_bytes(f"{directory}/new", 1, 1)) == (b"abc", b"b")
        assert view(fs, f"{directory}/new").tobytes() == b"abc"
        assert fs.listdir(directory) == ["new", "old"]

    def test_a_byte_range_can_be_read_and_copied(self, fs: FileSystem, directory: str) -> None:
        fs.copy(f"{directory}/old", f"{directory}/part", 3, 4)
        fs.copy(f"{directory}/part", f"{directory}/inner", 1, 2)
        fs.copy(f"{directory}/old", f"{directory}/whole")
        assert [fs.read_bytes(f"{directory}/{name}") for name in ("part", "inner", "whole")] == [b"3456", b"45", b"0123456789"]
        assert fs.read_bytes(f"{directory}/part", 2, 99) == b"56"

    def test_a_copy_keeps_mode_and_time(self, fs: FileSystem, directory: str) -> None:
        fs.copy(f"{directory}/old", f"{directory}/copy")
        old, new = fs.stat(f"{directory}/old"), fs.stat(f"{directory}/copy")
        assert old is not None and new is not None
        assert (new.size, new.mode, new.mtime_ns) == (old.size, old.mode, old.mtime_ns) == (10, 0o640, MTIME_NS)

    def test_a_rename_replaces_its_target(self, fs: FileSystem, directory: str) -> None:
        fs.write_file(f"{directory}/new", b"abc")
        fs.rename(f"{directory}/new", f"{directory}/old")
        assert (fs.listdir(directory), fs.read_bytes(f"{directory}/old")) == (["old"], b"abc")

    def test_removing_a_file_is_idempotent(self, fs: FileSystem, directory: str) -> None:
        fs.unlink(f"{directory}/old")
        fs.unlink(f"{directory}/old")
        assert (fs.listdir(directory), fs.stat(f"{directory}/old")) == ([], None)
        with pytest.raises(StorageError):
            fs.read_bytes(f"{directory}/old")

    def test_a_new_file_takes_mode_and_time(self, fs: FileSystem, directory: str) -> None:
        fs.write_file(f"{directory}/new", b"abc", like=f"{directory}/old", mtime_ns=5_000_000_000)
        found = fs.stat(f"{directory}/new")
        assert found is not None and (found.mode, found.mtime_ns, found.size) == (0o640, 5_000_000_000, 3)

    def test_a_reader_reads_real_files_and_bytes_in_memory(self, fs: FileSystem, directory: str) -> None:
        fs.write_file(f"{directory}/new", b"abcdef")
        fs.copy(f"{directory}/old", f"{directory}/part", 3, 4)
        for name, data in (("new", b"abcdef"), ("part", b"3456"), ("old", b"0123456789")):
            source = fs.open(f"{directory}/{name}", 0, len(data), uncached=True)
            buffer = bytearray(20)
            assert source.size() == len(data)
            assert source.pread(memoryview(buffer), 1) == len(data) - 1
            assert bytes(buffer).rstrip(b"\0") == data[1:]
            assert source.pread(memoryview(buffer), len(data)) == 0
            source.close()

    def test_a_file_is_replaced(self, fs: FileSystem, directory: str) -> None:
        replace_file(fs, f"{directory}/old", b"abc")
        assert (fs.listdir(directory), fs.read_bytes(f"{directory}/old")) == (["old"], b"abc")

    def test_an_empty_file_has_an_empty_view(self, fs: FileSystem, directory: str) -> None:
        fs.write_file(f"{directory}/empty", b"")
        assert len(view(fs, f"{directory}/empty")) == 0

    def test_changes_to_fetched_bytes_do_not_change_the_file(self, fs: FileSystem, directory: str) -> None:
        found = view(fs, f"{directory}/old").fetch()
        found[0] = 0
        assert fs.read_bytes(f"{directory}/old") == b"0123456789"

    def test_a_directory_can_be_made_and_removed(self, fs: FileSystem, directory: str) -> None:
        fs.mkdir(f"{directory}/sub")
        found = fs.stat(f"{directory}/sub")
        assert found is not None and found.is_dir
        fs.remove_tree(f"{directory}/sub")
        assert fs.stat(f"{directory}/sub") is None


HINTS = [
    (errno.ENOSPC, "No space left on device; free some space"),
    (errno.EACCES, "Permission denied; run as the user that owns"),
    (errno.EROFS, "Read-only file system; mount it for writing, or use --output-dir"),
    (errno.ENOENT, "No such file or directory; it vanished"),
    (errno.ENAMETOOLONG, "solve this and run again"),
]


@pytest.mark.parametrize(("number", "message"), HINTS)
def test_errors_name_action_path_and_remedy(number: int, message: str) -> None:
    with pytest.raises(StorageError) as caught, storage_errors("/logs/orders-0/x.log", "write"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value).startswith("/logs/orders-0/x.log: cannot write: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("operation", ["read_bytes", "fsync", "listdir", "fsync_dir"])
def test_a_missing_path_is_a_storage_error(tmp_path: Path, operation: str) -> None:
    with pytest.raises(StorageError, match="No such file"):
        getattr(LocalFileSystem(), operation)(str(tmp_path / "nowhere"))


__all__ = ["directory"]


def test_real_files_are_not_changed(directory: str) -> None:
    fs = OverlayFileSystem(LocalFileSystem())
    fs.write_file(f"{directory}/new", b"abc")
    fs.rename(f"{directory}/old", f"{directory}/older")
    fs.unlink(f"{directory}/older")
    assert [path.name for path in Path(directory).iterdir()] == ["old"]
    assert (Path(directory) / "old").read_bytes() == b"0123456789"


def test_a_renamed_byte_range_leads_to_the_real_file(directory: str) -> None:
    fs = OverlayFileSystem(LocalFileSystem())
    fs.copy(f"{directory}/old", f"{directory}/part", 3, 4)
    fs.rename(f"{directory}/part", f"{directory}/moved")
    assert fs.real_path(f"{directory}/moved") == (f"{directory}/old", 3, 4)
    assert fs.real_path(f"{directory}/old") == (f"{directory}/old", 0, 10)
    fs.write_file(f"{directory}/new", b"abc")
    assert fs.real_path(f"{directory}/new") is None
    with pytest.raises(StorageError, match="in memory only"):
        real_file(fs, f"{directory}/new")


def test_changes_are_known_by_directory(directory: str) -> None:
    fs, unchanged = OverlayFileSystem(LocalFileSystem()), OverlayFileSystem(LocalFileSystem())
    fs.write_file(f"{directory}/sub/new", b"abc")
    assert (fs.changed, unchanged.changed) == (True, False)
    assert [type(each) for each in fs.operations(f"{directory}/sub")] == [Written]
    assert fs.operations(directory) == ()
    fs.fsync_dir(directory)
    fs.unlink(f"{directory}/none")
    assert fs.operations(directory) == ()
    fs.unlink(f"{directory}/old")
    fs.fsync_dir(directory)
    fs.fsync_dir(directory)
    assert fs.operations(directory) == (Removed(f"{directory}/old"), NamesSynced(directory))


def put(directory: Path, *names: str) -> None:
    directory.mkdir()
    for name in names:
        base, _, rest = name.partition(".")
        (directory / (f"{int(base):020d}.{rest}" if base.isdigit() else name)).write_text(f"{directory.name} {name}")


def content(fs: SplicedFileSystem | OverlayFileSystem, log: str) -> dict[str, str]:
    return {name.lstrip("0"): fs.read_bytes(f"{log}/{name}").decode() for name in fs.listdir(log)}


def test_files_below_the_end_are_those_of_the_other_directory(tmp_path: Path) -> None:
    names = "5.log", "10.log", "10.log.deleted", "10.snapshot", "20.log", "20.index", "30.log", "partition.metadata"
    put(tmp_path / "own", *names)
    put(tmp_path / "other", "5.log", "10.log", "10.snapshot", "15.snapshot", "20.log", "20.index", "40.log", "extra")
    own, other = str(tmp_path / "own"), str(tmp_path / "other")
    fs = SplicedFileSystem(LocalFileSystem(), {own: Splice(other, 6, 20)})
    assert content(fs, own) == {
        "10.log": "other 10.log", "10.log.deleted": "own 10.log.deleted", "10.snapshot": "other 10.snapshot",
        "20.log": "own 20.log", "20.index": "own 20.index", "30.log": "own 30.log",
        "partition.metadata": "own partition.metadata",
    }  # fmt: skip
    assert content(OverlayFileSystem(fs), own) == content(fs, own)
    assert fs.stat(f"{own}/{5:020d}.log") is None and fs.real_path(f"{own}/{5:020d}.log") is None
    size = len("other 10.log")
    assert fs.real_path(f"{own}/{10:020d}.log") == FileRange(f"{other}/{10:020d}.log", 0, size)
    assert OverlayFileSystem(fs).real_path(f"{own}/{10:020d}.log") == fs.real_path(f"{own}/{10:020d}.log")
    buffer = bytearray(size)
    source = fs.open(f"{own}/{10:020d}.log", 0, size)
    assert source.pread(memoryview(buffer), 0) == size and bytes(buffer) == b"other 10.log"
    source.close()


def test_only_the_log_of_the_last_segment_is_taken_with_it(tmp_path: Path) -> None:
    put(tmp_path / "own", "10.log", "20.log", "20.index", "25.snapshot")
    put(tmp_path / "other", "10.log", "20.log", "20.index")
    own = str(tmp_path / "own")
    fs = SplicedFileSystem(LocalFileSystem(), {own: Splice(str(tmp_path / "other"), 0, 20, log_at_end=True)})
    assert content(fs, own) == {
        "10.log": "other 10.log", "20.log": "other 20.log", "20.index": "own 20.index", "25.snapshot": "own 25.snapshot",
    }  # fmt: skip


def test_other_directories_are_those_of_the_file_system_below(tmp_path: Path) -> None:
    put(tmp_path / "own", "10.log")
    fs = SplicedFileSystem(LocalFileSystem(), {"/elsewhere": Splice("/nowhere", 0, 20)})
    assert content(fs, str(tmp_path / "own")) == {"10.log": "own 10.log"}
    assert fs.listdir(str(tmp_path)) == ["own"]


def test_changes_in_a_directory_can_be_reverted(tmp_path: Path) -> None:
    put(tmp_path / "own", "10.log")
    fs, path = OverlayFileSystem(LocalFileSystem()), f"{tmp_path}/own/{10:020d}.log"
    fs.rename(path, f"{path}.deleted")
    fs.write_file(f"{tmp_path}/own/new", b"")
    fs.write_file(f"{tmp_path}/kept", b"")
    fs.revert(f"{tmp_path}/own")
    assert fs.listdir(f"{tmp_path}/own") == [f"{10:020d}.log"] and fs.operations(f"{tmp_path}/own") == ()
    assert fs.read_bytes(path) == b"own 10.log" and fs.stat(f"{tmp_path}/kept") is not None
