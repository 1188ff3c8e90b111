"""One contract for the local file system and the overlay of a dry run; errors with a remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.errors import StorageError
from compaction.files.contents import view
from compaction.files.durable import replace_file
from compaction.files.filesystem import FileSystem, storage_errors
from compaction.files.local import LocalFileSystem
from compaction.files.overlay import OverlayFileSystem

Make = Callable[[], FileSystem]
EVERY = [LocalFileSystem, lambda: OverlayFileSystem(LocalFileSystem())]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """A directory with one file of ten bytes."""
    (tmp_path / "old").write_bytes(b"0123456789")
    (tmp_path / "old").chmod(0o640)
    os.utime(tmp_path / "old", ns=(1_234_567_890, 1_234_567_890))
    return str(tmp_path)


@pytest.mark.parametrize("make", EVERY)
class TestEveryFileSystem:
    def test_written_bytes_are_read_again(self, make: Make, directory: str) -> None:
        fs = make()
        fs.write_file(f"{directory}/new", b"abc")
        fs.fsync(f"{directory}/new")
        fs.fsync_dir(directory)
        assert (fs.read_bytes(f"{directory}/new"), fs.read_bytes(f"{directory}/new", 1, 1)) == (b"abc", b"b")
        assert view(fs, f"{directory}/new").tobytes() == b"abc"
        assert fs.listdir(directory) == ["new", "old"]

    def test_a_byte_range_can_be_read_and_copied(self, make: Make, directory: str) -> None:
        fs = make()
        fs.copy(f"{directory}/old", f"{directory}/part", 3, 4)
        fs.copy(f"{directory}/part", f"{directory}/inner", 1, 2)
        fs.copy(f"{directory}/old", f"{directory}/whole")
        assert [fs.read_bytes(f"{directory}/{name}") for name in ("part", "inner", "whole")] == [b"3456", b"45", b"0123456789"]
        assert fs.read_bytes(f"{directory}/part", 2, 99) == b"56"

    def test_a_copy_keeps_mode_and_time(self, make: Make, directory: str) -> None:
        fs = make()
        fs.copy(f"{directory}/old", f"{directory}/copy")
        old, new = fs.stat(f"{directory}/old"), fs.stat(f"{directory}/copy")
        assert old is not None and new is not None
        assert (new.size, new.mode, new.mtime_ns) == (old.size, old.mode, old.mtime_ns) == (10, 0o640, 1_234_567_890)

    def test_a_rename_replaces_its_target(self, make: Make, directory: str) -> None:
        fs = make()
        fs.write_file(f"{directory}/new", b"abc")
        fs.rename(f"{directory}/new", f"{directory}/old")
        assert (fs.listdir(directory), fs.read_bytes(f"{directory}/old")) == (["old"], b"abc")

    def test_removing_a_file_is_idempotent(self, make: Make, directory: str) -> None:
        fs = make()
        fs.unlink(f"{directory}/old")
        fs.unlink(f"{directory}/old")
        assert (fs.listdir(directory), fs.stat(f"{directory}/old")) == ([], None)
        with pytest.raises(StorageError):
            fs.read_bytes(f"{directory}/old")

    def test_a_new_file_takes_mode_and_time(self, make: Make, directory: str) -> None:
        fs = make()
        fs.write_file(f"{directory}/new", b"abc", like=f"{directory}/old", mtime_ns=5_000_000_000)
        found = fs.stat(f"{directory}/new")
        assert found is not None and (found.mode, found.mtime_ns, found.size) == (0o640, 5_000_000_000, 3)

    def test_a_reader_reads_real_files_and_bytes_in_memory(self, make: Make, directory: str) -> None:
        fs = make()
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

    def test_a_file_is_replaced(self, make: Make, directory: str) -> None:
        fs = make()
        replace_file(fs, f"{directory}/old", b"abc")
        assert (fs.listdir(directory), fs.read_bytes(f"{directory}/old")) == (["old"], b"abc")

    def test_an_empty_file_has_an_empty_view(self, make: Make, directory: str) -> None:
        fs = make()
        fs.write_file(f"{directory}/empty", b"")
        assert len(view(fs, f"{directory}/empty")) == 0

    def test_changes_to_fetched_bytes_do_not_change_the_file(self, make: Make, directory: str) -> None:
        fs = make()
        found = view(fs, f"{directory}/old").fetch()
        found[0] = 0
        assert fs.read_bytes(f"{directory}/old") == b"0123456789"

    def test_a_directory_can_be_made_and_removed(self, make: Make, directory: str) -> None:
        fs = make()
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
