"""Small text files: what is wrong with one is told in one line, and one is never seen half written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.errors import CorruptLogError, StorageError, UsageError
from compaction.files.local import LocalFileSystem
from compaction.files.text_files import (
    MAX_SMALL_BYTES,
    check_writable,
    read_small,
    read_small_text,
    read_text,
    write_text,
)


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


def test_a_link_planted_under_the_former_temporary_name_is_not_followed(tmp_path: Path) -> None:
    secret, file = tmp_path / "secret", tmp_path / "report.json"
    secret.write_text("untouched")
    (tmp_path / f".report.json.{os.getpid()}.tmp").symlink_to(secret)
    write_text(str(file), "new")
    assert (secret.read_text(), file.read_text()) == ("untouched", "new")
    assert not file.is_symlink()


def test_a_link_planted_under_the_new_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
