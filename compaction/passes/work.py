"""What tasks are told: slices of segments, pieces of output groups, and what holds for a whole log.

A *slice* is a batch-aligned stretch of one segment; both passes read slices. A *piece* is a run of neighbouring slices of one output
group; the second pass writes pieces. Offsets say where a survivor belongs: slice and piece ``i`` hold the offsets from their
``first_offset`` up to the next one's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.model import AbortedTxn, ProducerEntry
from compaction.cleaning.txn_tables import AbortedSpans

Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Slice:
    """The batches in bytes ``[start, end)`` of the segment at ``path``, of the run's log number ``log``.

    ``segment_index`` counts within the log; ``segment_mtime_ms`` decides over tombstones of magic 0 and 1.
    """

    log: int
    segment_index: int
    path: str
    first_offset: int
    start: int
    end: int
    segment_mtime_ms: int

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return self.end - self.start


@dataclass(frozen=True)
class ScanLog:
    """What the first pass needs to know of a log.

    ``first_dirty_offset``: records below only ask whether they are beaten. ``shards``: how many parts the log's map has.
    ``aborted``: the spans whose data stays out of the map.
    """

    first_dirty_offset: int
    shards: int
    aborted: AbortedSpans | None = None


@dataclass(frozen=True)
class ScanSettings:
    """Bounds of the first pass: memory of a task's map before it is handed on, and its load factor."""

    map_bytes: int
    load_factor: float


@dataclass(frozen=True)
class SliceSummary:
    """What the first pass found in a slice, besides the map.

    ``txn_rows`` are ``TXN_ROW``; ``first_position`` is where reading began. ``error`` is one line when the slice cannot be used.
    """

    log: int
    messages: int
    keyless: int
    tombstones: int
    txn_rows: NDArray[np.void]
    error: str | None = None


class Sink(Enum):
    """Where the second pass writes: nowhere (a dry run, sizes only), or to files."""

    COUNT = "count"
    FILES = "files"


@dataclass(frozen=True, eq=False)
class RewriteLog:
    """What the second pass needs to know of a log (offsets inclusive, times in ms).

    ``latest_offset`` is the map's last offset, ``upper_bound_offset`` the first uncleanable one. ``discardable`` are the last offsets of
    the control batches whose transaction has no data left, ascending. ``directory`` is where the output goes.
    """

    first_dirty_offset: int
    latest_offset: int
    upper_bound_offset: int
    now_ms: int
    delete_retention_ms: int
    legacy_delete_horizon_ms: int
    index_interval_bytes: int
    aborted: AbortedSpans
    discardable: Int64s
    producers: tuple[ProducerEntry, ...]
    directory: str


@dataclass(frozen=True)
class Piece:
    """A run of slices of one output group; ``last_of_group`` and ``first_of_group`` hold both when it is the only one."""

    log: int
    group: int
    number: int
    slices: tuple[Slice, ...]
    first_offset: int
    whole_group: bool

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(part.size_bytes for part in self.slices)


@dataclass(frozen=True)
class GroupOutput:
    """What a whole output group becomes: its base offset, time of last modification and transaction index."""

    base_offset: int
    mtime_ns: int
    aborted_txns: tuple[AbortedTxn, ...]
