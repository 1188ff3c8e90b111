"""Replays the arrivals of a log under a policy: appends and rolls, cleanings, deletions of segments.

The rules of cleaning and deletion are those of a run (``compaction.rules``), over a log whose offsets are the numbers of its
parts. Appends mirror ``UnifiedLog.maybeRoll`` and ``LogSegment.shouldRoll``: a segment whose first batch has no timestamp is
rolled ``segment.ms`` after it was created; one without any timestamp is as old as its file. Cleanings are those of Kafka 3.1
and later, with the sizes of parts in place of records (``Parts``).

At each check, as in a broker, the cleaner comes first, then the deletion of segments. Differences to a broker: offset maps have
room for all keys, the cleaner is never busy elsewhere, the high watermark is the log end, and transactions hold cleanings back
in small logs only, whose parts are batches.

What remains of each part of a log after cleanings: bytes, batches, tombstones, transaction markers.

Exact for parts of one uncompressed batch: a batch with a surviving record keeps its header, the last batch of an active
producer too; tombstones and markers of transactions without data get a delete horizon, from which their timestamps count then
(rules 2, 5, 6 and 9 of ``compaction.rules.record_retention``).

Estimated for others: surviving records are taken to be spread evenly over the batches of a bucket, compressed batches to
compress their remaining records as well as before, and the markers of a part to belong to its transactions. If a cleaning ends
within a bucket, the records of the bucket are taken to supersede others at an even pace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compaction.config.resolver import TopicConfig
from compaction.formats.indexes import OFFSET_ENTRY, TIME_ENTRY
from compaction.formats.record_batch import HEADER_SIZE
from compaction.names import TopicPartition
from compaction.policies.arrivals import (
    BATCHES,
    CONTROL_BYTES,
    CONTROLS,
    IN_TXN,
    LARGEST_TIMESTAMP,
    NEVER,
    PLAIN,
    PRODUCER,
    RECORDS,
    STORED,
    Arrivals,
    Cells,
    Floats,
    Int64s,
    sums_of,
)
from compaction.policies.result import Effect, Event, Sample
from compaction.rules.log_to_clean import Verdict
from compaction.rules.log_view import LogView, Segment
from compaction.rules.plan import Group, plan_log
from compaction.rules.segment_retention import plan_deletion

_LONG_MAX = 2**63 - 1
_NS = 1_000_000

Bools = NDArray[np.bool_]


class Replay:
    """One log under one policy.

    :param arrivals_ms: int64[n], when each part arrived, ascending, ms since the epoch
    """

    def __init__(self, arrivals: Arrivals, arrivals_ms: Int64s, config: TopicConfig, producer_expiration_ms: int) -> None:
        self._config, self._times = config, arrivals_ms.tolist()
        self._parts = Parts(arrivals, arrivals_ms, config.delete_retention_ms, producer_expiration_ms)
        self._largest_ms = arrivals.parts[:, LARGEST_TIMESTAMP].tolist()
        self._sizes: list[int] = self._parts.appended.tolist()
        self._segments: list[Segment] = []
        self._arrived, self._arrived_bytes, self._size = 0, 0, 0
        self._first_dirty: int | None = None
        #: when the active segment was created, ms, and its largest timestamp, -1 without one
        self._created_ms = self._active_largest_ms = -1
        #: replaced and deleted segments that wait for ``file.delete.delay.ms``: until when, and their bytes
        self._waiting: list[tuple[int, int]] = []
        #: the cleaner looks again if a segment was rolled, or at a time
        self._rolled, self._look_ms = False, _LONG_MAX
        self._events: list[Event] = []
        #: how long a superseded record has remained at most, ms, and one that a tombstone superseded
        self._oldest = 0, 0

    def run(self, checks: Int64s, ends: Int64s, policy: str) -> Effect:
        """All arrivals up to the last check; events since the first period ended.

        :param checks: the times at which the cleaner and retention look, ms since the epoch
        :param ends: those of them at which a period ends
        :param policy: the name of the effect
        """
        samples, is_end = list[Sample](), set(ends.tolist())
        least = peak = area = cleaned = superseded = 0
        measured: tuple[int, int, int] | None = None
        before_ms = since_ms = int(checks[0]) if checks.size else 0
        for now_ms in checks.tolist():
            self._append(bisect_right(self._times, now_ms))
            area += self._size * (now_ms - before_ms)
            self._waiting = [(until_ms, size) for until_ms, size in self._waiting if until_ms > now_ms]
            peak = max(peak, self._on_disk(self._size + sum(size for _, size in self._waiting)))
            if self._config.cleanup_compact:
                cleaned = max(cleaned, self._on_disk(self._clean(now_ms)))
            if self._config.cleanup_delete:
                self._delete(now_ms)
            least, before_ms = min(least, self._size), now_ms
            if now_ms in is_end:
                mean = area // (now_ms - since_ms) if now_ms > since_ms else self._size
                state = self._start, self._arrived, self._first_dirty or 0
                if state != measured:
                    superseded, measured = self._parts.superseded_bytes(*state), state
                amounts = self._size, least, mean, peak, cleaned, superseded, len(self._segments), self._arrived_bytes
                samples.append(Sample(now_ms, *amounts))
                least, peak = self._size, self._on_disk(self._size)
                area = cleaned = 0
                since_ms = now_ms
        if checks.size:
            self._note_ages(int(checks[-1]))
        events = tuple(event for event in self._events if event.at_ms >= ends[0]) if ends.size else ()
        return Effect(policy, tuple(samples), events, *self._oldest)

    def _on_disk(self, log_bytes: int) -> int:
        """Bytes of ``.log`` files with their offset and time indexes, which have about an entry for each interval."""
        entries = log_bytes // max(1, self._config.index_interval_bytes)
        return log_bytes + entries * (OFFSET_ENTRY.size + TIME_ENTRY.size)

    @property
    def _start(self) -> int:
        return self._segments[0].base_offset if self._segments else 0

    def _append(self, end: int) -> None:
        config, segments = self._config, self._segments
        # Kafka: ``LogConfig.maxSegmentMs``
        longest_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.cleanup_compact else config.segment_ms
        base, size, began_ms, written_ms = -1, 0, _LONG_MAX, -1
        if segments:
            active = segments.pop()
            base, size = active.base_offset, active.size_bytes
            began_ms, written_ms = active.first_batch_timestamp_ms, active.mtime_ms
        created_ms, largest_ms = self._created_ms, self._active_largest_ms
        for part in range(self._arrived, end):
            more, latest_ms, now_ms = self._sizes[part], self._largest_ms[part], self._times[part]
            if base >= 0:
                waited_ms = latest_ms - began_ms if 0 <= began_ms < _LONG_MAX else now_ms - created_ms
                if size > config.segment_bytes - more or (size > 0 and waited_ms > longest_ms):
                    segments.append(_segment(base, size, began_ms, largest_ms, written_ms, part))
                    self._rolled, base = True, -1
            if base < 0:
                base, size, created_ms, largest_ms = part, 0, now_ms, -1
            if size == 0:
                began_ms = latest_ms
            largest_ms = max(largest_ms, latest_ms)
            size, written_ms = size + more, now_ms
            self._size += more
            self._arrived_bytes += more
        if base >= 0:
            segments.append(_segment(base, size, began_ms, largest_ms, written_ms, max(self._arrived, end)))
        self._arrived, self._created_ms, self._active_largest_ms = max(self._arrived, end), created_ms, largest_ms

    def _view(self) -> LogView:
        end, stable = self._arrived, int(self._parts.stable[self._arrived])
        return LogView(
            TopicPartition("simulated", 0), "", "", tuple(self._segments), self._start, end, stable, end, self._first_dirty
        )

    def _clean(self, now_ms: int) -> int:
        """Clean the log if its policy says so; returns the bytes that are written."""
        config = self._config
        if not self._segments or not (self._rolled or now_ms >= self._look_ms):
            return 0
        self._rolled = False
        plan = plan_log(self._view(), config, now_ms=now_ms)
        if plan.verdict is not Verdict.CLEAN:
            # nothing changes before a lag passes, or a segment is rolled
            lags = (
                time_ms
                for segment in self._segments[:-1]
                for time_ms in (
                    segment.largest_timestamp_ms + config.min_compaction_lag_ms,
                    segment.first_batch_timestamp_ms + config.max_compaction_lag_ms,
                )
            )
            self._look_ms = min((time_ms for time_ms in lags if time_ms >= now_ms), default=_LONG_MAX)
            # or an open transaction ends
            self._rolled = bool(self._parts.stable[self._arrived] < self._arrived)
            return 0
        self._note_ages(now_ms)
        first, end = self._start, plan.first_uncleanable_offset
        before = sum(segment.size_bytes for segment in plan.segments)
        self._parts.clean(first, end, self._arrived, now_ms)
        outputs = self._outputs(plan.groups, end)
        self._segments = [*outputs, *(segment for segment in self._segments if segment.base_offset >= end)]
        after = sum(segment.size_bytes for segment in outputs)
        self._first_dirty, self._rolled = end, True
        self._size += after - before
        self._waiting.append((now_ms + config.file_delete_delay_ms, before))
        self._events.append(Event(now_ms, "cleaned", before, after))
        return after

    def _outputs(self, groups: Sequence[Group], end: int) -> list[Segment]:
        outputs = []
        for group, next_base in zip(groups, [*(group.base_offset for group in groups[1:]), end], strict=True):
            size, first, largest = self._parts.remaining(group.base_offset, next_base)
            times = group.segments[-1].mtime_ns, 0, 0, largest if largest >= 0 else group.mtime_ms, first if size else _LONG_MAX
            outputs.append(Segment(group.base_offset, size, *times, next_base))
        return outputs

    def _delete(self, now_ms: int) -> None:
        config = self._config
        if not self._segments:
            return
        oldest = self._segments[0]
        too_old = 0 <= config.retention_ms < now_ms - oldest.largest_timestamp_ms
        if not too_old and not 0 <= config.retention_bytes <= self._size:
            return
        plan = plan_deletion(self._view(), replace(config, remote_storage_enable=False), now_ms=now_ms)
        if plan.removals:
            self._segments = list(plan.after.segments)
            self._parts.delete(self._start)
            self._size -= plan.removed_bytes
            self._waiting.append((now_ms + config.file_delete_delay_ms, plan.removed_bytes))
            self._rolled = True
            if not self._segments[-1].size_bytes:
                self._created_ms, self._active_largest_ms = now_ms, -1
            self._events.append(Event(now_ms, "deleted", plan.removed_bytes, 0))

    def _note_ages(self, now_ms: int) -> None:
        """The oldest records that a cleaning is about to remove, or that remain at the end."""
        covered = self._first_dirty or 0
        ages = self._parts.ages(self._start, self._arrived, covered, now_ms)
        self._oldest = max(self._oldest[0], ages[0]), max(self._oldest[1], ages[1])


def _segment(base: int, size: int, first_ms: int, largest_ms: int, written_ms: int, end: int) -> Segment:
    largest_ms = largest_ms if largest_ms >= 0 else written_ms
    return Segment(base, size, written_ms * _NS, 0, 0, largest_ms, first_ms if size and first_ms >= 0 else _LONG_MAX, end)


class Parts:
    """The parts of one log, int64[n] each: ``appended``, their bytes when they arrive; ``sizes``, their bytes now.

    :param arrivals_ms: int64[n], when each part arrived, ms since the epoch
    """

    def __init__(self, arrivals: Arrivals, arrivals_ms: Int64s, delete_retention_ms: int, producer_expiration_ms: int) -> None:
        columns, cells = arrivals.parts, arrivals.cells
        self._exact, self._retention_ms, self._expiration_ms = arrivals.exact, delete_retention_ms, producer_expiration_ms
        self._columns, self._buckets = columns, arrivals.buckets
        self._data_cells, self._tombstones = _Sorted(cells, ~cells.tombstone), _Sorted(cells, cells.tombstone)
        self.appended: Int64s = columns[:, STORED] + columns[:, CONTROL_BYTES]
        self.sizes = self.appended.copy()
        count = len(columns)
        self._arrivals_ms = arrivals_ms
        #: the first part of each bucket, and the end of the last one; records of the log before each part
        self._starts = np.append(arrivals.starts, count)
        self._records_before = np.concatenate([[0], np.cumsum(columns[:, RECORDS])])
        #: records and their bytes by bucket
        self._totals = [sums_of(arrivals.buckets, columns[:, column], len(self._starts) - 1) for column in (RECORDS, PLAIN)]
        #: batches that hold data, markers
        self._data, self._markers = columns[:, BATCHES].astype(np.float64), columns[:, CONTROLS].astype(np.float64)
        #: 0 for none
        self._horizon, self._marker_horizon = np.zeros(count, np.int64), np.zeros(count, np.int64)
        #: int64[n + 1]: the last stable part's end once so many have arrived (Kafka: ``firstUnstableOffset``)
        self.stable: Int64s = np.arange(count + 1)
        self._txn = np.full(count, -1)
        if arrivals.exact:
            self._txn, self.stable = _transactions(columns)
        overhead = HEADER_SIZE * columns[:, BATCHES]
        #: stored bytes of an uncompressed byte of records
        self._density = _ratio(columns[:, STORED] - overhead, columns[:, PLAIN], 1)
        stored = sums_of(arrivals.buckets, columns[:, STORED] - overhead, len(self._starts) - 1)
        self._bucket_density = _ratio(stored, self._totals[1], 1)
        self._density_by_size = _density_by_size(arrivals.compressed)

    def clean(self, first: int, end: int, log_end: int, now_ms: int) -> None:
        """Clean parts ``[first, end)`` of a log whose last part is ``log_end - 1``."""
        of, columns = slice(first, end), self._columns
        last = self._last_batches(first, end, log_end, now_ms)
        self._clean_markers(of, first, now_ms)
        horizon = self._horizon[of]
        records, plain = self._remaining(self._data_cells, of)
        tombstones, tombstone_bytes = self._remaining(self._tombstones, of)
        expired = (horizon > 0) & (horizon <= now_ms)
        tombstones[expired], tombstone_bytes[expired] = 0, 0
        records, plain = records + tombstones, plain + tombstone_bytes
        horizon[(tombstones > 0) & (horizon == 0)] = now_ms + self._retention_ms
        batches = columns[of, BATCHES]
        if self._exact:
            kept, rebased = (records > 0).astype(np.float64), records
        else:
            each = _ratio(columns[of, RECORDS], batches, 1)
            kept = batches * (1 - (1 - np.minimum(1, _ratio(records, columns[of, RECORDS], 0))) ** each)
            rebased = np.minimum(records, tombstones * each)
        kept = np.maximum(kept, last & (self._data[of] > 0))
        grown = rebased * (horizon > 0) * self._growth(of, horizon, _ratio(plain, records, 0))
        self._data[of] = kept
        data_bytes = HEADER_SIZE * kept + (plain + grown) * self._density_of(of, plain, kept)
        self.sizes[of] = np.rint(data_bytes + self._marker_bytes(of)).astype(np.int64)

    def _remaining(self, cells: _Sorted, of: slice) -> tuple[Floats, Floats]:
        """Records and bytes of each of the parts ``of``, as far as none before their end supersedes them."""
        buckets = self._buckets[of]
        first, end = (int(buckets[0]), int(buckets[-1]) + 1) if len(buckets) else (0, 0)
        remaining = cells.remaining(first, end, self._share_before(of.stop))
        shares = [_ratio(sums, totals[first:end], 0) for sums, totals in zip(remaining, self._totals, strict=True)]
        records, plain = (
            share[buckets - first] * self._columns[of, column] for share, column in zip(shares, (RECORDS, PLAIN), strict=True)
        )
        return records, plain

    def _share_before(self, end: int) -> float:
        """The share of the records of the last bucket of the parts before ``end`` that are in these parts."""
        if end == 0:
            return 1.0
        bucket = self._buckets[end - 1]
        start, stop = self._records_before[self._starts[bucket : bucket + 2]]
        return float((self._records_before[end] - start) / (stop - start)) if stop > start else 1.0

    def _density_of(self, of: slice, plain: Floats, kept: Floats) -> Floats:
        """Stored bytes of a remaining byte of records: less of a batch compresses less well."""
        density, whole, batches = self._density[of], self._columns[of, PLAIN], self._columns[of, BATCHES]
        if not len(self._density_by_size):
            return density
        sizes, densities = self._density_by_size.T
        before = np.interp(_ratio(whole, batches, 1), sizes, densities)
        after = np.interp(_ratio(plain, kept, 1), sizes, densities)
        return np.where(plain < whole, density * after / before, density)

    def _last_batches(self, first: int, end: int, log_end: int, now_ms: int) -> Bools:
        """bool[end - first]: whether the part is the last data batch of a producer that is active."""
        last = np.zeros(end - first, np.bool_)
        if self._exact:
            columns = self._columns[:log_end]
            data = np.flatnonzero((columns[:, BATCHES] > 0) & (columns[:, PRODUCER] >= 0))
            producers, from_end = np.unique(columns[data, PRODUCER][::-1], return_index=True)
            newest = data[::-1][from_end]
            spoke = np.full(len(producers), -1, np.int64)
            known = np.flatnonzero(columns[:, PRODUCER] >= 0)
            places = np.searchsorted(producers, columns[known, PRODUCER])
            within = (places < len(producers)) & (producers[np.minimum(places, len(producers) - 1)] == columns[known, PRODUCER])
            np.maximum.at(spoke, places[within], columns[known[within], LARGEST_TIMESTAMP])
            active = now_ms - spoke < self._expiration_ms
            newest = newest[active & (newest >= first) & (newest < end)]
            last[newest - first] = True
        return last

    def _clean_markers(self, of: slice, first: int, now_ms: int) -> None:
        """Remove the markers whose transactions have no data, once their horizon has passed; give others theirs."""
        markers, horizon = self._markers[of], self._marker_horizon[of]
        if self._exact:
            txn = self._txn[of]
            holds = np.zeros(int(self._txn.max(initial=-1)) + 2, np.bool_)
            holds[txn[self._data[of] > 0]] = True
            without_data = (markers > 0) & ~(holds[txn] & (txn >= 0))
            gone = np.where(without_data, 1.0, 0.0)
        else:
            gone = 1 - _ratio(self._data[of], self._columns[of, BATCHES], 0)
        expired = (horizon > 0) & (horizon <= now_ms)
        markers[expired] = np.minimum(markers[expired], (self._columns[of, CONTROLS] * (1 - gone))[expired])
        horizon[(gone > 0) & (horizon == 0) & (markers > 0)] = now_ms + self._retention_ms

    def _marker_bytes(self, of: slice) -> Floats:
        horizon, each = self._marker_horizon[of], _ratio(self._columns[of, CONTROL_BYTES], self._columns[of, CONTROLS], 0)
        grown = np.where(horizon > 0, self._growth(of, horizon, each - HEADER_SIZE), 0)
        return self._markers[of] * (each + grown)

    def _growth(self, of: slice, horizon: Int64s, record_bytes: Floats) -> Floats:
        """By how many bytes a record of a part grows when its timestamp counts from the batch's horizon."""
        delta = _varint_bytes(self._columns[of, LARGEST_TIMESTAMP] - horizon) - 1
        size = np.rint(record_bytes).astype(np.int64)
        body = size - np.where(size > 1 + 63, np.where(size > 2 + 8191, 3, 2), 1)
        return (delta + _varint_bytes(body + delta) - _varint_bytes(body)).astype(np.float64)

    def delete(self, first: int) -> None:
        self.sizes[:first], self._data[:first], self._markers[:first] = 0, 0, 0

    def remaining(self, first: int, end: int) -> tuple[int, int, int]:
        """Of parts ``[first, end)``: their bytes, and the largest timestamps of the first batch and of all; -1 for none."""
        sizes, largest = self.sizes[first:end], self._columns[first:end, LARGEST_TIMESTAMP]
        present = np.flatnonzero(sizes)
        if not len(present):
            return 0, -1, -1
        return int(sizes.sum()), int(largest[present[0]]), int(largest[present].max())

    def superseded_bytes(self, first: int, end: int, covered: int) -> int:
        """Bytes of superseded records in the parts ``[first, end)``, of which those before ``covered`` have been cleaned."""
        found = 0.0
        for cells in (self._data_cells, self._tombstones):
            for sign, until in ((1, end), (-1, covered)):
                which = cells.superseded(self._bucket(first), self._bucket_end(until))
                amounts = cells.bytes[which] * self._bucket_density[cells.bucket[which]]
                amounts[cells.successor[which] == self._bucket(until - 1)] *= self._share_before(until)
                found += sign * float(amounts.sum())
        return int(found)

    def _bucket(self, part: int) -> int:
        if part < 0:
            return -1
        return int(self._buckets[part]) if part < len(self._buckets) else len(self._starts) - 1

    def _bucket_end(self, end: int) -> int:
        """The bucket after the last one of the parts before ``end``."""
        return self._bucket(end - 1) + 1

    def ages(self, first: int, end: int, covered: int, now_ms: int) -> tuple[int, int]:
        """How long ago the oldest remaining superseded record was superseded, ms, and the same by a tombstone; 0 for none."""
        oldest = [NEVER, NEVER]
        for cells in (self._data_cells, self._tombstones):
            which = cells.superseded(self._bucket(first), self._bucket_end(end), self._bucket(covered))
            successor = cells.successor[which]
            others = successor != cells.bucket[which]
            for number, selected in enumerate((others, others & cells.by_tombstone[which])):
                oldest[number] = min(oldest[number], int(successor[selected].min(initial=NEVER)))
        parts = [max(covered, int(self._starts[each])) if each < NEVER else -1 for each in oldest]
        superseded, deleted = (max(0, now_ms - int(self._arrivals_ms[part])) if part >= 0 else 0 for part in parts)
        return superseded, deleted


class _Sorted:
    """Some cells, ordered by their successor: those that a cleaning leaves are the last ones."""

    def __init__(self, cells: Cells, selected: Bools) -> None:
        order = np.flatnonzero(selected)
        order = order[np.argsort(cells.successor[order], kind="stable")]
        self.bucket, self.successor, self.by_tombstone = cells.bucket[order], cells.successor[order], cells.by_tombstone[order]
        self.records, self.bytes = cells.records[order].astype(np.float64), cells.bytes[order].astype(np.float64)

    def remaining(self, first: int, end: int, share: float) -> tuple[Floats, Floats]:
        """Records and bytes of each of the buckets ``[first, end)`` that none in the buckets before ``end`` supersedes, of
        the last of which only a share counts."""
        start, last = np.searchsorted(self.successor, (end if share == 1 else end - 1, end)).tolist()
        within = start + np.flatnonzero((self.bucket[start:] >= first) & (self.bucket[start:] < end))
        bucket, weights = self.bucket[within] - first, np.where(within < last, 1 - share, 1.0)
        records, plain = (sums_of(bucket, column[within] * weights, end - first) for column in (self.records, self.bytes))
        return records, plain

    def superseded(self, first: int, end: int, covered: int = 0) -> Int64s:
        """The cells of records in the buckets from ``first`` on that are superseded in the buckets ``[covered, end)``."""
        start, stop = np.searchsorted(self.successor, (covered, end)).tolist()
        within: Int64s = start + np.flatnonzero(self.bucket[start:stop] >= first)
        return within


def _ratio(part: Int64s | Floats, whole: Int64s | Floats, otherwise: float) -> Floats:
    """``part / whole``; where that is not defined, another value."""
    ratio: Floats = np.divide(part, whole, out=np.full(len(whole), float(otherwise)), where=whole > 0)
    return ratio


def _density_by_size(compressed: Int64s) -> Floats:
    """float64[k, 2], ascending: uncompressed bytes of records in a batch, and the mean of compressed bytes for each of them."""
    _, number, counts = np.unique((2 * np.log2(compressed[:, 0])).astype(np.int64), return_inverse=True, return_counts=True)
    plain, packed = (np.bincount(number, weights=column) for column in compressed.T)
    return np.stack([plain / counts, packed / plain], axis=1)


def _varint_bytes(values: Int64s) -> Int64s:
    """The bytes of signed numbers as varints (zigzag)."""
    zigzag: NDArray[np.uint64] = (values << 1 ^ values >> 63).astype(np.uint64)
    sizes = np.ones(len(values), np.int64)
    for bits in range(7, 64, 7):
        sizes += zigzag >> np.uint64(bits) > 0
    return sizes


def _transactions(columns: Int64s) -> tuple[Int64s, Int64s]:
    """The number of the transaction of each part of one batch, -1 for none: a marker has that of the data before it. And
    ``Parts.stable``."""
    numbers, stable = np.full(len(columns), -1, np.int64), np.arange(len(columns) + 1)
    # by producer, the number of its open transaction, and its first part
    begun: dict[int, tuple[int, int]] = {}
    count = 0
    for part in np.flatnonzero(columns[:, IN_TXN] > 0).tolist():
        producer = int(columns[part, PRODUCER])
        if producer not in begun:
            begun[producer], count = (count, part), count + 1
        numbers[part], first = begun[producer]
        if columns[part, CONTROLS]:
            # it was open until this marker arrived
            stable[first + 1 : part + 1] = np.minimum(stable[first + 1 : part + 1], first)
            del begun[producer]
    for _, first in begun.values():
        stable[first + 1 :] = np.minimum(stable[first + 1 :], first)
    return numbers, stable
