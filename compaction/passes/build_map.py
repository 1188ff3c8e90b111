"""The first pass: checks every batch of some slices, hashes every key, and emits packed map entries by shard.

Mirrors ``Cleaner.buildOffsetMap`` for the dirty section. Kafka's map is one table in the memory of one machine;
here it is built in three steps, each in bounded memory:

1. A task puts the entries of its slices into a ``TaskMap``, which keeps only the newest entry of a recurring key. When the map
   is full, its keys are still updated, and new keys go to a second, smaller map, which is spilled whenever it is full. The
   first map is then spilled and reset too if its hit rate has fallen below 1/4: recurring keys remain resident, keys that are
   no longer written are evicted.
2. A task emits entries by *shard*, the high half of the hash scaled to the number of shards: all entries of a key are merged in
   one shard, whichever task has read them, and a shard fits the memory of the task that merges it.
3. The merge of a shard (``compaction.passes.merge``) keeps the entry that supersedes all others of its key, and resolves the
   *lookups* against it: records of the clean section, and of aborted data, do not enter the map; pass 2 drops those that a
   dirty record supersedes.

If one task scans an entire log and its map has not spilled, the task resolves the shard itself, and nothing is shuffled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np

from compaction.engine import Emission
from compaction.kernels.keys import KeyFilter
from compaction.kernels.slot_table import OFFSETS, Arena, SlotTable, by_shard
from compaction.kernels.tables import ENTRY_BYTES
from compaction.passes.decoder import Decoded
from compaction.passes.merge import resolve
from compaction.passes.scan import Emitted, Emitting, Entries, ShardReadings, finish, scan_records_of
from compaction.passes.tasks import MapContext, MapSettings, Packed, Resolved, Slice, SliceSummary
from compaction.passes.throttle import Throttle

#: lookups are kept up to this size
_LOOKUP_BYTES = 32 << 20
#: slots that are ordered by shard at a time: bounds their copy, and the entries that wait for the shuffle
_PORTION = 1 << 18
#: least number of slots for each shard in a portion: fewer would make many small arrays
_PORTION_PER_SHARD = 1 << 10
#: the second map has 1/4 of the first map's memory
_SECOND = 4
#: the first map is reset when fewer than 1/4 of the entries since the last spill hit it
_HIT_RATE = 4
#: load at which a map counts as full: a failed lookup takes 6 probes there, and 50 at the permitted load of 0.9
_LOAD = 0.7


def scan_slices(slices: Iterable[Slice], logs: Mapping[int, MapContext], settings: MapSettings) -> Iterator[Emission]:
    """Packed entries (``uint64[n, words]``) by shard, each shard with the ``Reading`` of this task, and for the driver a
    ``SliceSummary`` of each slice. The shard of a ``single_task`` log is resolved here if its entries fit the task's map.

    The summary of an unreadable slice has an error; the caller must then ignore its log's entries.
    """
    for log, group in groupby(slices, key=lambda slice_: slice_.log):
        log_slices, throttle = list(group), Throttle(settings.bytes_per_second)
        sink = OffsetMapSink(log, logs[log], settings, dirty_records(log_slices, logs[log].first_dirty_offset))
        sent, summaries = ShardReadings({log: logs[log].shards}), []
        for slice_ in log_slices:
            summary = yield from sent.counted(scan_records_of(slice_, [sink], (), settings, throttle))
            summaries.append(summary)
            yield None, summary
        yield from sent.counted(sink.result())
        yield from sent.result(log_slices, summaries)


def flag_single_task_logs(logs: Mapping[int, MapContext], tasks: Iterable[Iterable[Slice]]) -> dict[int, MapContext]:
    """``logs``, with ``single_task`` set for those with one shard whose slices are all in one of ``tasks``."""
    tasks_of = Counter(log for task in tasks for log in {slice_.log for slice_ in task})
    return {log: replace(context, single_task=context.shards == 1 and tasks_of[log] == 1) for log, context in logs.items()}


def collect_keys(
    work: tuple[Iterable[Slice], Mapping[int, tuple[MapContext, int]]], settings: MapSettings
) -> list[tuple[int, KeyFilter, list[SliceSummary]]]:
    """The keys of the dirty records of some slices, by log, with the summaries of the slices.

    :param work: the slices; of each log, the size of the filter in words
    """
    slices, logs = work
    collected = []
    for log, group in groupby(slices, key=lambda slice_: slice_.log):
        context, words = logs[log]
        sink, throttle = _KeyFilterSink(context, settings, words), Throttle(settings.bytes_per_second)
        summaries = [finish(scan_records_of(slice_, [sink], (), settings, throttle)) for slice_ in group]
        collected.append((log, sink.keys, summaries))
    return collected


def dirty_records(slices: Iterable[Slice], first_dirty_offset: int) -> int:
    return sum(max(0, slice_.end_offset - max(slice_.first_offset, first_dirty_offset)) for slice_ in slices)


class _KeyFilterSink:
    """Adds the keys of dirty records to a filter of ``words`` words."""

    def __init__(self, log: MapContext, settings: MapSettings, words: int) -> None:
        self._entries = Entries(log, settings.secret)
        self.begin, self.counts = self._entries.begin, self._entries.counts
        self.keys = KeyFilter(np.zeros(words, np.uint64))

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        for entries, _ in self._entries.of(decoded):
            self.keys.add(entries)
        return ()


class OffsetMapSink:
    """The map entries and lookups of one map of a log, from the slices of one task.

    :param max_records: upper bound on the number of entries
    :param arena: memory of the map, as several maps at once need; defaults to that of the thread
    """

    def __init__(
        self, number: int, log: MapContext, settings: MapSettings, max_records: int, arena: Arena | None = None
    ) -> None:
        self._number, self._log, self._source = number, log, Entries(log, settings.secret)
        self.begin, self.counts = self._source.begin, self._source.counts
        self._map = TaskMap(settings.map_bytes, settings.load_factor, max_records, arena)
        self._lookups: list[Packed] = []
        self._lookup_count = 0
        self._lookup_limit = min(settings.map_bytes, _LOOKUP_BYTES) // ENTRY_BYTES
        self._any_spilled = False

    def take(self, decoded: Decoded) -> Iterator[Emitted]:
        for entries, lookups in self._source.of(decoded):
            if self._log.dirty_keys is not None:
                lookups = self._log.dirty_keys.prune(lookups, self._log.first_dirty_offset)
            for slots in self._map.put(entries):
                yield from spilled(self._number, slots, self._log.shards)
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
            yield from spilled(self._number, lookups, self._log.shards)

    def result(self) -> Emitting[None]:
        """The log's survivor entries, if this task has scanned the entire log without spilling; else all remaining entries and
        lookups, by shard."""
        resolved = self._resolved()
        if resolved is not None:
            yield (self._number, 0), resolved
            return
        yield from self._spill_lookups()
        for slots in self._map.drain():
            yield from spilled(self._number, slots, self._log.shards)

    def _resolved(self) -> Resolved | None:
        if not self._log.single_task or self._any_spilled or self._map.complete is None:
            return None
        return resolve(self._map.complete, self._lookups, self._log.first_dirty_offset)


def spilled(number: int, slots: Packed, shards: int) -> Iterator[Emitted]:
    """Copies of the ``slots`` of map ``number`` (uint64[n, words], empty ones allowed), by shard."""
    portion = max(_PORTION, _PORTION_PER_SHARD * shards)
    for first in range(0, len(slots), portion):
        ordered, starts = by_shard(slots[first : first + portion], shards)
        for shard, (start, end) in enumerate(pairwise(starts.tolist())):
            if start < end:
                yield (number, shard), ordered[start:end]


class TaskMap:
    """Takes map entries, and spills those that do not fit: it yields the slots of a full map, including empty ones, which are
    valid until the next ones. The module's docstring has the algorithm.

    :param map_bytes: memory of the first map; a second one takes a quarter of it in addition
    :param max_records: upper bound on the number of entries
    """

    def __init__(self, map_bytes: int, load_factor: float, max_records: int, arena: Arena | None = None) -> None:
        load = min(load_factor, _LOAD)
        self._first = SlotTable(OFFSETS, map_bytes, load, max_records, arena)
        self._second: SlotTable | None = None
        self._second_arena = Arena()
        self._second_size = OFFSETS, map_bytes // _SECOND, load, max_records
        self._entries, self._misses = 0, 0
        #: the map of all entries so far, or ``None`` if they did not fit
        self.complete: SlotTable | None = self._first

    def put(self, entries: Packed) -> Iterator[Packed]:
        """Put uint64[n, 3] ``entries``, which are reordered. Consume the iterator, even if nothing is spilled."""
        while len(entries):
            if self._second is None:
                entries = entries[self._first.put(entries) :]
                if not len(entries):
                    return
                self.complete = None
                self._second = SlotTable(*self._second_size, self._second_arena)
            misses = self._first.update(entries)
            self._entries += len(entries)
            self._misses += len(misses)
            entries = yield from self._put_second(self._second, misses)

    def _put_second(self, second: SlotTable, entries: Packed) -> Generator[Packed, None, Packed]:
        """Put entries that missed the first map into the second one. Returns those that remain when both are reset."""
        while len(entries := entries[second.put(entries) :]):
            yield second.slots
            second.clear()
            hits, total = self._entries - self._misses, self._entries
            self._entries = self._misses = 0
            if hits * _HIT_RATE < total:
                yield self._first.slots
                self._first.clear()
                self._second = None
                break
        return entries

    def drain(self) -> Iterator[Packed]:
        if self._second is not None:
            yield self._second.slots
            self._second, self._second_arena = None, Arena()
        yield self._first.slots
