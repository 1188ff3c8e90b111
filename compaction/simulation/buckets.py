"""What remains of each bucket of a log after cleanings: bytes, batches, tombstones, transaction markers.

Exact for buckets of one uncompressed batch: a batch with a surviving record keeps its header, the last batch of an active
producer too; tombstones and markers of transactions without data get a delete horizon, from which their timestamps count then
(rules 2, 5, 6 and 9 of ``compaction.cleaning.record_retention``).

Estimated for others: surviving records are taken to be spread evenly over the batches of a bucket, compressed batches to
compress their remaining records as well as before, and the markers of a bucket to belong to its transactions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compaction.formats.record_batch import HEADER_SIZE
from compaction.simulation.arrivals import (
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
    Int64s,
)

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_LONG_MAX = 2**63 - 1


class Buckets:
    """The buckets of one log, int64[n] each: ``appended``, their bytes when they arrive; ``sizes``, their bytes now.

    :param arrivals_ms: int64[n], when each bucket arrived, ms since the epoch
    """

    def __init__(self, arrivals: Arrivals, arrivals_ms: Int64s, delete_retention_ms: int, producer_expiration_ms: int) -> None:
        columns, cells = arrivals.buckets, arrivals.cells
        self._exact, self._retention_ms, self._expiration_ms = arrivals.exact, delete_retention_ms, producer_expiration_ms
        self._columns = columns
        self._data_cells, self._tombstones = _Sorted(cells, ~cells.tombstone), _Sorted(cells, cells.tombstone)
        self.appended: Int64s = columns[:, STORED] + columns[:, CONTROL_BYTES]
        self.sizes = self.appended.copy()
        count = len(columns)
        self._arrivals_ms = arrivals_ms
        #: batches that hold data, markers
        self._data, self._markers = columns[:, BATCHES].astype(np.float64), columns[:, CONTROLS].astype(np.float64)
        #: 0 for none
        self._horizon, self._marker_horizon = np.zeros(count, np.int64), np.zeros(count, np.int64)
        #: int64[n + 1]: the last stable bucket's end once so many have arrived (Kafka: ``firstUnstableOffset``)
        self.stable: Int64s = np.arange(count + 1)
        self._txn = np.full(count, -1)
        if arrivals.exact:
            self._txn, self.stable = _transactions(columns)
        overhead = HEADER_SIZE * columns[:, BATCHES]
        #: stored bytes of an uncompressed byte of records
        data_bytes, plain = columns[:, STORED] - overhead, columns[:, PLAIN]
        self._density = np.divide(data_bytes, plain, out=np.ones(count), where=plain > 0)

        self._density_by_size = _density_by_size(arrivals.compressed)

    def clean(self, first: int, end: int, log_end: int, now_ms: int) -> None:
        """Clean buckets ``[first, end)`` of a log whose last bucket is ``log_end - 1``."""
        of, columns = slice(first, end), self._columns
        last = self._last_batches(first, end, log_end, now_ms)
        self._clean_markers(of, first, now_ms)
        records, plain = self._data_cells.remaining(first, end)
        tombstones, tombstone_bytes = self._tombstones.remaining(first, end)
        expired = (self._horizon[of] > 0) & (self._horizon[of] <= now_ms)
        tombstones[expired], tombstone_bytes[expired] = 0, 0
        records, plain = records + tombstones, plain + tombstone_bytes
        horizon = self._horizon[of]
        horizon[(tombstones > 0) & (horizon == 0)] = now_ms + self._retention_ms
        batches = columns[of, BATCHES]
        share = np.divide(records, columns[of, RECORDS], out=np.zeros(end - first), where=columns[of, RECORDS] > 0)
        each = np.divide(columns[of, RECORDS], batches, out=np.ones(end - first), where=batches > 0)
        kept = np.where(batches == 1, records > 0, batches * (1 - (1 - share) ** each))
        kept = np.maximum(kept, last & (self._data[of] > 0))
        rebased = np.where(batches == 1, records, np.minimum(records, tombstones * each)) * (horizon > 0)
        grown = rebased * self._growth(of, horizon, np.divide(plain, records, out=np.zeros(end - first), where=records > 0))
        self._data[of] = kept
        data_bytes = HEADER_SIZE * kept + (plain + grown) * self._density_of(of, plain, kept)
        self.sizes[of] = np.rint(data_bytes + self._marker_bytes(of)).astype(np.int64)

    def _density_of(self, of: slice, plain: Floats, kept: Floats) -> Floats:
        """Stored bytes of a remaining byte of records: less of a batch compresses less well."""
        density, whole, batches = self._density[of], self._columns[of, PLAIN], self._columns[of, BATCHES]
        if not len(self._density_by_size):
            unchanged: Floats = density
            return unchanged
        sizes, densities = self._density_by_size.T
        before = np.interp(np.divide(whole, batches, out=np.ones(len(plain)), where=batches > 0), sizes, densities)
        after = np.interp(np.divide(plain, kept, out=np.ones(len(plain)), where=kept > 0), sizes, densities)
        changed: Floats = np.where(plain < whole, density * after / before, density)
        return changed

    def _last_batches(self, first: int, end: int, log_end: int, now_ms: int) -> Bools:
        """bool[end - first]: whether the bucket is the last data batch of a producer that is active."""
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
            total = self._columns[of, BATCHES]
            gone = 1 - np.divide(self._data[of], total, out=np.zeros(len(markers)), where=total > 0)
        expired = (horizon > 0) & (horizon <= now_ms)
        markers[expired] = np.minimum(markers[expired], (self._columns[of, CONTROLS] * (1 - gone))[expired])
        horizon[(gone > 0) & (horizon == 0) & (markers > 0)] = now_ms + self._retention_ms

    def _marker_bytes(self, of: slice) -> Floats:
        controls, horizon = self._columns[of, CONTROLS], self._marker_horizon[of]
        each = np.divide(self._columns[of, CONTROL_BYTES], controls, out=np.zeros(len(controls)), where=controls > 0)
        grown = np.where(horizon > 0, self._growth(of, horizon, each - HEADER_SIZE), 0)
        sizes: Floats = self._markers[of] * (each + grown)
        return sizes

    def _growth(self, of: slice, horizon: Int64s, record_bytes: Floats) -> Floats:
        """By how many bytes a record of a bucket grows when its timestamp counts from the batch's horizon."""
        delta = _varint_bytes(self._columns[of, LARGEST_TIMESTAMP] - horizon) - 1
        size = np.rint(record_bytes).astype(np.int64)
        body = size - np.where(size > 1 + 63, np.where(size > 2 + 8191, 3, 2), 1)
        grown: Floats = (delta + _varint_bytes(body + delta) - _varint_bytes(body)).astype(np.float64)
        return grown

    def delete(self, first: int) -> None:
        """Delete the buckets before ``first``."""
        self.sizes[:first], self._data[:first], self._markers[:first] = 0, 0, 0

    def remaining(self, first: int, end: int) -> tuple[int, int, int]:
        """Of buckets ``[first, end)``: their bytes, and the largest timestamps of the first batch and of all; -1 for none."""
        sizes, largest = self.sizes[first:end], self._columns[first:end, LARGEST_TIMESTAMP]
        present = np.flatnonzero(sizes)
        if not len(present):
            return 0, -1, -1
        return int(sizes.sum()), int(largest[present[0]]), int(largest[present].max())

    def superseded_bytes(self, first: int, end: int, covered: int) -> int:
        """Bytes of superseded records in the buckets ``[first, end)``, of which those before ``covered`` have been cleaned."""
        found = 0.0
        for cells in (self._data_cells, self._tombstones):
            which = cells.superseded(first, end, covered)
            found += float((cells.bytes[which] * self._density[cells.bucket[which]]).sum())
        return int(found)

    def ages(self, first: int, end: int, covered: int, now_ms: int) -> tuple[int, int]:
        """How long ago the oldest remaining superseded record was superseded, ms, and the same by a tombstone; 0 for none."""
        oldest = [NEVER, NEVER]
        for cells in (self._data_cells, self._tombstones):
            which = cells.superseded(first, end, covered)
            successor = cells.successor[which]
            others = successor != cells.bucket[which]
            for number, selected in enumerate((others, others & cells.by_tombstone[which])):
                oldest[number] = min(oldest[number], int(successor[selected].min(initial=NEVER)))
        superseded, deleted = (max(0, now_ms - int(self._arrivals_ms[each])) if each < NEVER else 0 for each in oldest)
        return superseded, deleted


class _Sorted:
    """Some cells, ordered by their successor: those that a cleaning leaves are the last ones."""

    def __init__(self, cells: Cells, selected: Bools) -> None:
        order = np.flatnonzero(selected)
        order = order[np.argsort(cells.successor[order], kind="stable")]
        self.bucket, self.successor, self.by_tombstone = cells.bucket[order], cells.successor[order], cells.by_tombstone[order]
        self.records, self.bytes = cells.records[order].astype(np.float64), cells.bytes[order].astype(np.float64)

    def remaining(self, first: int, end: int) -> tuple[Floats, Floats]:
        """Records and bytes of each of the buckets ``[first, end)`` that are not superseded before ``end``."""
        start = np.searchsorted(self.successor, end)
        within = (self.bucket[start:] >= first) & (self.bucket[start:] < end)
        bucket, count = self.bucket[start:][within] - first, end - first
        return _sums(bucket, self.records[start:][within], count), _sums(bucket, self.bytes[start:][within], count)

    def superseded(self, first: int, end: int, covered: int) -> Int64s:
        """The cells of records in the buckets from ``first`` on that are superseded in ``[covered, end)``."""
        start, stop = np.searchsorted(self.successor, (covered, end)).tolist()
        within: Int64s = start + np.flatnonzero(self.bucket[start:stop] >= first)
        return within


def _sums(index: Int64s, values: Floats, count: int) -> Floats:
    sums: Floats = np.bincount(index, weights=values, minlength=count).astype(np.float64)
    return sums


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
    """The number of the transaction of each bucket of one batch, -1 for none: a marker has that of the data before it. And
    ``Buckets.stable``."""
    numbers, stable = np.full(len(columns), -1, np.int64), np.arange(len(columns) + 1)
    # by producer, the number of its open transaction, and its first bucket
    begun: dict[int, tuple[int, int]] = {}
    count = 0
    for bucket in np.flatnonzero(columns[:, IN_TXN] > 0).tolist():
        producer = int(columns[bucket, PRODUCER])
        if producer not in begun:
            begun[producer], count = (count, bucket), count + 1
        numbers[bucket], first = begun[producer]
        if columns[bucket, CONTROLS]:
            # it was open until this marker arrived
            stable[first + 1 : bucket + 1] = np.minimum(stable[first + 1 : bucket + 1], first)
            del begun[producer]
    for _, first in begun.values():
        stable[first + 1 :] = np.minimum(stable[first + 1 :], first)
    return numbers, stable
