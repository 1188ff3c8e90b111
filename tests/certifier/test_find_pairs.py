"""The two sides of a log that was cleaned in place: the ``.deleted`` segments are part of what it was before; and which logs
``compact --verify`` verifies."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.certifier.certificate import LogCertificate
from compaction.certifier.find_pairs import CleaningRules, LogPair, pair_directories, pair_in_place, requests
from compaction.config.request import CompactionRequest
from compaction.errors import ConfigError, UsageError
from compaction.files.mixed import MixedFileSystem
from compaction.names import LogLocation, TopicPartition
from tests.local_job import write_offsets
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


@pytest.mark.parametrize(("log_start", "before"), [(0, 0), (5, 0), (7, 7)])
def test_only_a_log_start_at_the_first_segment_was_moved_by_deletion(tmp_path: Path, log_start: int, before: int) -> None:
    write_offsets(tmp_path, log_starts={"t": log_start})
    found = in_place(tmp_path, segment(0, ".deleted"), segment(5))
    assert isinstance(found, LogPair)
    assert (found.before.log_start_offset, found.after.log_start_offset) == (before, max(log_start, 5))


def test_a_log_start_above_the_first_segment_was_there_before(tmp_path: Path) -> None:
    write_offsets(tmp_path, log_starts={"t": 5})
    found = in_place(tmp_path, segment(0), segment(0, ".deleted"), segment(5, ".deleted"), segment(9))
    assert isinstance(found, LogPair)
    assert (found.before.log_start_offset, found.after.log_start_offset) == (5, 5)


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
