"""Checks the leader epochs of a log: they equal those of before or, if the batches contradict these, those of the batches.

After a kill, ``leader-epoch-checkpoint`` may lack unflushed entries; a run assigns the epochs of the batches, as a broker does.
Epochs without batches and offsets before the first entry cannot be checked.

Mirrors ``LeaderEpochFileCache`` at the start of a broker (Kafka 4.4.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from compaction.certifier.checks.log_pair import LONG_MAX
from compaction.certifier.kept_files.parsed_files import parsed, parsed_pair, text_of
from compaction.formats.checkpoints import EpochEntry, EpochRange, parse_leader_epochs
from compaction.names import LEADER_EPOCHS
from compaction.storage.filesystem import FileSystem, join


def copied_epoch_problems(
    fs: FileSystem, paths: tuple[str, str], bounds: tuple[int, int], batches: Sequence[EpochRange]
) -> Iterator[str]:
    """Check that each offset has the same leader epoch on both sides, or that of its batch if before contradicts the batches.

    :param paths: the partition directories of before and after
    :param bounds: log start, and log end (exclusive)
    :param batches: of before
    """
    before, after = parsed_pair(_epochs, fs, *paths)
    expected = _spans(before or [], *bounds)
    if before is None or (after is not None and _spans(after, *bounds) == expected):
        return
    start = bounds[0]
    wrong = _contradiction(before, start, batches, missing=True) is not None
    if after is None or not wrong or _contradiction(after, start, batches) is not None:
        shown = ", ".join(f"{epoch} from offset {first}" for epoch, first in expected[:3]) or "none"
        yield f"{LEADER_EPOCHS} is missing, malformed or has other leader epochs; expected: {shown}"


def epoch_problems(fs: FileSystem, path: str, start: int, batches: Iterable[EpochRange]) -> Iterator[str]:
    """Check that the leader epochs of a log are those of its batches that end at or past ``start``."""
    wrong = _contradiction(parsed(_epochs, fs, path) or [], start, batches)
    if wrong is not None:
        yield f"{LEADER_EPOCHS} contradicts the batches: leader epoch {wrong.epoch} is that of offset {wrong.first_offset}"


def _contradiction(
    entries: Sequence[EpochEntry], start: int, batches: Iterable[EpochRange], *, missing: bool = False
) -> EpochRange | None:
    """The first batches at or past ``start`` with another leader epoch in ``entries``, or, if ``missing``, with none. Epochs
    never decrease in a log that a broker has written; batches with a lower epoch than an earlier one are not compared."""
    highest = -1
    for epoch, first, last in batches:
        if epoch < highest:
            continue
        highest = epoch
        entry_spans = _spans(entries, max(first, start), last + 1)
        if any(other != epoch for other, _ in entry_spans) or (missing and not entry_spans and last >= start):
            return EpochRange(epoch, max(first, start), last)
    return None


def _epochs(fs: FileSystem, log: str) -> list[EpochEntry] | None:
    path = join(log, LEADER_EPOCHS)
    text = text_of(fs, path)
    return None if text is None else parse_leader_epochs(text, path)


def _spans(epochs: Sequence[EpochEntry], start: int, end: int) -> list[tuple[int, int]]:
    """The epochs of the offsets from ``start`` to ``end`` (exclusive), each with its first offset there."""
    ends = [*(entry.start_offset for entry in epochs[1:]), LONG_MAX]
    spans = ((entry.epoch, max(entry.start_offset, start), min(after, end)) for entry, after in zip(epochs, ends, strict=False))
    return [(epoch, first) for epoch, first, after in spans if first < after]
