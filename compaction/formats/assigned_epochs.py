"""Assigns the leader epochs of batches to those that ``leader-epoch-checkpoint`` has.

A batch of an epoch that the file lacks assigns it, from the batch's base offset on. Entries that contradict it are removed: of
a later epoch that begins up to the batch, of an earlier one that begins at or past it. A batch of an earlier epoch than the
batches before it, which no broker writes, assigns none.

Mirrors ``LeaderEpochFileCache.assign`` (Kafka 4.4.0). Difference: Kafka assigns only epochs above the latest entry, and uses a
file that contradicts the batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from compaction.formats.checkpoints import EpochEntry


class EpochRange(NamedTuple):
    """Adjacent batches of one leader epoch: the first one's base offset, the last one's last offset (inclusive)."""

    epoch: int
    first_offset: int
    last_offset: int


def agree(entries: Iterable[EpochEntry], batches: EpochRange) -> bool:
    """Whether the entries give all offsets of these batches their leader epoch."""
    epoch, first, last = batches
    at = max((each for each in entries if each.start_offset <= last), default=None, key=lambda each: each.start_offset)
    return at is not None and at.epoch == epoch and at.start_offset <= first


def assign_epochs(entries: Sequence[EpochEntry], ranges: Iterable[EpochRange]) -> list[EpochEntry]:
    """The leader epochs of a log after those of its batches were assigned; ``entries`` if they agree.

    :param entries: of the file, ascending
    :param ranges: of the batches, ascending
    """
    assigned, highest = list(entries), -1
    for each in ranges:
        epoch, first, last = each
        if epoch < highest:
            continue
        highest = epoch
        if agree(assigned, each):
            continue
        earlier = [entry for entry in assigned if entry.epoch < epoch and entry.start_offset < first]
        own = [entry for entry in assigned if entry.epoch == epoch and entry.start_offset <= first]
        later = [entry for entry in assigned if entry.epoch > epoch and entry.start_offset > last]
        assigned = [*earlier, *(own or [EpochEntry(epoch, first)]), *later]
    return assigned
