"""Allocating the free space of file systems."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compaction.files.local import FreeSpace, free_space
from compaction.rules.log_view import AbortedTxn, Segment
from compaction.run import waves
from compaction.run.waves import SpaceBudget, copied_bytes

MIB = 1 << 20
DISKS = {"/a": FreeSpace(1, 20 * MIB, 0), "/a/deep": FreeSpace(1, 20 * MIB, 0), "/b": FreeSpace(2, 8 * MIB, 0)}


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "free_space", DISKS.__getitem__)


def test_a_path_that_does_not_exist_has_the_free_space_of_its_parent(tmp_path: Path) -> None:
    found = free_space(str(tmp_path / "not" / "yet"))
    assert found.device == tmp_path.stat().st_dev
    assert 0 < found.free_bytes <= os.statvfs(tmp_path).f_frsize * os.statvfs(tmp_path).f_blocks


@pytest.mark.usefixtures("disks")
def test_a_margin_of_every_file_system_stays_free() -> None:
    budget = SpaceBudget()
    assert (budget.free_bytes("/a"), budget.free_bytes("/b")) == (16 * MIB, 4 * MIB)


@pytest.mark.usefixtures("disks")
def test_all_directories_of_a_file_system_share_its_space() -> None:
    budget = SpaceBudget()
    assert budget.take("/a", 10 * MIB)
    assert not budget.take("/a/deep", 10 * MIB)
    assert budget.take("/a/deep", 6 * MIB)
    assert budget.free_bytes("/a") == 0
    assert budget.take("/b", 4 * MIB)


@pytest.mark.parametrize(("needed", "fits"), [(0, True), (4 * MIB, True), (4 * MIB + 1, False)])
@pytest.mark.usefixtures("disks")
def test_fits_allocates_nothing(needed: int, fits: bool) -> None:
    budget = SpaceBudget()
    assert budget.fits([("/a", 16 * MIB), ("/b", needed)]) is fits
    assert budget.free_bytes("/b") == 4 * MIB


@pytest.mark.usefixtures("disks")
def test_reserved_bytes_are_not_free() -> None:
    assert SpaceBudget(6 * MIB).free_bytes("/b") == -2 * MIB


def test_a_copy_needs_space_for_its_indexes() -> None:
    segment = Segment(0, 1000, 0, 8 * MIB, 12 * MIB, 0, 0, 0, (AbortedTxn(1, 0, 0, 0),) * 10)
    assert copied_bytes([segment, segment]) >= 2 * (1000 + 20 * MIB + 340)
