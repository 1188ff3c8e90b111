"""The overlay of a dry run: nothing is written, and renamed files lead to the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.errors import StorageError
from compaction.files.filesystem import real_file
from compaction.files.local import LocalFileSystem
from compaction.files.overlay import NamesSynced, OverlayFileSystem, Removed, Written
from tests.files.test_filesystem import directory

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
