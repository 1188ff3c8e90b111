"""Cleans a log whose outputs do not fit beside it in portions: as many groups of segments as fit are cleaned and swapped in,
then, once their ``.deleted`` files are gone, the next ones.

Kafka's cleaner swaps each group in before it cleans the next. Portions are in the order of offsets as well, and the cleaner
checkpoint moves with the last one. If a run ends between two portions, the log is a log between two groups of Kafka's cleaner:
complete, with a part of its superseded records. The next run cleans it again from the same checkpoint; as the cleaned segments
are smaller, more of them are in one group then.

All portions are cleaned by the offset map of one pass 1. A log is refused if

* it has only one group, or the replaced segments must remain (``--verify``, ``erase --certificate``);
* its segments have other bytes on the disk than recovery has made of them in memory: they are written at the first swap;
* the next group does not fit even when the ``.deleted`` files of this run are gone. If the run's time ends before that, the
  rest of the log is deferred.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from compaction.errors import StorageError
from compaction.names import LOG, segment_file
from compaction.run.admission import Lacking, SpaceBudget
from compaction.run.cleaner import Cleaner, Method
from compaction.run.log_cleaning import LogCleaning
from compaction.run.waves import RESERVED_SHARE, ReplacedSegments
from compaction.screen.amounts import size
from compaction.screen.steps import step
from compaction.storage.filesystem import join

_REFUSED = "free some space and run again, or use --output-dir; nothing was written"
_STOPPED = "free some space and run again: the next run cleans the rest"


def clean_in_portions(
    log: LogCleaning,
    lacking: Lacking,
    cleaner: Cleaner,
    method: Method,
    replaced: ReplacedSegments | None,
    swap: Callable[[LogCleaning], None],
) -> None:
    """Cleans a log in portions, all but the last of which are swapped in; the log fails if a portion does not fit.

    :param replaced: the ``.deleted`` files of the run; ``None`` if it does not replace segments in place
    :param swap: swaps the outputs of the log in; it fails if that is refused
    """
    parts, remaining = log.parts, sorted(lacking.needed_bytes)
    if replaced is None or replaced.retained or len(remaining) < 2 or not _is_as_on_disk(log):
        message = lacking.message(cleaner.limits.space.besides() if cleaner.limits.space is not None else "")
        log.error = str(StorageError(message, path=log.directory, hint=_REFUSED))
        return
    while remaining and log.error is None:
        chosen = _fitting(log, remaining, lacking, replaced)
        if not chosen:
            space = SpaceBudget()
            log.deferred = replaced.late(space, {space.device(log.directory)})
            log.error = None if log.deferred else _refusal(log, lacking.needed_bytes[remaining[0]])
            return
        log.parts = [part for part in parts if part.output.group in chosen]
        remaining = remaining[len(chosen) :]
        log.is_last = not remaining
        step(f"cleaning {log.location.topic_partition}, group {chosen[-1] + 1} of {len(lacking.needed_bytes)}")
        cleaner.write(method, [log])
        if remaining and log.error is None:
            swap(log)


def _is_as_on_disk(log: LogCleaning) -> bool:
    view = log.compaction.view
    names = [join(view.path, segment_file(segment.base_offset, LOG)) for segment in view.segments]
    return all(part.path == names[part.segment_index] for part in log.slices)


def _fitting(
    log: LogCleaning, groups: Sequence[int], lacking: Lacking, replaced: ReplacedSegments
) -> list[int]:
    """The first of these groups that fit, after a wait if that pays; empty if the first one does not."""
    while True:
        replaced.remove_due()
        space, chosen = SpaceBudget(reserved_share=RESERVED_SHARE), list[int]()
        while len(chosen) < len(groups) and space.take(log.directory, lacking.needed_bytes[groups[len(chosen)]]):
            chosen.append(groups[len(chosen)])
        needed_bytes = sum(lacking.needed_bytes[group] for group in chosen)
        if replaced.soon(space, {space.device(log.directory)}) <= needed_bytes:
            break
        replaced.wait()
    # a single group may also use the reserve
    return chosen or [group for group in groups[:1] if SpaceBudget().take(log.directory, lacking.needed_bytes[group])]


def _refusal(log: LogCleaning, needed_bytes: int) -> str:
    space = SpaceBudget()
    free_bytes = max(0, space.free_bytes(log.directory))
    message = f"its next group of cleaned segments takes {size(needed_bytes)}, {size(free_bytes)} are free {space.besides()}"
    hint = _STOPPED if log.swapped else _REFUSED
    return str(StorageError(f"{message}; {len(log.swapped)} groups are replaced", path=log.directory, hint=hint))
