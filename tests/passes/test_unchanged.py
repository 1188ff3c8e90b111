"""Segments whose output would be the same are not written: they stay, and everything else is as if they had been written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.passes import clean_into
from compaction.report import LogReport
from compaction.run.sizing import Sizes
from tests.local_job import clean_locally
from tests.memory import scratch
from tests.passes.random_cases import NOW_MS, random_case, random_cases
from tests.passes.rounds import Case, assert_four_rounds_equal, run_round
from tests.passes.test_metamorphic import WHOLE, files, lay_out

TINY = Sizes(500, 1_500, 7, 1 << 20)
ANY_SIZE, NEVER = 0, 1 << 62


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch() as directory:
        yield directory


@pytest.mark.parametrize(("sizes", "seeds"), [(WHOLE, range(40, 45)), (TINY, range(45, 48))], ids=["one task", "many tasks"])
def test_rounds_give_the_output_of_the_plain_cleaner(
    root: Path, sizes: Sizes, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clean_into, "_MIN_BYTES", ANY_SIZE)
    kept = counted(monkeypatch)
    cases = random_cases(seeds)
    for case in cases[::2]:
        # each segment is a group
        case.config = replace(case.config, segment_bytes=1)
    assert_four_rounds_equal(root / "logs", cases, NOW_MS, sizes)
    assert kept["unchanged"] > 10
    assert kept["changed"] > 10


def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often an output was, and was not, its source."""
    counts = {"unchanged": 0, "changed": 0}
    finish = clean_into.SourceComparison.finish

    def counting(self: clean_into.SourceComparison) -> None:
        counts["changed"] += 1
        finish(self)
        counts["changed"] -= 1
        counts["unchanged"] += 1

    monkeypatch.setattr(clean_into.SourceComparison, "finish", counting)
    return counts


def settled(root: Path) -> Case:
    """A case that a round, one segment a group, has cleaned; all but its first segment count as dirty again."""
    case = random_case("no-transactions", 3)
    case.config = replace(case.config, segment_bytes=1)
    assert not list(run_round(root, [case], NOW_MS))
    case.checkpoint = case.segments[1].base_offset
    return case


def test_segments_stay_and_files_and_figures_are_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = settled(root / "first")
    monkeypatch.setattr(clean_into, "_MIN_BYTES", NEVER)
    expected, written, _ = outcome(root / "written", case)
    monkeypatch.setattr(clean_into, "_MIN_BYTES", ANY_SIZE)
    found, report, stayed = outcome(root / "kept", case)
    assert found == expected
    assert replace(report, deleted_bytes=0) == replace(written, deleted_bytes=0)
    assert stayed > 1
    assert report.deleted_bytes < written.deleted_bytes


def outcome(log_dir: Path, case: Case) -> tuple[dict[str, tuple[bytes, int]], LogReport, int]:
    """What one run leaves and reports, and how many closed segments it did not replace."""
    log_dir.mkdir()
    lay_out(log_dir, case)
    inodes = {path.name: path.stat().st_ino for path in sorted(log_dir.glob("*-0/*.log"))[:-1]}
    report = clean_locally(log_dir, NOW_MS, {case.name: case.topic_config})[case.name]
    stayed = sum((log_dir / f"{case.name}-0" / name).stat().st_ino == inode for name, inode in inodes.items())
    return files(log_dir, case), replace(report, log_dir="", seconds=0), stayed


def test_a_segment_whose_indexes_would_differ_is_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_into, "_MIN_BYTES", ANY_SIZE)
    case = settled(root / "first")
    _, _, stayed = outcome(root / "same", case)
    case.config = replace(case.config, index_interval_bytes=1 << 20)
    assert outcome(root / "other", case)[2] < stayed
    assert not list(run_round(root / "other", [case], NOW_MS))
