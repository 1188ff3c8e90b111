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


def test_invalid_log_directories_are_usage_errors(tmp_path: Path) -> None:
    make(tmp_path, "logs/orders-0")
    (tmp_path / "file").touch()
    (tmp_path / "logs/orders-0/00000000000000000000.log").touch()
    for name, message in [("nowhere", "no such"), ("file", "not a directory"), ("logs/orders-0", "one partition's directory")]:
        with pytest.raises(UsageError, match=message):
            check_log_dirs(FS, [str(tmp_path / name)])


TWICE = "/t-0: this partition is also in .*/b/t-0; "


def two_directories(root: Path) -> tuple[Path, Path]:
    """A broker's two disks with one partition on both."""
    for name in ("a", "b"):
        make(root / name, "t-0", f"only-{ord(name)}")
        (root / name / "meta.properties").write_text("version=1\nnode.id=1\n")
    return root / "a", root / "b"


def test_a_partition_in_two_directories_is_an_error_that_names_both(tmp_path: Path) -> None:
    dirs = [*map(str, two_directories(tmp_path))]
    with pytest.raises(UsageError, match=rf"/a{TWICE}a broker starts on neither: move away the one whose disk has failed"):
        found(dirs)
    with pytest.raises(UsageError, match=TWICE):
        found(dirs, partitions=["t-0"])
    # what is not selected is not read twice
    assert found(dirs, topics=["only"]) == ["only-97", "only-98"]


@pytest.mark.parametrize("kept", ["a", "b"])
def test_of_a_partition_that_a_broker_moved_the_one_is_named_that_it_would_keep(tmp_path: Path, kept: str) -> None:
    first, second = two_directories(tmp_path)
    other = {"a": second, "b": first}[kept]
    (tmp_path / kept / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 7\n")
    (other / "cleaner-offset-checkpoint").write_text("0\n0\n")
    told = rf"would keep .*/{kept}/t-0, whose cleaner-offset-checkpoint has it: move {other}/t-0 away, or leave out its log"
    with pytest.raises(UsageError, match=TWICE + ".*" + told):
        found([str(first), str(second)])
    (other / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 5\n")
    with pytest.raises(UsageError, match="a broker starts on neither"):
        found([str(first), str(second)])
    (tmp_path / kept / "cleaner-offset-checkpoint").write_text("garbled")
    with pytest.raises(UsageError, match=rf"would keep {other}/t-0"):
        found([str(first), str(second)])


def test_a_copy_of_a_partition_that_is_being_moved_is_no_second_one(tmp_path: Path) -> None:
    log_dir = make(tmp_path / "a", "t-0")
    assert found([log_dir, make(tmp_path / "b", "t-0.0123456789abcdef0123456789abcdef-future", "u-0")]) == ["t-0", "u-0"]


def test_replicas_of_two_brokers_are_not_read_as_one_log(tmp_path: Path) -> None:
    first, second = two_directories(tmp_path)
    (second / "meta.properties").write_text("version=1\nnode.id=2\n")
    with pytest.raises(UsageError, match="they are replicas of brokers 1 and 2: give the directories of one broker in a call"):
        found([str(first), str(second)])
    for text in ("version=9\n", "node.id"):
        (second / "meta.properties").write_text(text)
        with pytest.raises(UsageError, match="a broker starts on neither"):
            found([str(first), str(second)])
