"""What an erasure does not reach is found, and searched if it has record batches."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from compaction.certifier.certificate import Remains
from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.find_remains import remains_in, unreached
from compaction.errors import StorageError
from compaction.files.local import LocalFileSystem
from compaction.formats.keys import KeyCriteria
from compaction.names import TopicPartition
from tests.erasure.test_erase_keys import write_odd
from tests.kafka.encode import Batch, Record
from tests.passes.random_cases import NOW_MS

FIRST = "00000000000000000000.log"
ODD = TopicPartition("odd", 0)
MARK = ".0123456789abcdef0123456789abcdef-"


def erased(*keys: bytes, tombstones: bool = False) -> ErasedKeys:
    return ErasedKeys(KeyCriteria.of(pa.array(keys, pa.binary())), tombstones)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    write_odd(tmp_path)
    (tmp_path / "meta.properties").write_text("version=1\n")
    (tmp_path / ".lock").touch()
    (tmp_path / "odd-0" / "leader-epoch-checkpoint").write_text("0\n0\n")
    return tmp_path


def test_a_directory_with_files_of_a_broker_only_has_nothing_out_of_reach(log_dir: Path) -> None:
    (log_dir / "other-0").mkdir()
    (log_dir / "other-0" / f"{FIRST}~").touch()
    assert unreached(str(log_dir), {ODD}) == []


@pytest.mark.parametrize(
    "name", [f"{FIRST}~", f"{FIRST}.orig", f"{FIRST}.bak", f".{FIRST}.swp", f"{FIRST}.deleted", f"{FIRST}.swap", "core.4711"]
)
def test_a_file_that_is_no_segment_of_a_broker_is_out_of_reach(log_dir: Path, name: str) -> None:
    copy = log_dir / "odd-0" / name
    copy.write_bytes((log_dir / "odd-0" / FIRST).read_bytes())
    assert unreached(str(log_dir), {ODD}) == [f"odd-0/{name}"]
    assert remains_in(f"{log_dir}/odd-0/{name}", erased(b"k")) == Remains(str(copy), 1)
    assert remains_in(f"{log_dir}/odd-0/{name}", erased(b"other")) == Remains(str(copy), 0)
    expected = [] if name.endswith(".deleted") else [f"odd-0/{name}"]
    assert unreached(str(log_dir), {ODD}, replaced=False) == expected


@pytest.mark.parametrize("kind", ["future", "delete", "stray"])
def test_a_marked_directory_of_a_log_is_out_of_reach(log_dir: Path, kind: str) -> None:
    marked = log_dir / f"odd-0{MARK}{kind}"
    marked.mkdir()
    (log_dir / f"other-0{MARK}{kind}").mkdir()
    for name in (FIRST, FIRST.replace(".log", ".index"), "partition.metadata"):
        (marked / name).write_bytes((log_dir / "odd-0" / FIRST).read_bytes())
    assert unreached(str(log_dir), {ODD}) == [f"{marked.name}/{FIRST}"]


def test_a_directory_that_cannot_be_read_is_named(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = log_dir / f"odd-0{MARK}stray"
    marked.mkdir()
    listdir = LocalFileSystem.listdir

    def refused(self: LocalFileSystem, path: str) -> list[str]:
        if path == str(marked):
            raise StorageError("cannot list: Permission denied", path=path)
        return listdir(self, path)

    monkeypatch.setattr(LocalFileSystem, "listdir", refused)
    assert unreached(str(log_dir), {ODD}) == [f"{marked.name}/"]
    assert remains_in(f"{log_dir}/{marked.name}/", erased(b"k")) == Remains(f"{marked}/")


def test_what_has_no_record_batches_is_named_only(log_dir: Path) -> None:
    (log_dir / "keys.txt").write_text("k\n")
    (log_dir / "backup").mkdir()
    (log_dir / "odd-0" / "empty").touch()
    assert unreached(str(log_dir), {ODD}) == ["backup/", "keys.txt", "odd-0/empty"]
    found = [remains_in(f"{log_dir}/{path}", erased(b"k")).records for path in ("backup/", "keys.txt", "odd-0/empty")]
    assert found == [None, None, 0]


def test_a_torn_segment_without_the_keys_is_not_known_to_be_without_them(log_dir: Path) -> None:
    torn = log_dir / "odd-0" / f"{FIRST}.bak"
    torn.write_bytes((log_dir / "odd-0" / FIRST).read_bytes()[:-1])
    assert remains_in(f"{log_dir}/odd-0/{torn.name}", erased(b"other")).records is None


def test_a_tombstone_of_the_key_is_nothing_that_remains_if_tombstones_were_left(log_dir: Path) -> None:
    copy = log_dir / "odd-0" / f"{FIRST}.bak"
    copy.write_bytes(Batch([Record(0, NOW_MS, b"t", None), Record(1, NOW_MS, b"t", None, ((b"h", b"x"),))]).encode())
    for tombstones, records in ((False, 2), (True, 1)):
        assert remains_in(f"{log_dir}/odd-0/{copy.name}", erased(b"t", tombstones=tombstones)).records == records
