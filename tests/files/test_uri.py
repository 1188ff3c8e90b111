"""URIs: what is one, what is kept of it, and how it is taken apart."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextvars import Context
from pathlib import Path

import pytest

from compaction.dumping.targets import Target
from compaction.errors import UsageError
from compaction.files.calls import OPTIONS_VARIABLE, call, environment
from compaction.files.filesystem import DISK, EXPORTS, OBJECTS, Storage, base_name, join, normal, parent, split, storage_of
from compaction.files.uri import is_inside, options_of, parse_uri, resolved


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    with call():
        yield


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("/data/kafka", "/data/kafka"),
        ("data", "data"),
        ("file:///data/my%20logs", "/data/my logs"),
        ("file:/data", "/data"),
        ("file://localhost/data", "/data"),
        ("s3://bucket", "s3://bucket"),
        ("s3a://bucket/a//b/", "s3://bucket/a/b"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("hdfs://user@host:8020/a", "hdfs://user@host:8020/a"),
        ("gs://anonymous@bucket/a", "gs://anonymous@bucket/a"),
        ("hdfs:///a", "hdfs:///a"),
        ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net/a"),
        ("s3://bucket/a?region=eu-west-1", "s3://bucket/a"),
        # an export in a directory, and a relative path
        ("aiven+/data/x", "aiven+file:///data/x"),
        ("aiven+file:///data/x", "aiven+file:///data/x"),
        ("aiven+file:/data/x", "aiven+file:///data/x"),
        ("other+/data/x", "other+/data/x"),
    ],
)
def test_options_are_removed_from_a_uri_and_a_file_uri_becomes_a_path(given: str, path: str) -> None:
    assert parse_uri(given, "--log-dir") == path


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("ftp://host/a", "ftp: URIs are not supported"),
        ("s3:///a", "names no bucket"),
        ("s3://bucket/../a", "must not contain . or .."),
        ("s3://key:hidden@bucket/a", "must not contain credentials"),
        ("s3://hidden@bucket/a", "must not contain credentials"),
        ("s3://anonymous@bucket/a", "must not contain credentials"),
        ("gs://hidden@bucket/a", "must not contain credentials"),
        ("gs://anonymous:hidden@bucket/a", "must not contain credentials"),
        ("gs://anonymous@/a", "names no bucket"),
        ("hdfs://user:hidden@host/a", "must not contain credentials"),
        ("s3://bucket/a?secret_key=hidden", "must not contain credentials"),
        ("abfss://c@a/b?client_secret=hidden", "must not contain credentials"),
    ],
)
def test_an_invalid_uri_is_reported_without_its_secrets(given: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as error:
        parse_uri(given, "--log-dir")
    assert "hidden" not in str(error.value)


def test_options_are_kept_by_bucket_and_passed_to_workers() -> None:
    parse_uri("s3://one/a?region=eu-west-1&scheme=http", "--log-dir")
    parse_uri("s3://two/b?endpoint_override=localhost:9000", "--output-dir")
    parse_uri("s3://one/c", "--output-dir")
    assert options_of("s3://one") == {"region": "eu-west-1", "scheme": "http"}
    assert json.loads(environment()[OPTIONS_VARIABLE])["s3://one"] == options_of("s3://one")
    assert OPTIONS_VARIABLE not in os.environ
    assert options_of("s3://two") == {"endpoint_override": "localhost:9000"}
    assert options_of("s3://three") == {}


def test_options_end_with_the_call_that_gave_them() -> None:
    """They were in the environment of the process, for its life."""

    def other() -> None:
        with call():
            parse_uri("s3://other/a?region=eu-west-1", "--log-dir")
            assert options_of("s3://other") == {"region": "eu-west-1"}

    before = dict(os.environ)
    Context().run(other)
    assert options_of("s3://other") == {}
    assert dict(os.environ) == before


def test_a_worker_has_the_options_of_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPTIONS_VARIABLE, '{"s3://driver": {"region": "eu-west-1"}}')
    parse_uri("s3://driver/a", "path")
    assert options_of("s3://driver") == {"region": "eu-west-1"}


@pytest.mark.parametrize("options", ["", "?region=eu-west-2"])
def test_two_calls_at_once_do_not_use_the_options_of_each_other(options: str) -> None:
    parse_uri("s3://one/a?region=eu-west-1", "--log-dir")

    def other() -> None:
        with call(), pytest.raises(UsageError, match="another call of this process has different options"):
            parse_uri(f"s3://one/a{options}", "--log-dir")

    Context().run(other)


def test_two_uris_of_one_bucket_must_have_the_same_options() -> None:
    parse_uri("s3://one/a?region=eu-west-1", "--log-dir")
    with pytest.raises(UsageError, match="have different options"):
        parse_uri("s3://one/b?region=eu-west-2", "--output-dir")


def test_a_uri_is_inside_another_only_by_complete_names() -> None:
    assert is_inside("s3://b/x/y", "s3://b/x")
    assert is_inside("s3://b/x", "s3://b")
    assert not is_inside("s3://b/xy", "s3://b/x")
    assert not is_inside("/b/x", "s3://b")
    assert is_inside("/b/x", "/b")
    assert not is_inside("/bx", "/b")
    assert is_inside("/b", "/")


def test_links_are_resolved_above_a_missing_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert resolved(str(tmp_path / "link" / "new")) == str(tmp_path / "real" / "new")
    assert resolved("s3://b/x/") == "s3://b/x"


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
    assert Target.of("a//b/", "/here/").absolute == "/here/a/b"
    assert Target.of("//", "/here").absolute == "/"
    assert Target.of("s3://b/x/", "/here").absolute == "s3://b/x"
