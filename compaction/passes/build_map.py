"""The first pass: checks every batch of some slices, hashes every key, and emits packed map entries by shard.

Mirrors ``Cleaner.buildOffsetMap`` (Kafka 4.4.0) for the dirty section. Records of the clean section, and of aborted data, do
not enter the map. They are emitted as lookups: pass 2 drops those that a dirty record supersedes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.txn_tables import KEYLESS_ROW, TXN_ROW, keyless_rows, summarise
from compaction.errors import of_log
from compaction.kernels.keys.key_filter import KeyFilter
from compaction.kernels.keys.offset_map import Arena
from compaction.kernels.reading.records import (
    KEYLESS,
    MESSAGES,
    SKIP,
    TOMBSTONES,
)
from compaction.logdir.blocks import Block, SegmentReader
from compaction.logdir.throttle import Throttle
from compaction.passes.decoder import Decoded, Decoder, check_offsets
from compaction.passes.log_scan import Emitted, LogScan, log_scan
from compaction.passes.tasks import SUMMARY, Key, MapContext, MapSettings, Packed, Resolved, Slice, SliceSummary


def scan_slices(
    slices: Iterable[Slice], logs: Mapping[int, MapContext], settings: MapSettings
) -> Iterator[tuple[Key, list[Packed | Resolved | SliceSummary]]]:
    """Packed entries (``uint64[n, 3]``) by shard, and one summary per slice. The shard of a ``single_task`` log is resolved
    here if its entries fit the task's map.

    The summary of an unreadable slice has an error; the caller must then ignore its log's entries.
    """
    for log, group in groupby(slices, key=lambda each: each.log):
        of_one_log = list(group)
        scan = log_scan(logs[log], settings, dirty_records(of_one_log, logs[log].first_dirty_offset))
        yield from SliceScan({log: scan}, settings).run(of_one_log)


def flag_single_task_logs(logs: Mapping[int, MapContext], tasks: Iterable[Iterable[Slice]]) -> dict[int, MapContext]:
    """``logs``, with ``single_task`` set for those with one shard whose slices are all in one of ``tasks``."""
    tasks_of = Counter(log for task in tasks for log in {each.log for each in task})
    return {log: replace(work, single_task=work.shards == 1 and tasks_of[log] == 1) for log, work in logs.items()}


def collect_keys(
    work: tuple[Iterable[Slice], Mapping[int, tuple[MapContext, int]]], settings: MapSettings
) -> list[tuple[int, KeyFilter]]:
    """The keys of the dirty records of some slices, by log. Unreadable slices are left to pass 1 to report.

    :param work: the slices; of each log, the size of the filter in words
    """
    slices, logs = work
    found = []
    for log, group in groupby(slices, key=lambda each: each.log):
        context, words = logs[log]
        scan = _FilterScan(context, settings, KeyFilter(np.zeros(words, np.uint64)))
        reader = SliceScan({log: scan}, settings)
        for each in group:
            reader.scan(each)
        found.append((log, scan.keys))
    return found


def dirty_records(slices: Iterable[Slice], first_dirty_offset: int) -> int:
    """Upper bound on the number of dirty records in ``slices``."""
    return sum(max(0, each.end_offset - max(each.first_offset, first_dirty_offset)) for each in slices)


class Findings:
    """What the batches of a slice contain, besides map entries and lookups; ``counters`` are those of ``scan_records``."""

    def __init__(self) -> None:
        self.counters = np.zeros(3, np.int64)
        self.txn_rows = [np.empty(0, TXN_ROW)]
        self.keyless_rows = [np.empty(0, KEYLESS_ROW)]
        self.unranked = Counter[int]()

    def add_keyless(self, rows: NDArray[np.void], keyless: NDArray[np.int32]) -> None:
        """Add the number of records without a key of each of ``rows``."""
        if keyless.any():
            self.keyless_rows.append(keyless_rows(rows, keyless))

    def summary(self, slice_: Slice, fingerprint: str) -> SliceSummary:
        """The summary of the slice."""
        messages, keyless, tombstones = self.counters[[MESSAGES, KEYLESS, TOMBSTONES]].tolist()
        txn_rows, keyless_rows = np.concatenate(self.txn_rows), np.concatenate(self.keyless_rows)
        return SliceSummary(
            slice_.log, messages, keyless, tombstones, txn_rows, keyless_rows,
            slice_id=slice_.id, fingerprint=fingerprint, unranked=self.unranked,
        )  # fmt: skip


class SliceScan:
    """Reads slices of one log once, for all of their maps.

    :param scans: by number of the map
    """

    def __init__(self, scans: Mapping[int, LogScan], settings: MapSettings) -> None:
        self._scans, self._files = scans, settings.files
        self._throttle = Throttle(settings.bytes_per_second)

    def run(self, slices: Iterable[Slice]) -> Iterator[tuple[Key, list[Any]]]:
        """What ``scan_slices`` emits for ``slices``."""
        for each in slices:
            summary = yield from self.emit(each)
            yield (each.log, SUMMARY), [summary]
        for number, scan in self._scans.items():
            resolved = scan.resolved()
            for shard, found in scan.drain() if resolved is None else [(0, resolved)]:
                yield (number, shard), [found]

    def scan(self, slice_: Slice) -> Any:
        """The summary of one slice whose scans spill nothing."""
        emitted = self.emit(slice_)
        try:
            key, _ = next(emitted)
        except StopIteration as end:
            return end.value
        raise ValueError(f"map {key} has spilled")

    def emit(self, slice_: Slice) -> Generator[tuple[Key, list[Any]], None, Any]:
        """Scan one slice: yields what is spilled on the way; returns its summary, with the error if it cannot be read."""
        findings, position, next_offset = Findings(), slice_.start, slice_.first_offset
        started_s = self._throttle.now_s()
        scans = {number: self._scans[number] for number in slice_.maps or (slice_.log,)}
        try:
            with SegmentReader(self._files, slice_.path, slice_.start, slice_.end) as reader:
                decoder = Decoder(slice_.path)
                for block in reader.blocks(check_crc=True):
                    position = block.position
                    self._throttle.count(len(block.raw))
                    for batches in decoder.as_v2(block):
                        next_offset = check_offsets(batches, next_offset, slice_.path, slice_.end_offset)
                        findings.txn_rows.append(summarise(batches.rows, slice_.segment_index))
                        yield from self._batches(scans, batches, decoder, findings)
                found = findings.summary(slice_, reader.fingerprint())
                return replace(found, seconds=self._throttle.now_s() - started_s)
        except Exception as error:
            failure = str(of_log(error, slice_.path, position))
            return SliceSummary(slice_.log, 0, 0, 0, np.empty(0, TXN_ROW), error=failure, slice_id=slice_.id)

    def _batches(
        self, scans: Mapping[int, LogScan], block: Block, decoder: Decoder, findings: Findings
    ) -> Iterator[tuple[Key, list[Any]]]:
        """Decode batches once for all scans. The first scan counts records: they do not depend on the map."""
        actions, keyless = [scan.actions(block.rows) for scan in scans.values()], np.zeros(len(block.rows), np.int32)
        for decoded in decoder.decode(block, self._wanted(actions[0])):
            counts = keyless, findings.counters
            for (number, scan), of_scan in zip(scans.items(), actions, strict=True):
                for shard, packed in scan.records(block, decoded, of_scan, counts, decoder.path):
                    yield (number, shard), [packed]
                findings.unranked[number] += scan.take_unranked()
                counts = np.zeros_like(keyless), np.zeros_like(findings.counters)
            self._decoded(block, decoded, decoder.path)
        findings.add_keyless(block.rows, keyless)

    def _wanted(self, actions: NDArray[np.uint8]) -> NDArray[np.bool_] | None:
        """bool[r], the batches to decode: markers are in no map."""
        wanted: NDArray[np.bool_] = actions != SKIP
        return wanted

    def _decoded(self, block: Block, decoded: Decoded, path: str) -> None:
        """Called with all decoded batches."""


class _FilterScan(LogScan):
    """Adds keys to a filter instead of a map, and makes no lookups."""

    def __init__(self, log: MapContext, settings: MapSettings, keys: KeyFilter) -> None:
        super().__init__(log, settings, 0, Arena())
        self.keys = keys

    def _take(self, n: int, m: int) -> Iterable[Emitted]:
        self.keys.add(self._entries[:n])
        return ()
