"""Refuses logs whose outputs exceed the free space, and logs with many records without a key.

Free space is checked before anything is written. If the outputs fit even if no record is dropped, all logs are admitted.
Otherwise pass 2 runs once without writing to get the exact sizes, and logs are admitted in order, the dirtiest first. A log
whose outputs do not fit is cleaned in portions if it can be (``run.portions``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from compaction.cleaning.log_view import Segment
from compaction.cleaning.plan import Group, LogPlan
from compaction.errors import StorageError
from compaction.kernels.tables import OUT_ROW
from compaction.passes.tasks import CleanContext, OutputPart, PartResult
from compaction.run.sizing import Sizes, max_records
from compaction.screen.amounts import size
from compaction.storage.local import FreeSpace, free_space

#: a log with a larger fraction of records without a key is refused: compaction would drop them
KEYLESS_SHARE = 0.01
#: for checkpoints, journals and directories
_MARGIN_BYTES = 4 << 20
#: two index entries; rounding to blocks of each of a segment's files
_INDEX_ENTRY_BYTES = 20
_SEGMENT_BYTES = 5 * 4096
_TXN_ENTRY_BYTES = 34
#: assumed least average size of batches
_BATCH_BYTES = 128


class SpaceBudget:
    """Allocates the free bytes of file systems, as they were when each was first used.

    :param reserved_bytes: bytes of every file system that are not allocated
    :param reserved_share: the share of every file system that is not allocated either
    """

    def __init__(
        self, reserved_bytes: int = 0, space_of: Callable[[str], FreeSpace] | None = None, reserved_share: float = 0.0
    ) -> None:
        self._space_of = space_of or free_space
        self._copied_bytes, self._reserved_bytes = reserved_bytes, reserved_bytes + _MARGIN_BYTES
        self._reserved_share = reserved_share
        self._devices: dict[str, int] = {}
        self._free_bytes: dict[int, int] = {}

    def besides(self) -> str:
        """The bytes that are reserved, for messages."""
        copied = f" and {self._copied_bytes} bytes for segments that are only copied" if self._copied_bytes else ""
        return f"besides a margin of {size(_MARGIN_BYTES)} for checkpoints and journals{copied}"

    def free_bytes(self, directory: str) -> int:
        """Bytes that can still be allocated; negative if not even the reserve fits."""
        return self._free_bytes[self.device(directory)]

    def refusal(self, directory: str, needed_bytes: int) -> StorageError:
        """The error of a file system without the margin; ``needed_bytes`` is the space that the smallest log needs."""
        free_bytes = self.free_bytes(directory) + _MARGIN_BYTES
        lacking = size(needed_bytes + _MARGIN_BYTES - free_bytes)
        message = f"{size(free_bytes)} are free, less than the margin of {size(_MARGIN_BYTES)} for checkpoints and journals"
        hint = f"free {lacking} more for the smallest log, and run again, or use --output-dir; nothing was written"
        return StorageError(message, path=directory, hint=hint)

    def take(self, directory: str, needed_bytes: int) -> bool:
        """Allocates ``needed_bytes`` in ``directory`` if they fit; returns whether they do."""
        fits = needed_bytes <= self.free_bytes(directory)
        if fits:
            self._free_bytes[self.device(directory)] -= needed_bytes
        return fits

    def device(self, directory: str) -> int:
        """The file system of a directory."""
        if directory not in self._devices:
            space = self._space_of(directory)
            self._devices[directory] = space.device
            reserved_bytes = self._reserved_bytes + int(self._reserved_share * space.total_bytes)
            self._free_bytes.setdefault(space.device, space.free_bytes - reserved_bytes)
        return self._devices[directory]

    def fits(self, needed_bytes: Iterable[tuple[str, int]]) -> bool:
        """Whether the bytes needed in directories fit, all together; allocates nothing."""
        totals: Counter[int] = Counter()
        for directory, needed in needed_bytes:
            totals[self.device(directory)] += needed
        return all(total <= self._free_bytes[device] for device, total in totals.items())


class Lacking(NamedTuple):
    """The space of a log whose outputs do not fit: bytes needed by the number of each group, and bytes free."""

    needed_bytes: Mapping[int, int]
    free_bytes: int

    def message(self, besides: str) -> str:
        """:param besides: see ``SpaceBudget.besides``"""
        needed = sum(self.needed_bytes.values())
        return f"its cleaned segments take {size(needed)}, {size(self.free_bytes)} are free {besides}"


def logs_without_space(
    space: SpaceBudget,
    logs: Mapping[int, CleanContext],
    parts: Sequence[OutputPart],
    measure: Callable[[], Sequence[PartResult]],
) -> dict[int, Lacking]:
    """The logs whose outputs do not fit.

    :param measure: runs pass 2 without writing
    """

    def upper_bound(part: OutputPart) -> tuple[str, int]:
        log = logs[part.output.log]
        return log.directory, _needed(part, log, part.size_bytes, part.size_bytes // _BATCH_BYTES)

    if space.fits(map(upper_bound, parts)):
        return {}
    measured = {(result.log, result.number): result for result in measure()}
    exact: dict[int, Counter[int]] = {log: Counter() for log in logs}
    for part in parts:
        result = measured[part.output.log, part.number]
        kept = _needed(part, logs[result.log], result.stats.bytes_kept, result.batches)
        exact[result.log][part.output.group] += 0 if result.unchanged else kept
    lacking = {}
    for log, needed_bytes in exact.items():
        if not space.take(logs[log].directory, needed_bytes.total()):
            lacking[log] = Lacking(needed_bytes, max(0, space.free_bytes(logs[log].directory)))
    return lacking


def copied_bytes(segments: Iterable[Segment]) -> int:
    return sum(
        segment.size_bytes + segment.index_bytes + segment.time_index_bytes + _SEGMENT_BYTES
        + _TXN_ENTRY_BYTES * len(segment.aborted_txns)
        for segment in segments
    )  # fmt: skip


def most_output_bytes(plan: LogPlan, sizes: Sizes) -> int:
    """An upper bound of the bytes on disk that the outputs of a log take until its swap, before it is read."""
    return sum(_most_of_group(group, plan.config.index_interval_bytes, sizes) for group in plan.groups)


def _most_of_group(group: Group, interval_bytes: int, sizes: Sizes) -> int:
    aborted = sum(len(segment.aborted_txns) for segment in group.segments)
    complete = _complete_bytes(group.size_bytes, interval_bytes, aborted)
    if group.size_bytes <= sizes.slice_bytes or max_records(group.segments) <= sizes.single_part_records:
        return complete
    parts = -(-group.size_bytes // sizes.slice_bytes)
    besides = parts * _complete_bytes(0, interval_bytes, aborted)
    return complete + besides + _joined_bytes(group.size_bytes, group.size_bytes // _BATCH_BYTES)


def _needed(part: OutputPart, log: CleanContext, kept_bytes: int, batches: int) -> int:
    """Bytes on disk for ``kept_bytes``, including indexes; parts that are joined exist twice until the swap."""
    complete = _complete_bytes(kept_bytes, log.index_interval_bytes, len(part.output.aborted_txns))
    return complete if part.complete else complete + _joined_bytes(kept_bytes, batches)


def _complete_bytes(kept_bytes: int, interval_bytes: int, aborted_txns: int) -> int:
    indexes = _INDEX_ENTRY_BYTES * (kept_bytes // max(1, interval_bytes) + 1)
    return kept_bytes + indexes + _SEGMENT_BYTES + _TXN_ENTRY_BYTES * aborted_txns


def _joined_bytes(kept_bytes: int, batches: int) -> int:
    return kept_bytes + OUT_ROW.itemsize * batches


def keyless_refusal(*, allow_keyless: bool) -> Callable[[LogPlan, int, int], str | None]:
    """A function that refuses logs of which more than ``KEYLESS_SHARE`` of the records have no key."""

    def refuse(plan: LogPlan, messages: int, keyless: int) -> str | None:
        if allow_keyless or keyless <= KEYLESS_SHARE * messages:
            return None
        share = 100 * keyless / messages
        return (
            f"{plan.view.path}: {keyless} of {messages} records ({share:.1f} %) have no key and would be lost;"
            " if that is intended, run again with --allow-keyless"
        )

    return refuse
