"""Free space: shared by the directories of a file system; logs whose outputs exceed it are refused, by an upper bound first,
then by exact sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from compaction.files.local import FreeSpace, free_space
from compaction.passes.tasks import CleanContext, CleanStats, GroupOutput, OutputPart, PartResult, Slice
from compaction.rules.log_view import AbortedTxn, Segment
from compaction.rules.record_retention import ActiveProducers, RoundRules
from compaction.rules.transactions import AbortedRanges
from compaction.run import waves
from compaction.run.waves import Lacking, SpaceBudget, copied_bytes, logs_without_space

MIB = 1 << 20
DISKS = {"/a": FreeSpace(1, 20 * MIB, 0), "/a/deep": FreeSpace(1, 20 * MIB, 0), "/b": FreeSpace(2, 8 * MIB, 0)}


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "free_space", DISKS.__getitem__)


def test_a_path_that_does_not_exist_has_the_free_space_of_its_parent(tmp_path: Path) -> None:
    found = free_space(str(tmp_path / "not" / "yet"))
    assert found.device == tmp_path.stat().st_dev
    assert 0 < found.free_bytes <= os.statvfs(tmp_path).f_frsize * os.statvfs(tmp_path).f_blocks


def test_the_directories_of_a_file_system_share_its_space_of_which_a_margin_stays_free(disks: None) -> None:
    budget = SpaceBudget()
    assert (budget.free_bytes("/a"), budget.free_bytes("/b")) == (16 * MIB, 4 * MIB)
    # this allocates nothing
    assert [budget.fits([("/a", 16 * MIB), ("/b", needed)]) for needed in (0, 4 * MIB, 4 * MIB + 1)] == [True, True, False]
    assert budget.take("/a", 10 * MIB)
    assert not budget.take("/a/deep", 10 * MIB)
    assert budget.take("/a/deep", 6 * MIB)
    assert budget.free_bytes("/a") == 0
    assert budget.take("/b", 4 * MIB)
    assert SpaceBudget(6 * MIB).free_bytes("/b") == -2 * MIB


def test_a_copy_needs_space_for_its_indexes() -> None:
    segment = Segment(0, 1000, 0, 8 * MIB, 12 * MIB, 0, 0, 0, (AbortedTxn(1, 0, 0, 0),) * 10)
    assert copied_bytes([segment, segment]) >= 2 * (1000 + 20 * MIB + 340)


def log(directory: str) -> CleanContext:
    none = np.empty(0, np.int64)
    rules = RoundRules(AbortedRanges(none, none, none), none, ActiveProducers(none, none, np.empty(0, np.int16)), 100, 0)
    return CleanContext(0, 99, 0, 0, 4096, rules, directory)


def parts_of(number: int, mebibytes: int, *, parts: int = 1) -> list[OutputPart]:
    output = GroupOutput(number, 0, 0, 0, (), "like")
    size = mebibytes * MIB // parts
    return [
        OutputPart(output, part, (Slice(number, 0, "path", part, part + 1, 0, size, 0),), part, parts == 1)
        for part in range(parts)
    ]


class Measured:
    """A pass 2 that keeps ``kept`` MiB of each output part, in batches of 16 KiB."""

    def __init__(self, output_parts: Sequence[OutputPart], kept: Sequence[float]) -> None:
        self.calls = 0
        self._results = [
            PartResult(each.output.log, 0, each.number, CleanStats(bytes_kept=int(size * MIB)), batches=int(size * 64))
            for each, size in zip(output_parts, kept, strict=True)
        ]

    def __call__(self) -> Sequence[PartResult]:
        self.calls += 1
        return self._results


def refused_by(
    mebibytes: int, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart], measure: Measured
) -> Mapping[int, Lacking]:
    """The logs that do not fit into the free space, of which nothing is a margin."""
    with patch.object(waves, "free_space", lambda _: FreeSpace(1, mebibytes * MIB, 1 << 40)):
        return logs_without_space(SpaceBudget(-4 * MIB), logs, parts, measure)


@pytest.mark.parametrize(("parts", "free", "measured"), [(1, 102, 0), (1, 99, 1), (16, 240, 0), (16, 199, 1)])
def test_nothing_is_measured_if_the_upper_bound_fits(parts: int, free: int, measured: int) -> None:
    output_parts = parts_of(0, 100, parts=parts)
    measure = Measured(output_parts, [1] * parts)
    assert refused_by(free, {0: log("/a")}, output_parts, measure) == {}
    assert measure.calls == measured


def test_logs_are_admitted_in_order_while_they_fit() -> None:
    output_parts = parts_of(0, 100) + parts_of(1, 100) + parts_of(2, 100)
    measure = Measured(output_parts, [30, 40, 20])
    refused = refused_by(60, {n: log("/a") for n in range(3)}, output_parts, measure)
    assert list(refused) == [1]
    needed, free = refused[1]
    assert 40 * MIB < sum(needed.values()) < 41 * MIB
    assert 29 * MIB < free < 30 * MIB


def test_a_part_needs_its_space_twice() -> None:
    output_parts = parts_of(0, 100, parts=2)
    refused = refused_by(90, {0: log("/a")}, output_parts, Measured(output_parts, [25, 25]))
    needed, free = refused[0]
    assert 100 * MIB < sum(needed.values()) < 101 * MIB
    assert free == 90 * MIB
