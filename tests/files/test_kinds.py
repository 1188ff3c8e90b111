from __future__ import annotations

import pytest

from compaction.files.filesystem import DISK, EXPORTS, OBJECTS, Storage, base_name, join, normal, parent, split, storage_of


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/kafka", DISK),
        ("data/kafka", DISK),
        ("/a://b", DISK),
        ("a" * 30 + "://b", DISK),
        ("s3://b/a", OBJECTS),
        ("abfss://c@a/b", OBJECTS),
        ("aiven+s3://b/a", EXPORTS),
        ("aiven+file:///data", EXPORTS),
        ("s3://b/a+b", OBJECTS),
    ],
)
def test_the_syntax_of_a_path_decides_its_storage(path: str, expected: Storage) -> None:
    assert storage_of(path) is expected


def test_only_a_disk_is_changed_in_place_and_only_requests_take_round_trips() -> None:
    for storage in (OBJECTS, EXPORTS):
        assert not (storage.renames or storage.locks or storage.attributes or storage.finite)
        assert storage.appears_whole and storage.round_trips and storage.versions
    assert DISK.renames and DISK.locks and DISK.attributes and DISK.finite
    assert not (DISK.appears_whole or DISK.round_trips or DISK.versions)


def test_uris_are_split_and_joined() -> None:
    assert split("s3://b/x/y") == ("s3://b", "x/y")
    assert split("s3://b") == ("s3://b", "")
    assert (parent("s3://b/x/y"), parent("s3://b/x"), parent("s3://b")) == ("s3://b/x", "s3://b", "s3://b")
    assert (parent("hdfs:///x"), parent("s3://b/x/")) == ("hdfs://", "s3://b")
    assert (base_name("s3://b/x"), normal("s3://b/x/")) == ("x", "s3://b/x")
    assert join("s3://b", "x") == "s3://b/x"


@pytest.mark.parametrize(
    ("path", "above", "spelled"),
    [
        ("/a/b", "/a", "/a/b"),
        ("/a", "/", "/a"),
        ("/", "/", "/"),
        ("/a//b/", "/a", "/a/b"),
        ("a/./b", "a", "a/b"),
        ("a", ".", "a"),
    ],
)
def test_paths_have_one_spelling(path: str, above: str, spelled: str) -> None:
    assert (parent(path), normal(path)) == (above, spelled)


def test_a_path_is_made_absolute_and_a_uri_is_not() -> None:
    assert DISK.absolute(DISK.as_java("a//b/"), "/here/") == "/here/a/b"
    assert DISK.absolute(DISK.as_java("//"), "/here") == "/"
    assert OBJECTS.absolute(OBJECTS.as_java("s3://b/x/"), "/here") == "s3://b/x"
