"""Free space is asked for once a file system, and given out until there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compaction.engine.admission import FreeSpace, SpaceBudget, free_space

MIB = 1 << 20
DISKS = {"/a": FreeSpace(1, 20 * MIB), "/a/deep": FreeSpace(1, 20 * MIB), "/b": FreeSpace(2, 8 * MIB)}


def test_a_place_that_does_not_exist_yet_has_the_space_of_what_holds_it(tmp_path: Path) -> None:
    found = free_space(str(tmp_path / "not" / "yet"))
    assert found.device == tmp_path.stat().st_dev
    assert 0 < found.free_bytes <= os.statvfs(tmp_path).f_frsize * os.statvfs(tmp_path).f_blocks


def test_a_margin_is_left_on_every_file_system() -> None:
    room = SpaceBudget(look=DISKS.__getitem__)
    assert (room.left("/a"), room.left("/b")) == (16 * MIB, 4 * MIB)


def test_what_is_taken_is_gone_for_all_directories_of_a_file_system() -> None:
    room = SpaceBudget(look=DISKS.__getitem__)
    assert room.take("/a", 10 * MIB)
    assert not room.take("/a/deep", 10 * MIB)
    assert room.take("/a/deep", 6 * MIB)
    assert room.left("/a") == 0
    assert room.take("/b", 4 * MIB)


@pytest.mark.parametrize(("needed", "fits"), [(0, True), (4 * MIB, True), (4 * MIB + 1, False)])
def test_what_fits_everywhere_is_not_taken(needed: int, fits: bool) -> None:
    room = SpaceBudget(look=DISKS.__getitem__)
    assert room.fits(["/a", "/b"], needed) is fits
    assert room.left("/b") == 4 * MIB


def test_what_is_spoken_for_is_not_free() -> None:
    assert SpaceBudget(6 * MIB, DISKS.__getitem__).left("/b") == -2 * MIB
