"""The values that tasks take and return: slices of segments, parts of output groups, and per-log contexts.

A *slice* is a batch-aligned byte range of one segment; both passes read slices. An *output part* is a run of consecutive slices
of one output group; each is written by one call in the second pass. Slice and output part ``i`` of a log have the offsets from
their ``first_offset`` up to the next one's, so an offset determines where a survivor entry belongs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.files.contents import FileDigest
from compaction.files.filesystem import DiskFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.kernels.keys import HashSecret, KeyFilter
from compaction.rules.log_view import AbortedTxn
from compaction.rules.record_retention import RoundRules
from compaction.rules.transactions import KEYLESS_ROW, TXN_ROW, AbortedRanges

#: a shuffled array of map entries, lookups, survivor entries or key counts
Packed = NDArray[np.uint64]
#: ``(map, shard)``; in a plain run each log has one map
Key = tuple[int, int]


@dataclass(frozen=True)
class Slice:
    """The batches in bytes ``[start, end)`` of the segment at ``path``, with offsets in ``[first_offset, end_offset)``."""

    log: int
    #: index of the segment in its log
    segment_index: int
    path: str
    first_offset: int
    end_offset: int
    start: int
    end: int
    #: decides whether tombstones of magic 0 and 1 are retained
    segment_mtime_ms: int
    #: of the batches that pass 1 read (``SegmentReader.fingerprint``); pass 2 must read the same
    fingerprint: str | None = None
    #: numbers of the maps that its entries enter; by default its log's only map, which has the log's number
    maps: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    @property
    def id(self) -> SliceId:
        return SliceId(self.log, self.segment_index, self.start)


class SliceId(NamedTuple):
    """Identifies a slice within a run by its log, its segment and its first byte."""

    log: int
    segment_index: int
    start: int


@dataclass(frozen=True)
class MapContext:
    """A log for tasks of the first pass: its map has a number of ``shards``."""

    #: records below are not mapped but looked up
    first_dirty_offset: int
    shards: int
    #: transactional data in these ranges is not mapped
    aborted: AbortedRanges | None = None
    #: keys of the dirty section, if collected in advance
    dirty_keys: KeyFilter | None = None
    #: one task scans all slices of the log, so its map is complete
    single_task: bool = False


class Resolved(NamedTuple):
    """The result of a complete map: uint64[n] survivor entries in no order, and the number of keys."""

    survivors: Packed
    keys: int


@dataclass(frozen=True)
class MapSettings:
    #: memory of a task's map, which is spilled when full
    map_bytes: int
    load_factor: float
    #: key of the run's hash function; never written to a file, log or report
    secret: HashSecret
    #: rate at which a task reads
    bytes_per_second: float = math.inf
    files: DiskFileSystem = field(default_factory=MixedFileSystem)


@dataclass(frozen=True)
class SliceSummary:
    """The result of the first pass for one slice, besides map entries and lookups."""

    log: int
    messages: int = 0
    keyless: int = 0
    #: ``TXN_ROW``
    txn_rows: NDArray[np.void] = field(default_factory=lambda: np.empty(0, TXN_ROW))
    #: ``KEYLESS_ROW``
    keyless_rows: NDArray[np.void] = field(default_factory=lambda: np.empty(0, KEYLESS_ROW))
    #: one line if the slice cannot be read; the other fields are then empty
    error: str | None = None
    slice_id: SliceId | None = None
    fingerprint: str | None = None
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, eq=False)
class CleanContext:
    """A log for tasks of the second pass."""

    first_dirty_offset: int
    #: of the map, inclusive
    latest_offset: int
    delete_retention_ms: int
    #: segments of magic 0 and 1 modified later retain their tombstones
    legacy_delete_horizon_ms: int
    index_interval_bytes: int
    rules: RoundRules
    #: where output is written
    directory: str
    #: rate at which a task reads and writes
    bytes_per_second: float = math.inf
    files: DiskFileSystem = field(default_factory=MixedFileSystem)
    #: a compressed batch with a larger record fails the log
    max_record_bytes: int | None = None


@dataclass(frozen=True)
class GroupOutput:
    """The segment that replaces a group of segments."""

    log: int
    group: int
    base_offset: int
    mtime_ms: int
    aborted_txns: tuple[AbortedTxn, ...]
    #: source file whose mode and owner the output gets
    like: str


@dataclass(frozen=True)
class OutputPart:
    output: GroupOutput
    #: counts within the log
    number: int
    slices: tuple[Slice, ...]
    first_offset: int
    #: the part is the whole group
    complete: bool

    @property
    def id(self) -> tuple[int, int]:
        return self.output.log, self.number

    @property
    def size_bytes(self) -> int:
        return sum(slice_.size_bytes for slice_ in self.slices)


@dataclass(frozen=True)
class CleanStats:
    """Counts of the second pass, as Kafka's ``CleanerStats``; batches dropped unread (aborted data, markers) are not read."""

    messages_read: int = 0
    bytes_read: int = 0
    messages_kept: int = 0
    bytes_kept: int = 0
    tombstones_removed: int = 0
    aborted_records: int = 0
    markers_removed: int = 0
    #: records of discarded batches that were read because their header is retained
    read_discarded: int = 0

    @property
    def removed(self) -> int:
        """All records that are not in the output, whether their batches were read or not."""
        return self.messages_read - self.messages_kept - self.read_discarded + self.aborted_records + self.markers_removed

    def superseded(self, keyless: int) -> int:
        """Records dropped because a later one has their key; ``keyless``: records dropped because they have no key."""
        others = self.tombstones_removed + self.read_discarded + keyless
        return max(0, self.messages_read - self.messages_kept - others)

    def __add__(self, other: CleanStats) -> CleanStats:
        # ``astuple`` would copy each number
        return CleanStats(*map(add, vars(self).values(), vars(other).values()))


@dataclass(frozen=True)
class PartResult:
    log: int
    group: int
    number: int
    stats: CleanStats = CleanStats()
    #: ends the names of the written files; ``None`` in a dry run
    suffix: str | None = None
    error: str | None = None
    #: of the output, including empty ones
    batches: int = 0
    #: contents of the written files: verified for a complete segment, to be verified when parts are joined
    written: tuple[FileDigest, ...] = ()
    #: the output equals its only source, which is not replaced
    unchanged: bool = False
    seconds: float = field(default=0.0, compare=False)
