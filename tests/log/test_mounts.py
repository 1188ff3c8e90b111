"""Mount points and kinds of file systems, from the kernel's list of mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compaction.log import access as mounts

MOUNTS = [
    "21 1 {device} / / rw - ext4 /dev/vda rw",
    "22 21 0:99 / /srv/with\\040space rw - nfs4 server:/ rw",
    "23 21 {device} /part /var/lib/kafka rw - ext4 /dev/vda rw",
]


def of(path: Path, *lines: str) -> list[str]:
    """The kernel's lines, with the device of ``path``."""
    device = path.stat().st_dev
    return [line.format(device=f"{os.major(device)}:{os.minor(device)}") for line in lines]


def test_mount_points_are_listed_with_their_escapes_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_mounts", lambda: of(tmp_path, *MOUNTS))
    assert mounts.mount_points() == {"/", "/srv/with space", "/var/lib/kafka"}


@pytest.mark.parametrize(("kinds", "local"), [(["ext4"], True), (["nfs4"], False), (["ext4", "nfs4"], False), ([], False)])
def test_a_disk_is_local_only_if_all_its_mounts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[str], local: bool
) -> None:
    lines = [f"21 1 {{device}} / /{kind} rw shared:1 - {kind} x rw" for kind in kinds]
    monkeypatch.setattr(mounts, "_mounts", lambda: of(tmp_path, *lines))
    assert mounts.is_local(str(tmp_path)) is local


def test_a_missing_path_is_not_known_to_be_local(tmp_path: Path) -> None:
    assert not mounts.is_local(str(tmp_path / "missing"))


def test_a_bind_mount_on_the_same_disk_is_a_mount_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_mounts", lambda: of(tmp_path, f"23 21 {{device}} /part {tmp_path} rw - ext4 /dev/vda rw"))
    assert mounts.is_mount_point(str(tmp_path))
    assert not mounts.is_mount_point(str(tmp_path.parent))
