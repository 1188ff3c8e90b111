"""Which logs are cleaned at all: their outputs fit into the free space, and they lose no records for want of a key.

Free space is budgeted before anything is written: what does not fit is refused with figures instead of failing half way. If
everything fits even when no record is dropped, that is all. Otherwise pass 2 runs once without writing to get the exact sizes,
and logs are admitted in their order, the dirtiest first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from compaction.cleaning.plan import LogPlan
from compaction.fs.filesystem import storage_errors
from compaction.kernels.reading.tables import OUT_ROW
from compaction.passes.tasks import CleanContext, OutputPart, PartResult

#: a log of whose records a larger share has no key is refused: compaction would drop them
KEYLESS_SHARE = 0.01
#: left alone: checkpoints, journals and directories take some too
_MARGIN_BYTES = 4 << 20
#: two index entries, and what the file system rounds up for each of a segment's files
_INDEX_ENTRY_BYTES = 20
_SEGMENT_BYTES = 5 * 4096
_TXN_ENTRY_BYTES = 34
#: batches smaller than this on average are not expected when nothing is known of them
_BATCH_BYTES = 128


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


def logs_without_space(
    room: SpaceBudget,
    logs: Mapping[int, CleanContext],
    pieces: Sequence[OutputPart],
    measure: Callable[[], Sequence[PartResult]],
) -> dict[int, tuple[int, int]]:
    """The logs whose output would not fit: bytes needed and bytes free.

    :param measure: runs pass 2 without writing
    """
    most = sum(_needed(each, logs[each.output.log], each.size_bytes, each.size_bytes // _BATCH_BYTES) for each in pieces)
    if room.fits({work.directory for work in logs.values()}, most):
        return {}
    found = {(result.log, result.number): result for result in measure()}
    exact = dict.fromkeys(logs, 0)
    for piece in pieces:
        result = found[piece.output.log, piece.number]
        exact[result.log] += _needed(piece, logs[result.log], result.stats.bytes_kept, result.batches)
    refused = {}
    for log, needed_bytes in exact.items():
        if not room.take(logs[log].directory, needed_bytes):
            refused[log] = needed_bytes, max(0, room.left(logs[log].directory))
    return refused


def _needed(piece: OutputPart, log: CleanContext, kept_bytes: int, batches: int) -> int:
    """Bytes on disk for ``kept_bytes`` of so many batches, indexes included; a part is there twice until the swap."""
    indexes = _INDEX_ENTRY_BYTES * (kept_bytes // max(1, log.index_interval_bytes) + 1)
    whole = kept_bytes + indexes + _SEGMENT_BYTES + _TXN_ENTRY_BYTES * len(piece.output.aborted_txns)
    return whole if piece.whole else whole + kept_bytes + OUT_ROW.itemsize * batches


def keyless_refusal(*, allow_keyless: bool) -> Callable[[LogPlan, int, int], str | None]:
    """A function that refuses logs that would lose more than ``KEYLESS_SHARE`` of their records for want of a key."""

    def refuse(plan: LogPlan, messages: int, keyless: int) -> str | None:
        if allow_keyless or keyless <= KEYLESS_SHARE * messages:
            return None
        share = 100 * keyless / messages
        return (
            f"{plan.view.path}: {keyless} of {messages} records ({share:.1f} %) have no key and would be lost;"
            " if that is meant, run again with --allow-keyless"
        )

    return refuse
