"""Free space, given out before anything is written: what does not fit is refused with figures instead of failing half way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from compaction.fs.filesystem import storage_errors

#: left alone: checkpoints, journals and directories take some too
_MARGIN_BYTES = 4 << 20


class FreeSpace(NamedTuple):
    """Bytes that this user may still write to a file system, known by its device number."""

    device: int
    free_bytes: int


def free_space(path: str) -> FreeSpace:
    """The free space where ``path`` is, or will be.

    :raises StorageError: the file system does not tell
    """
    with storage_errors(path, "see how much space is free"):
        place = next(each for each in (Path(path), *Path(path).parents) if each.exists())
        found = os.statvfs(place)
        return FreeSpace(place.stat().st_dev, found.f_bavail * found.f_frsize)


class SpaceBudget:
    """Gives out the free bytes of file systems, each as it was when it was first asked about.

    :param reserved_bytes: so much of every file system is spoken for
    """

    def __init__(self, reserved_bytes: int = 0, look: Callable[[str], FreeSpace] = free_space) -> None:
        self._look = look
        self._reserved_bytes = reserved_bytes + _MARGIN_BYTES
        self._left: dict[int, int] = {}

    def left(self, directory: str) -> int:
        """Bytes that can still be taken there; below 0 where not even the reserve fits."""
        found = self._look(directory)
        return self._left.setdefault(found.device, found.free_bytes - self._reserved_bytes)

    def take(self, directory: str, needed_bytes: int) -> bool:
        """Whether so many bytes fit into ``directory``; if so they are taken."""
        fits = needed_bytes <= self.left(directory)
        if fits:
            self._left[self._look(directory).device] -= needed_bytes
        return fits

    def fits(self, directories: Iterable[str], needed_bytes: int) -> bool:
        """Whether so many bytes fit into any of the directories without being taken."""
        return all(needed_bytes <= self.left(directory) for directory in directories)
