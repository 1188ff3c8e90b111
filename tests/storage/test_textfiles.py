"""Small text files: what is wrong with one is told in one line, and one is never seen half written."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.errors import StorageError, UsageError
from compaction.storage.textfiles import check_writable, read_text, write_text


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
    ],
)
def test_what_cannot_be_read_is_a_usage_error(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "bad").write_bytes(b"x=\xff")
    with pytest.raises(UsageError) as error:
        read_text(str(tmp_path / name))
    assert message in str(error.value)


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
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


def test_a_place_that_cannot_take_a_file_is_a_usage_error(tmp_path: Path) -> None:
    check_writable(str(tmp_path / "new.json"))
    for name in ("no/such/dir.json", "."):
        with pytest.raises(UsageError):
            check_writable(str(tmp_path / name))
