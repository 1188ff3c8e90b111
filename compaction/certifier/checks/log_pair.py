"""The certifier's values: the two sides of a log, the rules that its cleaning followed, and units of work for tasks.

Offsets named ``end_offset`` are exclusive. All values are frozen and travel between processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compaction.fs.filesystem import join
from compaction.names import INDEX, LOG, TIMEINDEX, TXNINDEX, TopicPartition, segment_file

Int64s = NDArray[np.int64]
Rows = NDArray[np.void]

MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True)
class SegmentFiles:
    """One segment on disk; ``suffix`` is ``.deleted`` for the source of an output. ``last``: the log ends in it."""

    directory: str
    base_offset: int
    size_bytes: int
    mtime_ms: int
    suffix: str = ""
    last: bool = False

    def path(self, kind: str = LOG) -> str:
        """One of its files."""
        return join(self.directory, segment_file(self.base_offset, kind, self.suffix))

    @property
    def index(self) -> str:
        """The offset index."""
        return self.path(INDEX)

    @property
    def time_index(self) -> str:
        """The time index."""
        return self.path(TIMEINDEX)

    @property
    def txn_index(self) -> str:
        """The transaction index."""
        return self.path(TXNINDEX)


@dataclass(frozen=True)
class Side:
    """A log before or after: segments, ascending, and what the checkpoints say (``cleaned_to``: ``None`` without an entry)."""

    segments: tuple[SegmentFiles, ...]
    log_start_offset: int
    cleaned_to: int | None


@dataclass(frozen=True)
class CleaningRules:
    """What cleaning was allowed to do.

    ``now_ms``: the time of the round; ``exact``: whether it is known, or only that the round was not later.
    ``delete_retention_ms``, ``deletes`` (``delete`` is in ``cleanup.policy``), ``retention_ms`` and ``retention_bytes`` are the
    topic's settings. ``include_active``: the last segment was cleaned too. ``several_rounds``: more than one round lies between
    both sides. ``strict``: superseded records that are still there are violations.
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


@dataclass(frozen=True)
class LogPair:
    """One log on both sides."""

    topic_partition: TopicPartition
    before: Side
    after: Side
    rules: CleaningRules


@dataclass(frozen=True)
class ByteRange:
    """Whole batches in bytes ``[start, end)`` of a segment; ``mtime_ms`` is the segment's."""

    path: str
    start: int
    end: int
    mtime_ms: int


@dataclass(frozen=True, eq=False)
class AbortedRanges:
    """Aborted data: that of ``producer`` from offset ``first`` up to its abort marker at ``last``; int64[n] each."""

    producer: Int64s
    first: Int64s
    last: Int64s

    @classmethod
    def none(cls) -> AbortedRanges:
        """No aborted data."""
        empty = np.empty(0, np.int64)
        return cls(empty, empty, empty)

    def within(self, first_offset: int, end_offset: int) -> AbortedRanges:
        """Those that overlap a range of offsets."""
        some = (self.last >= first_offset) & (self.first < end_offset)
        return AbortedRanges(self.producer[some], self.first[some], self.last[some])


@dataclass(frozen=True, eq=False)
class RangeTask:
    """The batches of one log with last offsets in ``[first_offset, end_offset)``, on both sides.

    ``cleaned_to``: no record at or past it may be missing. ``legacy_horizon_ms``: tombstones of magic 0 and 1 may be dropped
    from segments modified up to then. ``parts``: into how many parts keys are split, by ``seed``.
    """

    log: int
    first_offset: int
    end_offset: int
    before: tuple[ByteRange, ...]
    after: tuple[ByteRange, ...]
    aborted: AbortedRanges
    rules: CleaningRules
    before_start: int
    after_start: int
    cleaned_to: int
    legacy_horizon_ms: int
    parts: int = 1
    seed: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes to read, both sides."""
        return sum(each.end - each.start for each in (*self.before, *self.after))


@dataclass(frozen=True, order=True)
class Violation:
    """What is wrong, at which offset."""

    offset: int
    what: str


#: violations of a log that are named; all are counted
MOST_NAMED = 20


@dataclass
class Findings:
    """Violations: the first ``MOST_NAMED``, and how many there are."""

    named: list[Violation] = field(default_factory=list)
    count: int = 0

    def add(self, offset: int, what: str) -> None:
        """One violation."""
        self.count += 1
        self._name([Violation(offset, what)])

    def add_all(self, offsets: Int64s, what: str) -> None:
        """The same at many offsets, int64[n]."""
        self.count += len(offsets)
        self._name([Violation(offset, what) for offset in np.sort(offsets)[:MOST_NAMED].tolist()])

    def join(self, other: Findings) -> None:
        """Those of another part of the log."""
        self.count += other.count
        self._name(other.named)

    def _name(self, more: list[Violation]) -> None:
        self.named = sorted([*self.named, *more])[:MOST_NAMED]
