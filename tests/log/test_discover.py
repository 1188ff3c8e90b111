"""Finding logs: which directories are logs, and which of them a call asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.errors import UsageError
from compaction.files.local import LocalFileSystem
from compaction.log.discover import Selector, check_log_dirs, discover

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


def test_a_directory_given_twice_is_used_once(tmp_path: Path) -> None:
    log_dir = make(tmp_path / "logs", "orders-0")
    (tmp_path / "link").symlink_to(log_dir)
    assert found([log_dir, log_dir + "/", str(tmp_path / "link"), log_dir + "/../logs"]) == ["orders-0"]


NEITHER = "a broker starts on neither: move away the one whose disk has failed"


@pytest.fixture
def disks(tmp_path: Path) -> list[str]:
    """A broker's two disks with one partition on both."""
    dirs = [make(tmp_path / name, "t-0", f"only-{ord(name)}") for name in ("a", "b")]
    for log_dir in dirs:
        Path(log_dir, "meta.properties").write_text("version=1\nnode.id=1\n")
    return dirs


def test_a_partition_in_two_directories_is_an_error_that_names_both(disks: list[str]) -> None:
    for partitions in ([], ["t-0"]):
        with pytest.raises(UsageError, match=rf"/a/t-0: this partition is also in .*/b/t-0; {NEITHER}"):
            found(disks, partitions=partitions)
    # what is not selected is not read twice
    assert found(disks, topics=["only"]) == ["only-97", "only-98"]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("0\n1\nt 0 7\n", "0\n0\n", 0),
        ("0\n0\n", "0\n1\nt 0 7\n", 1),
        ("0\n1\nt 0 7\n", "0\n1\nt 0 5\n", None),
        ("garbled", "0\n1\nt 0 5\n", 1),
        ("0\n1\nt 0 5\n", "garbled", 0),
    ],
)
def test_of_a_partition_that_a_broker_moved_the_one_is_named_that_it_would_keep(
    disks: list[str], first: str, second: str, kept: int | None
) -> None:
    for log_dir, text in zip(disks, (first, second), strict=True):
        Path(log_dir, "cleaner-offset-checkpoint").write_text(text)
    told = NEITHER
    if kept is not None:
        told = f"would keep {disks[kept]}/t-0, whose cleaner-offset-checkpoint has it: "
        told += f"move {disks[1 - kept]}/t-0 away, or leave out its log"
    with pytest.raises(UsageError, match=f"this partition is also in .*/b/t-0; .*{told}"):
        found(disks)


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        ("version=1\nnode.id=2\n", "they are replicas of brokers 1 and 2: give the directories of one broker in a call"),
        ("version=9\n", NEITHER),
        ("node.id", NEITHER),
    ],
)
def test_replicas_of_two_brokers_are_not_read_as_one_log(disks: list[str], properties: str, told: str) -> None:
    Path(disks[1], "meta.properties").write_text(properties)
    with pytest.raises(UsageError, match=told):
        found(disks)
