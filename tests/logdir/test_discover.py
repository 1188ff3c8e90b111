"""Finding logs: which directories are logs, and which of them a call asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.errors import UsageError
from compaction.fs.local import LocalFileSystem
from compaction.logdir.discover import Selector, check_log_dirs, discover

FS = LocalFileSystem()
ODD = [
    "orders-0.0123456789abcdef0123456789abcdef-delete",
    "orders-1.0123456789abcdef0123456789abcdef-future",
    "orders-2.0123456789abcdef0123456789abcdef-stray",
    "__cluster_metadata-0",
    "remote-log-index-cache",
    "lost+found",
    "orders",
    "orders-",
    "-3",
    "orders-x",
    "orders-99999999999",
    "orders-4294967296",
    "Ünknown-0",
    ".hidden",
]


def make(root: Path, *names: str) -> str:
    for name in names:
        (root / name).mkdir(parents=True)
    return str(root)


def found(log_dir: str | list[str], topics: list[str] | None = None, partitions: list[str] | None = None) -> list[str]:
    dirs = check_log_dirs(FS, [log_dir] if isinstance(log_dir, str) else log_dir)
    return [str(log.topic_partition) for log in discover(FS, dirs, Selector.parse(topics or [], partitions or []))]


def test_logs_are_found_by_topic_and_partition_number(tmp_path: Path) -> None:
    log_dir = make(tmp_path, "orders-10", "orders-2", "a-b-0", "__consumer_offsets-7", "a.b_c-0")
    assert found(log_dir) == ["__consumer_offsets-7", "a-b-0", "a.b_c-0", "orders-2", "orders-10"]


@pytest.mark.parametrize("name", ODD)
def test_other_directories_are_skipped(tmp_path: Path, name: str) -> None:
    assert found(make(tmp_path, name, "orders-0")) == ["orders-0"]


def test_files_are_not_logs(tmp_path: Path) -> None:
    (tmp_path / "orders-1").touch()
    assert found(make(tmp_path, "orders-0")) == ["orders-0"]


def test_a_linked_directory_is_found_once(tmp_path: Path) -> None:
    log_dir = make(tmp_path / "logs", "orders-0")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "logs/moved-0").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "logs/alias-0").symlink_to(tmp_path / "logs/orders-0")
    (tmp_path / "logs/broken-0").symlink_to(tmp_path / "nowhere")
    assert found(log_dir) == ["moved-0", "orders-0"]


SELECTIONS = [
    ([], [], ["a-0", "a-1", "ab-0", "b-0"]),
    (["a"], [], ["a-0", "a-1"]),
    (["a.*"], [], ["a-0", "a-1", "ab-0"]),
    (["a", "b"], [], ["a-0", "a-1", "b-0"]),
    (["nothing"], [], []),
    ([], ["a-1"], ["a-1"]),
    (["b"], ["a-1"], ["a-1", "b-0"]),
]


@pytest.mark.parametrize(("topics", "partitions", "expected"), SELECTIONS)
def test_topics_and_partitions_select_logs(
    tmp_path: Path, topics: list[str], partitions: list[str], expected: list[str]
) -> None:
    assert found(make(tmp_path, "a-0", "a-1", "ab-0", "b-0"), topics, partitions) == expected


@pytest.mark.parametrize(
    ("topics", "partitions", "message"),
    [
        (["("], [], "is not a regular expression"),
        ([], ["orders"], "is not TOPIC-N"),
        ([], ["orders-9"], "no such partition: orders-9"),
    ],
)
def test_invalid_selections_are_usage_errors(tmp_path: Path, topics: list[str], partitions: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        found(make(tmp_path, "orders-0"), topics, partitions)


def test_a_directory_given_twice_is_used_once(tmp_path: Path) -> None:
    log_dir = make(tmp_path / "logs", "orders-0")
    (tmp_path / "link").symlink_to(log_dir)
    assert found([log_dir, log_dir + "/", str(tmp_path / "link"), log_dir + "/../logs"]) == ["orders-0"]


def test_two_directories_may_hold_the_same_partition(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one", "orders-0"), make(tmp_path / "two", "orders-0")
    assert found([two, one]) == ["orders-0", "orders-0"]


def test_invalid_log_directories_are_usage_errors(tmp_path: Path) -> None:
    make(tmp_path, "logs/orders-0")
    (tmp_path / "file").touch()
    (tmp_path / "logs/orders-0/00000000000000000000.log").touch()
    for name, message in [("nowhere", "no such"), ("file", "not a directory"), ("logs/orders-0", "one partition's directory")]:
        with pytest.raises(UsageError, match=message):
            check_log_dirs(FS, [str(tmp_path / name)])
