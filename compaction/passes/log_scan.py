"""The map entries and lookups of one log, from the slices that one task of pass 1 reads.

With a ``compaction.strategy`` other than ``offset`` both have ranks (``compaction.kernels.reading.ranks``). Records are ranked
in a second walk over the batches, so that the default strategy takes the same time as without ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.keys.offset_map import Arena, by_shard
from compaction.kernels.reading.ranks import RANKED_WORDS, Ranking, rank_records
from compaction.kernels.reading.records import LOOKUPS_ONLY, MAP, SKIP, scan_records
from compaction.kernels.reading.tables import ENTRY_BYTES, ENTRY_WORDS, OFFSET_SHIFT, RANKED
from compaction.logdir.blocks import Block
from compaction.passes.decoder import V2_MAGIC, Decoded, check_count, corrupt_record
from compaction.passes.merge import resolve
from compaction.passes.task_map import RankedTaskMap, TaskMap
from compaction.passes.tasks import LastRecord, MapContext, MapSettings, Packed, RankedEntries, Resolved

_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_ENTRIES = 1 << 14
#: lookups are kept up to this size
_LOOKUP_BYTES = 32 << 20
#: slots that are ordered by shard at a time: their copy, and what waits to be shuffled, remains small
_PORTION = 1 << 18
#: least number of slots for each shard in a portion: fewer would make many small arrays
_PORTION_PER_SHARD = 1 << 10

#: entries or lookups that leave a task, and their shard
Emitted = tuple[int, Packed | RankedEntries]


class Batches(NamedTuple):
    """Decoded batches, the ``actions`` (uint8[r]) on each, and what is counted: int32[r], records without a key of each; the
    ``counters`` of ``scan_records``."""

    block: Block
    decoded: Decoded
    actions: NDArray[np.uint8]
    keyless: NDArray[np.int32]
    counters: NDArray[np.int64]


class LogScan:
    """The map entries and lookups of one log, from the slices of one task."""

    kind: type[TaskMap] = TaskMap
    #: with ranks, the log's last record, if it entered the map
    _last: LastRecord | None = None

    def __init__(
        self, log: MapContext, settings: MapSettings, max_records: int, arena: Arena | None = None
    ) -> None:
        self._log = log
        self._map = self.kind(settings.map_bytes, settings.load_factor, max_records, arena)
        self._lookups: list[NDArray[np.uint64]] = []
        self._lookup_count = 0
        self._lookup_limit = min(settings.map_bytes, _LOOKUP_BYTES) // ENTRY_BYTES
        self._any_spilled = False
        self._portion = max(_PORTION, _PORTION_PER_SHARD * log.shards)
        self._entries = np.empty((_ENTRIES, ENTRY_WORDS), np.uint64)
        self._lookup_buffer = np.empty((_ENTRIES, ENTRY_WORDS), np.uint64)
        self._secret = settings.secret.state()

    def actions(self, rows: NDArray[np.void]) -> NDArray[np.uint8]:
        """The ``actions`` of ``scan_records`` for each batch."""
        actions = np.full(len(rows), MAP, np.uint8)
        attributes = rows["attributes"]
        if self._log.aborted is not None and len(self._log.aborted):
            transactional = (attributes & _TRANSACTIONAL) != 0
            aborted = self._log.aborted.contains(rows["producer_id"], rows["last_offset"])
            actions[transactional & aborted] = LOOKUPS_ONLY
        actions[((attributes & _CONTROL) != 0) & (rows["magic"] >= V2_MAGIC)] = SKIP
        return actions

    def records(
        self,
        block: Block,
        decoded: Decoded,
        actions: NDArray[np.uint8],
        counts: tuple[NDArray[np.int32], NDArray[np.int64]],
        path: str,
    ) -> Iterator[Emitted]:
        """Add the records of decoded batches. Yields what is spilled on the way, and is to be consumed.

        :param actions: uint8, ``actions`` of all batches of ``block``
        :param counts: added to: int32, records without a key by batch of ``block``; the ``counters`` of ``scan_records``
        """
        rows, of_rows = decoded.rows, slice(decoded.first_row, decoded.first_row + len(decoded.rows))
        batches = Batches(block, decoded, actions[of_rows], counts[0][of_rows], counts[1])
        at = 0
        while at < len(rows):
            next_at, error, spilled = self._scan(batches, at)
            if error:
                raise corrupt_record(error, rows[next_at], path)
            yield from spilled
            if next_at == at:
                check_count(decoded, at, path)
                self._grow(int(rows[at]["count"]))
            at = next_at

    def _scan(self, batches: Batches, at: int) -> tuple[int, int, Iterable[Emitted]]:
        """Add the records of the batches from row ``at`` on, as many as fit the buffers: ``(next row, error, spilled)``; the
        last is to be consumed before the next call."""
        next_at, n, m, error = scan_records(
            batches.block.raw, batches.decoded.scratch, batches.decoded.rows, batches.decoded.spans, batches.actions,
            self._log.first_dirty_offset, at, self._entries, self._lookup_buffer, batches.keyless, batches.counters,
            self._secret,
        )  # fmt: skip
        return next_at, error, () if error else self._take(n, m)

    def take_unranked(self) -> int:
        """The number of entries without a rank since the last call."""
        return 0

    def _grow(self, records: int) -> None:
        self._entries = np.empty((records, ENTRY_WORDS), np.uint64)
        self._lookup_buffer = np.empty((records, ENTRY_WORDS), np.uint64)

    def _take(self, n: int, m: int) -> Iterable[Emitted]:
        """Add the first ``n`` entries and ``m`` lookups of the buffers, while what is spilled is consumed."""
        lookups = self._lookup_buffer[:m]
        if m and self._log.dirty_keys is not None:
            lookups = self._log.dirty_keys.prune(lookups, self._log.first_dirty_offset)
        return self._add(self._entries[:n], lookups)

    def _add(self, entries: NDArray[np.uint64], lookups: NDArray[np.uint64]) -> Iterator[Emitted]:
        for slots in self._map.put(entries):
            yield from self._by_shard(slots)
        if len(lookups):
            self._lookups.append(lookups.copy())
            self._lookup_count += len(lookups)
            if self._lookup_count >= self._lookup_limit:
                yield from self._spill_lookups()

    def _spill_lookups(self) -> Iterator[Emitted]:
        if self._lookups:
            self._any_spilled = True
            lookups = np.concatenate(self._lookups)
            self._lookups, self._lookup_count = [], 0
            yield from self._by_shard(lookups)

    def _by_shard(self, entries: NDArray[np.uint64]) -> Iterator[Emitted]:
        """Copies of ``entries``, which may have empty slots, by shard."""
        for at in range(0, len(entries), self._portion):
            yield from self._ordered(entries[at : at + self._portion])

    def _ordered(self, entries: NDArray[np.uint64]) -> Iterator[Emitted]:
        ordered, starts = by_shard(entries, self._log.shards)
        for shard, (start, end) in enumerate(pairwise(starts.tolist())):
            if start < end:
                yield shard, ordered[start:end]

    def resolved(self) -> Resolved | None:
        """The log's survivor entries, if this task has scanned the entire log without spilling."""
        if not self._log.single_task or self._any_spilled or self._map.complete is None:
            return None
        return resolve(self._map.complete, self._lookups, self._log.first_dirty_offset, self._last)

    def drain(self) -> Iterator[tuple[int, Packed | RankedEntries | LastRecord]]:
        """All remaining entries and lookups, by shard."""
        yield from self._spill_lookups()
        for slots in self._map.drain():
            yield from self._by_shard(slots)


class RankedScan(LogScan):
    """The same with ranked entries and lookups, uint64[n, 4]."""

    kind = RankedTaskMap
    #: what ``_scan`` reads, and from which row on
    _current: tuple[Batches, int]

    def __init__(
        self, ranking: Ranking, log: MapContext, settings: MapSettings, max_records: int, arena: Arena | None = None
    ) -> None:
        super().__init__(log, settings, max_records, arena)
        self._name, self._by_header = ranking.name(), ranking.header is not None
        self._unranked = 0

    def _scan(self, batches: Batches, at: int) -> tuple[int, int, Iterable[Emitted]]:
        self._current = batches, at
        return super()._scan(batches, at)

    def _take(self, n: int, m: int) -> Iterable[Emitted]:
        batches, at = self._current
        ranked, looked_up = np.empty((n, RANKED_WORDS), np.uint64), np.empty((m, RANKED_WORDS), np.uint64)
        self._unranked += rank_records(
            batches.block.raw, batches.decoded.scratch, batches.decoded.rows, batches.decoded.spans, batches.actions,
            self._log.first_dirty_offset, at, self._by_header, self._name, self._entries[:n], self._lookup_buffer[:m],
            ranked, looked_up,
        )  # fmt: skip
        if n and int(ranked[-1, 2] & ~np.uint64(RANKED)) >> OFFSET_SHIFT == self._log.last_offset + 1:
            self._last = LastRecord(ranked[-1:].copy())
        return self._add(ranked, looked_up)

    def drain(self) -> Iterator[tuple[int, Packed | RankedEntries | LastRecord]]:
        """All remaining entries and lookups, by shard, and the last record."""
        yield from super().drain()
        if self._last is not None:
            yield from ((shard, LastRecord(found.rows)) for shard, found in self._ordered(self._last.entry))

    def take_unranked(self) -> int:
        """The number of entries without a rank since the last call."""
        taken, self._unranked = self._unranked, 0
        return taken

    def _ordered(self, entries: NDArray[np.uint64]) -> Iterator[tuple[int, RankedEntries]]:
        held = entries[entries[:, 2] != 0]
        shards = (held[:, 1] >> np.uint64(32)) * np.uint64(self._log.shards) >> np.uint64(32)
        order = np.argsort(shards, kind="stable")
        starts = np.searchsorted(shards[order], np.arange(self._log.shards + 1, dtype=np.uint64))
        for shard, (start, end) in enumerate(pairwise(starts.tolist())):
            if start < end:
                yield shard, RankedEntries(held[order[start:end]])


def log_scan(log: MapContext, settings: MapSettings, max_records: int, *, own_memory: bool = False) -> LogScan:
    """The scan of a log by its strategy.

    :param own_memory: whether the map has its own memory, as several maps at once need, else that of the process
    """
    if log.ranking is None:
        return LogScan(log, settings, max_records, Arena() if own_memory else None)
    return RankedScan(log.ranking, log, settings, max_records, Arena(RANKED_WORDS) if own_memory else None)
