"""The first pass over some slices: checks every batch, hashes every key, and hands on packed map entries by shard.

Mirrors ``Cleaner.buildOffsetMap`` (Kafka 4.3.0) for the dirty section. Records of the clean section, and those of data that
counts as aborted, do not enter the map; they are handed on as asks: which of them does the map beat?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.txn_tables import KEYLESS_ROW, TXN_ROW, keyless_rows, summarise
from compaction.errors import CorruptLogError, UnsupportedLogError, of_log
from compaction.kernels.keys.key_filter import KeyFilter
from compaction.kernels.keys.offset_map import Arena, by_shard
from compaction.kernels.reading.records import (
    KEYLESS,
    LOOKUPS_ONLY,
    MAP,
    MESSAGES,
    RECORD_ERRORS,
    SKIP,
    TOMBSTONES,
    scan_records,
)
from compaction.kernels.reading.tables import ENTRY_BYTES, ENTRY_WORDS, MAX_OFFSET
from compaction.logdir.blocks import Block, SegmentReader
from compaction.logdir.throttle import Throttle
from compaction.passes.decoder import V2_MAGIC, Decoded, Decoder, check_count
from compaction.passes.merge import resolve
from compaction.passes.task_map import TaskMap
from compaction.passes.tasks import MapContext, MapSettings, Packed, Resolved, Slice, SliceSummary

#: ``(log, shard)``; the shard of a summary is ``SUMMARY``
Key = tuple[int, int]
SUMMARY = -1
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_ENTRIES = 1 << 14
#: asks are handed on when they have gathered to this size
_ASK_BYTES = 32 << 20


def scan_slices(
    slices: Iterable[Slice], logs: Mapping[int, MapContext], settings: MapSettings
) -> Iterator[tuple[Key, list[Packed | Resolved | SliceSummary]]]:
    """Packed entries (``uint64[n, 3]``) by shard, and one summary a slice. The shard of a ``single_task`` log is
    resolved here, if its entries could be held together.

    A slice that cannot be read gives a summary with an error; its log's entries are then of no use, which is the caller's to
    see.
    """
    for log, neighbours in groupby(slices, key=lambda part: part.log):
        parts = list(neighbours)
        scan = LogScan(logs[log], settings, dirty_records(parts, logs[log].first_dirty_offset))
        for part in parts:
            yield (log, SUMMARY), [scan.slice(part)]
            for shard, packed in scan.overflow():
                yield (log, shard), [packed]
        whole = scan.whole()
        if whole is not None:
            yield (log, 0), [whole]
            continue
        for shard, packed in scan.rest():
            yield (log, shard), [packed]


def flag_single_task_logs(logs: Mapping[int, MapContext], tasks: Iterable[Iterable[Slice]]) -> dict[int, MapContext]:
    """``logs``, those marked as ``single_task`` whose map has one shard and whose slices are all in one of ``tasks``."""
    places = Counter(log for task in tasks for log in {part.log for part in task})
    return {log: replace(work, single_task=work.shards == 1 and places[log] == 1) for log, work in logs.items()}


def collect_keys(
    slices: Iterable[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
) -> Iterator[tuple[int, KeyFilter]]:
    """The keys of the dirty records of some slices, by log. What cannot be read is for pass 1 to tell.

    :param filters: empty ones
    """
    for log, neighbours in groupby(slices, key=lambda part: part.log):
        scan = _FilterScan(logs[log], settings, KeyFilter(filters[log].words.copy()))
        for part in neighbours:
            scan.slice(part)
        yield log, scan.keys


def dirty_records(parts: Iterable[Slice], first_dirty_offset: int) -> int:
    """At most how many records of the dirty section the slices hold."""
    return sum(max(0, part.end_offset - max(part.first_offset, first_dirty_offset)) for part in parts)


def check_offsets(block: Block, floor: int, path: str, end_offset: int = MAX_OFFSET) -> int:
    """The offset after the last batch of ``block``, whose batches must lie in ``[floor, end_offset)``.

    :raises CorruptLogError: offsets run backwards, or reach into what comes next
    :raises UnsupportedLogError: offsets are not below ``MAX_OFFSET``
    """
    rows = block.rows
    highest = rows[int(np.argmax(rows["last_offset"]))]
    if highest["last_offset"] >= MAX_OFFSET:
        what = f"offsets from {MAX_OFFSET} on are not supported"
        raise UnsupportedLogError(what, path=path, position=int(highest["position"]))
    floors = np.concatenate([[floor], rows["last_offset"][:-1] + 1])
    backwards = np.flatnonzero(rows["base_offset"] < floors)
    if len(backwards):
        at = rows[int(backwards[0])]
        what = f"batch begins at offset {at['base_offset']}, expected {floors[backwards[0]]} or more"
        raise CorruptLogError(what, path=path, position=int(at["position"]), hint="restore this segment")
    if highest["last_offset"] >= end_offset:
        what = f"batch ends at offset {highest['last_offset']}, expected one below {end_offset}"
        raise CorruptLogError(what, path=path, position=int(highest["position"]), hint="restore this segment")
    return int(rows["last_offset"][-1]) + 1


class LogScan:
    """Entries and asks of one log gathered over the slices of one task."""

    def __init__(
        self, log: MapContext, settings: MapSettings, most_records: int, arena: Arena | None = None
    ) -> None:
        self._log = log
        self.files = settings.files
        self._map = TaskMap(settings.map_bytes, settings.load_factor, most_records, self._hand_on, arena)
        self._asks: list[NDArray[np.uint64]] = []
        self._full: list[tuple[int, Packed]] = []
        self._entries = np.empty((_ENTRIES, ENTRY_WORDS), np.uint64)
        self._ask_room = np.empty((_ENTRIES, ENTRY_WORDS), np.uint64)
        self._ask_limit = min(settings.map_bytes, _ASK_BYTES) // ENTRY_BYTES
        self._asked = 0
        self._any_handed_on = False
        self._position = 0
        self._throttle = Throttle(settings.bytes_per_second)
        self._secret = settings.secret.state()

    def slice(self, part: Slice) -> SliceSummary:
        """Scan one slice; what was found besides entries."""
        counters = np.zeros(3, np.int64)
        txn_rows, keyless = [np.empty(0, TXN_ROW)], [np.empty(0, KEYLESS_ROW)]
        next_offset, self._position = part.first_offset, part.start
        try:
            with SegmentReader(self.files, part.path, part.start, part.end) as reader:
                decoder = Decoder(part.path)
                for block in reader.blocks(check_crc=True):
                    self._position = block.position
                    self._throttle.count(len(block.raw))
                    for rows in decoder.as_v2(block):
                        next_offset = check_offsets(rows, next_offset, part.path, part.end_offset)
                        txn_rows.append(summarise(rows.rows, part.segment_index))
                        keyless += self._block(rows, decoder, counters, part.path)
                fingerprint = reader.fingerprint()
        except Exception as error:
            failure = of_log(error, part.path, self._position)
            return SliceSummary(part.log, 0, 0, 0, txn_rows[0], error=str(failure))
        messages, without_key, tombstones = counters[[MESSAGES, KEYLESS, TOMBSTONES]].tolist()
        return SliceSummary(
            part.log,
            messages,
            without_key,
            tombstones,
            np.concatenate(txn_rows),
            np.concatenate(keyless),
            slice_id=part.id,
            fingerprint=fingerprint,
        )

    def _block(self, block: Block, decoder: Decoder, counters: NDArray[np.int64], path: str) -> Iterator[NDArray[np.void]]:
        actions = self.actions(block.rows)
        keyless, before = np.zeros(len(block.rows), np.int32), counters[KEYLESS]
        for decoded in decoder.decode(block, actions != SKIP):
            self.records(block, decoded, actions, (keyless, counters), path)
        if counters[KEYLESS] > before:
            yield keyless_rows(block.rows, keyless)

    def actions(self, rows: NDArray[np.void]) -> NDArray[np.uint8]:
        """What ``scan_records`` does with each batch."""
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
    ) -> None:
        """Take the records of decoded batches in.

        :param actions: uint8 of all batches of ``block``, as ``actions`` gave them
        :param counts: added to: int32, records without a key by batch of ``block``; the ``counters`` of ``scan_records``
        """
        rows, first = decoded.rows, decoded.first_row
        at, actions, keyless = 0, actions[first : first + len(rows)], counts[0][first : first + len(rows)]
        while at < len(rows):
            next_at, n, m, error = scan_records(
                block.raw,
                decoded.scratch,
                rows,
                decoded.spans,
                actions,
                self._log.first_dirty_offset,
                at,
                self._entries,
                self._ask_room,
                keyless,
                counts[1],
                self._secret,
            )
            if error:
                position = int(rows[next_at]["position"])
                raise CorruptLogError(RECORD_ERRORS[error], path=path, position=position, hint="restore this segment")
            self._take(n, m)
            if next_at == at:
                check_count(decoded, at, path)
                self._grow(int(rows[at]["count"]))
            at = next_at

    def _grow(self, records: int) -> None:
        self._entries = np.empty((records, ENTRY_WORDS), np.uint64)
        self._ask_room = np.empty((records, ENTRY_WORDS), np.uint64)

    def _take(self, n: int, m: int) -> None:
        """Move ``n`` entries into the map and ``m`` asks to their list; hand on what would not fit."""
        self._map.put(self._entries[:n])
        asks = self._ask_room[:m]
        if m and self._log.dirty_keys is not None:
            asks = self._log.dirty_keys.prune(asks, self._log.first_dirty_offset)
        if len(asks):
            self._asks.append(asks.copy())
            self._asked += len(asks)
            if self._asked >= self._ask_limit:
                self._hand_on_asks()

    def _hand_on_asks(self) -> None:
        if self._asks:
            self._hand_on(np.concatenate(self._asks))
            self._asks, self._asked = [], 0

    def _hand_on(self, entries: NDArray[np.uint64]) -> None:
        ordered, starts = by_shard(entries, self._log.shards)
        bounds = pairwise(starts.tolist())
        self._full += [(shard, ordered[start:end]) for shard, (start, end) in enumerate(bounds) if start < end]

    def overflow(self) -> Iterator[tuple[int, Packed]]:
        """Packed entries that did not fit any more, by shard; forgotten here."""
        full, self._full = self._full, []
        self._any_handed_on |= bool(full)
        return iter(full)

    def whole(self) -> Resolved | None:
        """What becomes of the log, if all that there is of it was scanned and is still held."""
        if not self._log.single_task or self._any_handed_on or self._full or self._map.complete is None:
            return None
        return resolve(self._map.complete, self._asks, self._log.first_dirty_offset)

    def rest(self) -> Iterator[tuple[int, Packed]]:
        """All that is left, by shard."""
        self._hand_on_asks()
        yield from self.overflow()
        for entries in self._map.rest():
            self._hand_on(entries)
            yield from self.overflow()


class _FilterScan(LogScan):
    """Notes keys where ``LogScan`` maps them, and asks nothing."""

    def __init__(self, log: MapContext, settings: MapSettings, keys: KeyFilter) -> None:
        super().__init__(log, settings, 0, Arena())
        self.keys = keys

    def _take(self, n: int, m: int) -> None:
        self.keys.add(self._entries[:n])
