"""What is compared: the two sides of a log, also of one that was cleaned in place, whose ``.deleted`` segments are part of what
it was; what ``compact --verify`` verifies; and what an erasure does not reach, which is searched if it has batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.certifier.certificate import LogCertificate, Remains
from compaction.certifier.erasure_certificate import remains_in, unreached
from compaction.certifier.find_pairs import CleaningRules, LogPair, pair_directories, pair_in_place, requests
from compaction.config.request import CompactionRequest
from compaction.errors import ConfigError, StorageError, UsageError
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.names import LogLocation, TopicPartition
from tests.certifier.certify import erased_keys
from tests.erasure.test_erase_keys import write_odd
from tests.kafka.encode import Batch, Record
from tests.local_job import write_offsets
from tests.passes.random_cases import NOW_MS
from tests.screen.made_reports import AS_OF_MS, every_outcome

FS = MixedFileSystem()
LOG = TopicPartition("t", 0)


def located(log_dir: Path, *files: str) -> LogLocation:
    path = log_dir / str(LOG)
    path.mkdir(parents=True)
    for name in files:
        (path / name).touch()
    return LogLocation(LOG, str(log_dir), str(path))


def segment(base: int, suffix: str = "") -> str:
    return f"{base:020d}.log{suffix}"


RULES = CleaningRules(0)


def in_place(log_dir: Path, *files: str) -> LogPair | LogCertificate:
    (found,) = pair_in_place(FS, {located(log_dir, *files): RULES})
    return found


def test_before_is_what_was_replaced_and_what_was_not(tmp_path: Path) -> None:
    names = (segment(0), segment(0, ".deleted"), segment(5, ".deleted"), segment(9), segment(12))
    found = in_place(tmp_path, *names)
    assert isinstance(found, LogPair)
    before = [(each.base_offset, each.suffix, each.last) for each in found.before.segments]
    assert before == [(0, ".deleted", False), (5, ".deleted", False), (9, "", False), (12, "", True)]
    assert [(each.base_offset, each.last) for each in found.after.segments] == [(0, False), (9, False), (12, True)]


@pytest.mark.parametrize(("log_start", "before", "first"), [(0, 0, 5), (5, 0, 5), (7, 7, 5), (5, 5, 0)])
def test_only_a_log_start_at_the_first_segment_was_moved_by_deletion(
    tmp_path: Path, log_start: int, before: int, first: int
) -> None:
    write_offsets(tmp_path, log_starts={"t": log_start})
    found = in_place(tmp_path, segment(0, ".deleted"), segment(first), segment(9))
    assert isinstance(found, LogPair)
    assert (found.before.log_start_offset, found.after.log_start_offset) == (before, max(log_start, 5))


@pytest.mark.parametrize(
    ("files", "reason"),
    [(("x",), "directory has no segments"), ((segment(0), segment(0, ".swap")), "a segment swap is unfinished")],
)
def test_a_log_that_cannot_be_read_has_failed(tmp_path: Path, files: tuple[str, ...], reason: str) -> None:
    found = in_place(tmp_path, *files)
    assert isinstance(found, LogCertificate)
    assert (found.status.value, reason in found.reason) == ("failed", True)


def test_a_log_without_valid_settings_has_failed(tmp_path: Path) -> None:
    (found,) = pair_in_place(FS, {located(tmp_path, segment(0)): ConfigError("bad value")})
    assert isinstance(found, LogCertificate)
    assert found.reason == "bad value"


def test_a_log_on_one_side_only_is_violated(tmp_path: Path) -> None:
    log = located(tmp_path, segment(3), segment(7))
    for before, after, what in (([log], [], "log is missing"), ([], [log], "log is not in the source")):
        (found,) = pair_directories(FS, dict.fromkeys(before, RULES), after)
        assert isinstance(found, LogCertificate)
        assert [(each.offset, each.what) for each in found.violations] == [(3, what)]


def test_a_log_in_two_directories_of_one_side_makes_the_call_wrong(tmp_path: Path) -> None:
    logs = [located(tmp_path / name, segment(0)) for name in ("one", "two")]
    with pytest.raises(UsageError, match="t-0 is in two directories of --before"):
        pair_directories(FS, dict.fromkeys(logs, RULES), logs[:1])


CHANGED = {"orders-3", "a-topic-with-a-name-that-is-longer-than-most-terminals-have-room-for-12", "sessions-0", "clicks-0"}


@pytest.mark.parametrize("output_dir", [None, "/copy"])
def test_a_copy_is_verified_completely_and_in_place_what_was_changed(output_dir: str | None) -> None:
    request = CompactionRequest(("/data", "/other"), (), as_of_ms=AS_OF_MS, output_dir=output_dir)
    (verification,) = requests(request, every_outcome())
    others = {"never-written-0", "sales-0", "prices-1"} if output_dir else set()
    assert set(map(str, verification.logs or ())) == CHANGED | others
    assert bool(verification.before) is bool(output_dir)


FIRST = "00000000000000000000.log"
ODD = TopicPartition("odd", 0)
MARK = ".0123456789abcdef0123456789abcdef-"


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
    assert remains_in(f"{log_dir}/odd-0/{name}", erased_keys(b"k")) == Remains(str(copy), 1)
    assert remains_in(f"{log_dir}/odd-0/{name}", erased_keys(b"other")) == Remains(str(copy), 0)
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
    assert remains_in(f"{log_dir}/{marked.name}/", erased_keys(b"k")) == Remains(f"{marked}/")


def test_what_has_no_record_batches_is_named_only(log_dir: Path) -> None:
    (log_dir / "keys.txt").write_text("k\n")
    (log_dir / "backup").mkdir()
    (log_dir / "odd-0" / "empty").touch()
    assert unreached(str(log_dir), {ODD}) == ["backup/", "keys.txt", "odd-0/empty"]
    found = [remains_in(f"{log_dir}/{path}", erased_keys(b"k")).records for path in ("backup/", "keys.txt", "odd-0/empty")]
    assert found == [None, None, 0]


def test_a_torn_segment_without_the_keys_is_not_known_to_be_without_them(log_dir: Path) -> None:
    torn = log_dir / "odd-0" / f"{FIRST}.bak"
    torn.write_bytes((log_dir / "odd-0" / FIRST).read_bytes()[:-1])
    assert remains_in(f"{log_dir}/odd-0/{torn.name}", erased_keys(b"other")).records is None


def test_a_tombstone_of_the_key_is_nothing_that_remains_if_tombstones_were_left(log_dir: Path) -> None:
    copy = log_dir / "odd-0" / f"{FIRST}.bak"
    copy.write_bytes(Batch([Record(0, NOW_MS, b"t", None), Record(1, NOW_MS, b"t", None, ((b"h", b"x"),))]).encode())
    for tombstones, records in ((False, 2), (True, 1)):
        assert remains_in(f"{log_dir}/odd-0/{copy.name}", erased_keys(b"t", tombstones=tombstones)).records == records
