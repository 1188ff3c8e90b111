"""Mounted file systems: whether only one kernel can have them mounted, and which directories are mount points."""

from __future__ import annotations

import os
import re
from pathlib import Path

#: file systems that two kernels cannot have mounted for writing at the same time
_LOCAL = frozenset(
    {"bcachefs", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "reiserfs", "tmpfs", "vfat", "xfs", "zfs"}
)
#: local file systems that keep no snapshots by themselves
_WITHOUT_SNAPSHOTS = frozenset({"exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "reiserfs", "tmpfs", "vfat"})


def is_local(path: str) -> bool:
    """Whether ``path`` is on a disk that no other machine can have mounted; ``False`` if unknown."""
    return _kinds(path) <= _LOCAL


def keeps_snapshots(path: str) -> bool:
    """Whether ``path`` is on a file system that may keep snapshots; ``True`` if unknown."""
    return not _kinds(path) <= _WITHOUT_SNAPSHOTS


def _kinds(path: str) -> set[str]:
    """The kinds of file systems on the device of ``path``; ``unknown`` if it is not listed, as those of btrfs."""
    try:
        device = os.stat(path).st_dev  # noqa: PTH116
    except OSError:
        return {"unknown"}
    device_id = f"{os.major(device)}:{os.minor(device)}"
    return {line.partition(" - ")[2].split(" ")[0] for line in _mounts() if line.split(" ")[2] == device_id} or {"unknown"}


def is_mount_point(path: str) -> bool:
    """Whether a file system, or a part of one (bind mount), is mounted at ``path``."""
    real = os.path.realpath(path)
    return os.path.ismount(real) or real in mount_points()


def mount_points() -> frozenset[str]:
    """All mount points; empty if the system does not list them."""
    return frozenset(_unescaped(line.split(" ")[4]) for line in _mounts())


def _mounts() -> list[str]:
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
