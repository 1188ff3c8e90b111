"""A log whose first segments are files of another directory."""

from __future__ import annotations

from pathlib import Path

from compaction.files.filesystem import FileRange
from compaction.files.local import LocalFileSystem
from compaction.files.overlay import OverlayFileSystem, Splice, SplicedFileSystem


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
