"""What tasks are told: slices of segments, pieces of output groups, and what holds for a whole log.

A *slice* is a batch-aligned stretch of one segment; both passes read slices. A *piece* is a run of neighbouring slices of one
output group; the second pass writes pieces. Offsets say where a survivor belongs: slice and piece ``i`` hold the offsets from
their ``first_offset`` up to the next one's.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.log_view import AbortedTxn
from compaction.cleaning.record_retention import RoundRules
from compaction.cleaning.txn_tables import KEYLESS_ROW, AbortedRanges
from compaction.fs.contents import FileDigest
from compaction.fs.filesystem import DiskFileSystem
from compaction.kernels.keys.key_filter import KeyFilter
from compaction.kernels.reading.siphash import HashSecret
from compaction.stores.mixed import MixedFileSystem

#: what is shuffled: an array of plain words
Packed = NDArray[np.uint64]


@dataclass(frozen=True)
class Slice:
    """The batches in bytes ``[start, end)`` of the segment at ``path``, of the run's log number ``log``; their offsets lie in
    ``[first_offset, end_offset)``.

    ``segment_index`` counts within the log; ``segment_mtime_ms`` decides over tombstones of magic 0 and 1.
    """

    log: int
    segment_index: int
    path: str
    first_offset: int
    end_offset: int
    start: int
    end: int
    segment_mtime_ms: int
    #: what pass 1 saw of the batches (``SegmentReader.fingerprint``); pass 2 must see the same
    fingerprint: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return self.end - self.start

    @property
    def id(self) -> SliceId:
        """Names the slice among all of the run."""
        return SliceId(self.log, self.segment_index, self.start)


class SliceId(NamedTuple):
    """Names a slice among all of a run: its log, its segment, its first byte."""

    log: int
    segment_index: int
    start: int


@dataclass(frozen=True)
class MapContext:
    """What the first pass needs to know of a log.

    ``first_dirty_offset``: records below only ask whether they are beaten. ``shards``: how many parts the log's map has.
    ``aborted``: the spans whose data stays out of the map. ``dirty_keys``: the keys of the dirty section, where it pays to know
    them beforehand. ``alone``: all slices of the log are one task's, whose map is then the log's.
    """

    first_dirty_offset: int
    shards: int
    aborted: AbortedRanges | None = None
    dirty_keys: KeyFilter | None = None
    alone: bool = False


class Resolved(NamedTuple):
    """A map that needs no more: uint64[n] survivor marks in no order, and how many keys it held."""

    marks: Packed
    keys: int


@dataclass(frozen=True)
class MapSettings:
    """Bounds of the first pass: memory of a task's map before it is handed on, its load factor, and a task's rate of
    reading.

    ``secret``: the key of the run's hash function. It is never written to a file, a log or a report. ``files``: how tasks reach
    the segments.
    """

    map_bytes: int
    load_factor: float
    secret: HashSecret
    bytes_per_second: float = math.inf
    files: DiskFileSystem = field(default_factory=MixedFileSystem)


@dataclass(frozen=True)
class SliceSummary:
    """What the first pass found in a slice, besides the map.

    ``txn_rows`` are ``TXN_ROW``, ``keyless_rows`` ``KEYLESS_ROW``. ``error`` is one line when the slice cannot be used.
    """

    log: int
    messages: int
    keyless: int
    tombstones: int
    txn_rows: NDArray[np.void]
    keyless_rows: NDArray[np.void] = field(default_factory=lambda: np.empty(0, KEYLESS_ROW))
    error: str | None = None
    slice_id: SliceId | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, eq=False)
class CleanContext:
    """What the second pass needs to know of a log (offsets inclusive, times in ms).

    ``latest_offset`` is the map's last offset. ``directory`` is where the output goes, ``bytes_per_second`` a task's rate of
    reading and writing, ``files`` how tasks reach sources and outputs.
    """

    first_dirty_offset: int
    latest_offset: int
    delete_retention_ms: int
    legacy_delete_horizon_ms: int
    index_interval_bytes: int
    rules: RoundRules
    directory: str
    bytes_per_second: float = math.inf
    files: DiskFileSystem = field(default_factory=MixedFileSystem)


@dataclass(frozen=True)
class GroupOutput:
    """What an output group becomes: its base offset, time of last modification and transaction index.

    ``like`` is a source file whose mode and owner the output gets.
    """

    log: int
    group: int
    base_offset: int
    mtime_ms: int
    aborted_txns: tuple[AbortedTxn, ...]
    like: str


@dataclass(frozen=True)
class OutputPart:
    """A run of slices of one output group; ``number`` counts within the log, ``whole`` when it is the group's only one."""

    output: GroupOutput
    number: int
    slices: tuple[Slice, ...]
    first_offset: int
    whole: bool

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(part.size_bytes for part in self.slices)


@dataclass(frozen=True)
class CleanStats:
    """What the second pass read and kept, as Kafka's ``CleanerStats`` counts it.

    A batch that goes unseen (aborted data, a marker) is not read; ``read_discarded`` counts the records of those that were, for
    their header to stay.
    """

    messages_read: int = 0
    bytes_read: int = 0
    messages_kept: int = 0
    bytes_kept: int = 0
    tombstones_removed: int = 0
    aborted_records: int = 0
    markers_removed: int = 0
    read_discarded: int = 0

    def superseded(self, keyless: int) -> int:
        """Records that were read and went since a later one has their key; ``keyless``: those that went without a key."""
        others = self.tombstones_removed + self.read_discarded + keyless
        return max(0, self.messages_read - self.messages_kept - others)

    def __add__(self, other: CleanStats) -> CleanStats:
        return CleanStats(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class PartResult:
    """What became of a piece. ``suffix`` ends the names of the files written (none in a dry run); ``error`` is one line.

    ``batches`` counts those in the output, empty ones included. ``written`` is what the files hold: those of a complete segment
    are verified, those of a part are when it is joined.
    """

    log: int
    group: int
    number: int
    stats: CleanStats
    suffix: str | None = None
    error: str | None = None
    batches: int = 0
    written: tuple[FileDigest, ...] = ()
