"""Files of this machine: new names only, no links followed, and what belongs to a file survives its replacement."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.errors import StorageError
from compaction.files.durable import remove_temporary, replace_file
from compaction.files.local import LocalFileSystem

FS = LocalFileSystem()
MAKERS: dict[str, Callable[[str, str], object]] = {
    "write_file": lambda path, like: FS.write_file(path, b"new", like=like),
    "create": lambda path, like: FS.create(path, like),
    "copy": lambda path, like: FS.copy(like, path),
}


@pytest.fixture
def like(tmp_path: Path) -> str:
    path = tmp_path / "like"
    path.write_bytes(b"0123456789")
    path.chmod(0o640)
    os.setxattr(path, "user.label", b"kept")
    return str(path)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("there", ["a file", "a link to a file", "a link to nothing"])
def test_a_new_file_never_replaces_an_existing_name(
    tmp_path: Path, like: str, there: str, make: Callable[[str, str], object]
) -> None:
    victim, name = tmp_path / "victim", tmp_path / "name"
    if there != "a link to nothing":
        victim.write_bytes(b"old")
    if there == "a file":
        victim.rename(name)
    else:
        name.symlink_to(victim)
    with pytest.raises(StorageError, match="File exists"):
        make(str(name), like)
    assert victim.exists() == (there == "a link to a file")
    assert there == "a link to nothing" or name.read_bytes() == b"old"


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_new_file_takes_mode_and_attributes_regardless_of_the_umask(
    tmp_path: Path, like: str, make: Callable[[str, str], object]
) -> None:
    old = os.umask(0o077)
    try:
        made = make(str(tmp_path / "new"), like)
    finally:
        os.umask(old)
    if made is not None:
        made.abandon()  # type: ignore[attr-defined]
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o640
    assert os.getxattr(tmp_path / "new", "user.label") == b"kept"


def test_a_replaced_file_keeps_its_mode_and_attributes(tmp_path: Path, like: str) -> None:
    replace_file(FS, like, b"new")
    assert Path(like).read_bytes() == b"new"
    assert Path(like).stat().st_mode & 0o7777 == 0o640
    assert os.getxattr(like, "user.label") == b"kept"
    assert FS.listdir(str(tmp_path)) == ["like"]


def test_the_set_user_id_bit_is_not_copied(tmp_path: Path, like: str) -> None:
    Path(like).chmod(0o4755)
    FS.write_file(str(tmp_path / "new"), b"", like=like)
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o755


def test_a_tree_is_removed_but_never_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/link").symlink_to(tmp_path / "precious")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    FS.remove_tree(str(tmp_path / "tree"))
    FS.remove_tree(str(tmp_path / "link"))
    FS.remove_tree(str(tmp_path / "nothing"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["precious"]
    assert (tmp_path / "precious/file").exists()


def test_a_private_directory_must_be_new(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        FS.mkdir(str(tmp_path / "mine"), private=True)
    finally:
        os.umask(old)
    assert (tmp_path / "mine").stat().st_mode & 0o7777 == 0o700
    (tmp_path / "planted").symlink_to(tmp_path)
    for name in ("mine", "planted"):
        with pytest.raises(StorageError, match="File exists"):
            FS.mkdir(str(tmp_path / name), private=True)


def test_a_copy_of_a_truncated_file_is_an_error_and_leaves_nothing(tmp_path: Path, like: str) -> None:
    with pytest.raises(StorageError, match="truncated while it was copied"):
        FS.copy(like, str(tmp_path / "copy"), 4, 100)
    assert not (tmp_path / "copy").exists()


def test_only_temporary_files_of_the_job_are_removed(tmp_path: Path) -> None:
    ours = f"recovery-point-offset-checkpoint.{'0f' * 16}.tmp"
    others = ["recovery-point-offset-checkpoint.tmp", f"{'0f' * 16}.tmp", "notes.tmp", f"x.{'0F' * 16}.tmp"]
    for name in (ours, *others):
        (tmp_path / name).touch()
    assert remove_temporary(FS, str(tmp_path)) == 1
    assert FS.listdir(str(tmp_path)) == sorted(others)


@pytest.mark.parametrize("change", ["create", "rename", "unlink", "link_new", "write_file"])
def test_nothing_is_written_through_a_link_that_replaced_a_directory(tmp_path: Path, change: str) -> None:
    """Somebody else replaces a partition by a link to another directory while a run of root is at work."""
    tmp_path.chmod(0o777)
    victim, partition = tmp_path / "victim", tmp_path / "orders-0"
    victim.mkdir()
    (victim / "a").write_bytes(b"mine")
    partition.symlink_to(victim)
    files, path = LocalFileSystem(), str(partition / "a")
    changes: dict[str, Callable[[], object]] = {
        "create": lambda: files.create(f"{path}.new", None),
        "rename": lambda: files.rename(path, f"{path}.deleted"),
        "unlink": lambda: files.unlink(path),
        "link_new": lambda: files.link_new(f"{path}.claim", b"x", str(tmp_path)),
        "write_file": lambda: files.write_file(f"{path}.tmp", b"x"),
    }
    with pytest.raises(StorageError):
        changes[change]()
    assert [(each.name, each.read_bytes()) for each in victim.iterdir()] == [("a", b"mine")]


def test_two_directories_exchange_their_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert LocalFileSystem().exchange(str(tmp_path / "a"), str(tmp_path / "b"))
    assert ((tmp_path / "a/b").exists(), (tmp_path / "b/a").exists()) == (True, True)
    with pytest.raises(StorageError, match="cannot exchange with"):
        LocalFileSystem().exchange(str(tmp_path / "a"), str(tmp_path / "missing"))


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_a_file_system_that_cannot_exchange_names_says_so(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compaction.files.system_calls.ctypes.get_errno", lambda: number)
    assert not LocalFileSystem().exchange(str(tmp_path), str(tmp_path / "missing"))


MIB = 1 << 20


@pytest.mark.parametrize(
    ("start", "length"), [(0, None), (0, 16 * MIB), (MIB + 1, 9 * MIB), (3 * MIB, MIB), (5 * MIB, 11 * MIB), (0, 4 * MIB + 7)]
)
def test_the_holes_of_a_file_are_holes_of_its_copy(tmp_path: Path, start: int, length: int | None) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    with source.open("wb") as file:
        for at in (2 * MIB, 4 * MIB + 5):
            file.seek(at)
            file.write(b"x" * 4096)
        file.truncate(16 * MIB)
    FS.copy(str(source), str(copy), start, length)
    end = None if length is None else start + length
    assert copy.read_bytes() == source.read_bytes()[start:end]
    assert copy.stat().st_blocks * 512 <= 5 * 4096


def test_a_file_truncated_within_a_hole_is_not_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.touch()
    os.truncate(source, MIB)
    with pytest.raises(StorageError, match="truncated"):
        FS.copy(str(source), str(tmp_path / "copy"), 0, MIB + 1)
    assert not (tmp_path / "copy").exists()


def test_a_file_system_that_reports_no_holes_is_copied_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> int:
        raise OSError(errno.EINVAL, "no such call")

    source = tmp_path / "source"
    source.write_bytes(b"\0" * 8192 + b"x")
    monkeypatch.setattr(os, "lseek", refuse)
    FS.copy(str(source), str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
