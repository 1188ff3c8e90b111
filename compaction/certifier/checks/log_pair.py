"""A log before and after cleaning, and the rules that its cleaning had to follow. The values are sent to tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compaction.config.entries import to_long
from compaction.names import LOG, TopicPartition, segment_file
from compaction.storage.filesystem import join

Bools = NDArray[np.bool_]
Int64s = NDArray[np.int64]
Rows = NDArray[np.void]

LONG_MAX = 2**63 - 1


@dataclass(frozen=True)
class SegmentFiles:
    """One segment on disk. ``suffix`` is ``.deleted`` for a segment that cleaning replaced."""

    directory: str
    base_offset: int
    size_bytes: int
    mtime_ms: int
    suffix: str = ""
    last: bool = False

    def path(self, kind: str = LOG) -> str:
        """The path of its file of this kind."""
        return join(self.directory, segment_file(self.base_offset, kind, self.suffix))


@dataclass(frozen=True)
class Side:
    """A log before or after cleaning; its segments are in order, ``cleaned_to`` is its cleaner checkpoint."""

    segments: tuple[SegmentFiles, ...]
    log_start_offset: int
    cleaned_to: int | None


@dataclass(frozen=True)
class CleaningRules:
    """The rules that a cleaning had to follow.

    ``now_ms``: the time of the round if ``exact``, else the latest time it can have had. ``deletes``: ``cleanup.policy``
    includes ``delete``. ``include_active``: the active segment was cleaned too. ``several_rounds``: there may have been more
    than one round between the two sides. ``strict``: retained superseded records are violations. ``mtime_only``: the mtime of
    segments decides when tombstones and markers may be dropped, and batches have no delete horizon (Kafka up to 3.0).
    ``keeps_magic``: batches of magic 0 and 1 do not become v2 (up to 3.9). ``kafka_version``: the version that has these rules,
    and why it applies.

    ``erases``: keys were erased, and nothing was cleaned (``erased_keys``); ``refused``: the erasure refused the log.
    ``producer_expiration_ms``: a producer that is idle for this time at ``now_ms`` has expired.
    """

    now_ms: int
    exact: bool = False
    delete_retention_ms: int = 86_400_000
    deletes: bool = False
    retention_ms: int = -1
    retention_bytes: int = -1
    include_active: bool = False
    several_rounds: bool = False
    strict: bool = False
    mtime_only: bool = False
    keeps_magic: bool = False
    kafka_version: str = ""
    erases: bool = False
    refused: bool = False
    producer_expiration_ms: int = 86_400_000


@dataclass(frozen=True)
class LogPair:
    """One log before and after cleaning."""

    topic_partition: TopicPartition
    before: Side
    after: Side
    rules: CleaningRules

    @property
    def compared_from(self) -> int:
        """Batches that end below this offset are not compared: an earlier round may have joined segments that were deleted from
        ``before`` since, as they are below the log start."""
        return self.before.segments[0].base_offset if self.rules.several_rounds else 0

    @property
    def changed_to(self) -> int:
        """No record at or past this offset may be missing: the cleaner checkpoint, or the end of the erased segments."""
        if self.rules.refused:
            return self.before.segments[0].base_offset
        if self.rules.erases:
            return LONG_MAX if self.rules.include_active else self.before.segments[-1].base_offset
        return self.after.log_start_offset if self.after.cleaned_to is None else self.after.cleaned_to


def legacy_delete_horizon_ms(pair: LogPair) -> int:
    """The modification time of the last clean segment less ``delete.retention.ms``, as in ``Cleaner.doClean``. If
    the first dirty offset is unknown, everything below the checkpoint counts as clean; in several rounds, each of its segments
    may have been the last."""
    is_recorded = pair.before.cleaned_to is not None and not pair.rules.several_rounds
    first_dirty = pair.before.cleaned_to if is_recorded else pair.after.cleaned_to
    start = pair.before.log_start_offset
    first_dirty = start if first_dirty is None or first_dirty < start else first_dirty
    clean = [segment.mtime_ms for segment in pair.before.segments if segment.base_offset < first_dirty]
    if not clean:
        return 0
    newest = max(clean) if pair.rules.several_rounds else clean[-1]
    return to_long(newest - pair.rules.delete_retention_ms)
