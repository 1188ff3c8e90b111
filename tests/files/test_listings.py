"""Listings of Google's store through pyarrow: directories without marker objects, and its error for a missing object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pyarrow import fs

from compaction.errors import StorageError
from compaction.files import object_store
from compaction.files.object_store import remote_errors


@dataclass
class OnlyMarked:
    """A store of files by path and size; a non-recursive listing has no directories without marker objects."""

    files: dict[str, int]
    type_name: str = "gcs"

    def get_file_info(self, selector: Any) -> list[Any]:
        """All files below a directory, or those directly in it."""
        below = {path: size for path, size in self.files.items() if path.startswith(f"{selector.base_dir}/")}
        if not below:
            raise OSError(f"No such file or directory '{selector.base_dir}'")
        start = len(selector.base_dir) + 1
        listed = [path for path in below if selector.recursive or "/" not in path[start:]]
        return [fs.FileInfo(path, fs.FileType.File, size=below[path], mtime_ns=5) for path in listed]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> OnlyMarked:
    made = OnlyMarked({"bucket/in/meta.properties": 7, "bucket/in/orders-0/0.log": 10, "bucket/in/orders-0/0.index": 8})
    monkeypatch.setattr(object_store, "located", lambda path: (made, path.removeprefix("gs://")))
    return made


def test_directories_are_found_by_their_objects(store: OnlyMarked) -> None:
    found = object_store.list_directory("gs://bucket/in")
    assert {name: (stat.is_dir, stat.is_file, stat.size) for name, stat in found.items()} == {
        "meta.properties": (False, True, 7),
        "orders-0": (True, False, 0),
    }
    assert set(object_store.list_directory("gs://bucket/in/orders-0")) == {"0.log", "0.index"}


def test_what_lies_below_has_its_whole_name(store: OnlyMarked) -> None:
    found = object_store.list_directory("gs://bucket/in", recursive=True)
    assert set(found) == {"meta.properties", "orders-0/0.log", "orders-0/0.index"}


def test_a_directory_that_is_not_there_is_told_as_such(store: OnlyMarked) -> None:
    with pytest.raises(StorageError, match="cannot list the directory: No such file or directory; check the URI") as told:
        object_store.list_directory("gs://bucket/nothing")
    assert isinstance(told.value.__cause__, FileNotFoundError)


def test_other_errors_keep_their_text() -> None:
    with pytest.raises(StorageError, match="cannot read: Input/output error") as told, remote_errors("gs://bucket/x", "read"):
        raise OSError("Input/output error")
    assert type(told.value.__cause__) is OSError
