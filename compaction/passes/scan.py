"""Reads a slice once: its decoded batches are passed through a list of sinks.

A *sink* is one use of the batches: it builds a map, counts, matches keys, or cleans. It selects batches by their headers, and
takes them decoded, a bounded number of bytes at a time. ``Entries`` is the common part of sinks that need hashes of keys.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from compaction.engine import Reading
from compaction.errors import CorruptLogError, LogError, as_log_error
from compaction.files.filesystem import ReadableFileSystem
from compaction.files.segment_file import Block, SegmentFile
from compaction.formats.record_batch import CONTROL, MAGIC, TRANSACTIONAL
from compaction.kernels.keys import HashSecret
from compaction.kernels.records import KEYLESS, LOOKUPS_ONLY, MAP, MESSAGES, SKIP, scan_records
from compaction.kernels.tables import ENTRY_WORDS
from compaction.passes.decoder import CHANGED, Decoded, Decoder, check_count, check_message_crcs, check_offsets, corrupt_record
from compaction.passes.tasks import Key, MapContext, MapSettings, Packed, Slice, SliceSummary
from compaction.passes.throttle import Throttle
from compaction.rules.transactions import KEYLESS_ROW, TXN_ROW, keyless_rows, summarise

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

#: packed entries of a shard of a map, emitted while a task runs
Emitted = tuple[Key, Any]
Emitting = Generator[Emitted, None, T]

_ENTRIES = 1 << 14


class Sink(Protocol):
    """One use of the batches of a slice."""

    def begin(self, block: Block) -> NDArray[np.bool_]:
        """bool[r], the batches of ``block`` whose records are read, by their headers."""

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        """Read decoded batches of that block, among them batches that only other sinks selected. Callers consume the result."""


def scan(
    slice_: Slice, sinks: Sequence[Sink], files: ReadableFileSystem, throttle: Throttle, *, check_crc: bool = True
) -> Generator[Emitted, None, str]:
    """Yields what the sinks emit; returns the fingerprint of the slice.

    :param check_crc: if not set, sinks check the CRCs of the v2 batches that they read
    :raises LogError: the slice cannot be read, or does not have the fingerprint of an earlier read, or a sink failed
    """
    position, next_offset = slice_.start, slice_.first_offset
    try:
        with SegmentFile(files, slice_.path).reader(slice_.start, slice_.end) as reader:
            decoder = Decoder()
            for block in reader.blocks(check_crc=check_crc):
                position = block.position
                throttle.count(len(block.raw))
                if not check_crc:
                    check_message_crcs(block)
                for batches in decoder.as_v2(block):
                    next_offset = check_offsets(batches, next_offset, slice_.end_offset)
                    yield from _through(sinks, batches, decoder)
            fingerprint = reader.fingerprint()
    except Exception as error:
        failure = as_log_error(error, slice_.path, position)
        if failure is error:
            raise
        raise failure from error
    if slice_.fingerprint not in (None, fingerprint):
        message = "segment is not the one that was read before"
        raise CorruptLogError(message, path=slice_.path, position=slice_.start, hint=CHANGED)
    return fingerprint


def _through(sinks: Sequence[Sink], block: Block, decoder: Decoder) -> Iterator[Emitted]:
    selected = np.zeros(len(block.rows), np.bool_)
    for sink in sinks:
        selected |= sink.begin(block)
    for decoded in decoder.decode(block, selected):
        for sink in sinks:
            yield from sink.take(decoded)


def finish(scanning: Generator[Emitted, None, T]) -> T:
    """The result of a scan whose sinks emit nothing."""
    try:
        key, _ = next(scanning)
    except StopIteration as end:
        result: T = end.value
        return result
    raise ValueError(f"map {key} has spilled")


class TxnRows:
    """The ``TXN_ROW`` summary of a slice, by batch headers alone."""

    def __init__(self, segment_index: int) -> None:
        self._segment_index = segment_index
        self._rows = [np.empty(0, TXN_ROW)]

    def begin(self, block: Block) -> NDArray[np.bool_]:
        self._rows.append(summarise(block.rows, self._segment_index))
        return np.zeros(len(block.rows), np.bool_)

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        return ()

    def result(self) -> NDArray[np.void]:
        return np.concatenate(self._rows)


def scan_transactions(slices: Iterable[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
    """The ``TXN_ROW`` summaries of slices, for logs whose aborted transactions must be known before the map is built. Pass 1
    verifies checksums."""
    summaries = []
    for slice_ in slices:
        txns = TxnRows(slice_.segment_index)
        try:
            with SegmentFile(files, slice_.path).reader(slice_.start, slice_.end) as reader:
                for block in reader.blocks(check_crc=False):
                    txns.begin(block)
            summaries.append(SliceSummary(slice_.log, txn_rows=txns.result()))
        except Exception as error:
            summaries.append(SliceSummary(slice_.log, error=str(as_log_error(error, slice_.path, slice_.start))))
    return summaries


class _BatchCounts:
    """The number of records of a slice, with markers, by batch headers; of magic 0 and 1, wrappers are decompressed."""

    def __init__(self) -> None:
        self.records = 0

    def begin(self, block: Block) -> NDArray[np.bool_]:
        self.records += int(block.rows["count"].sum())
        return np.zeros(len(block.rows), np.bool_)

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        return ()


def count_records(slices: Iterable[Slice], files: ReadableFileSystem, bytes_per_second: float) -> list[tuple[int, int | None]]:
    """The number of each slice's log, and that of its records, with markers; ``None`` if it cannot be read."""
    results: list[tuple[int, int | None]] = []
    for slice_ in slices:
        counts = _BatchCounts()
        try:
            finish(scan(slice_, [counts], files, Throttle(bytes_per_second), check_crc=False))
            results.append((slice_.log, counts.records))
        except LogError as error:
            _LOG.warning("the records of an expired segment are not counted: %s", error)
            results.append((slice_.log, None))
    return results


class RecordCounts:
    """Counts of the records of a slice: ``counters`` are those of ``scan_records``."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.counters = np.zeros(2, np.int64)
        self.keyless_rows = [np.empty(0, KEYLESS_ROW)]

    def add_keyless(self, rows: NDArray[np.void], keyless: NDArray[np.int32]) -> None:
        if keyless.any():
            self.keyless_rows.append(keyless_rows(rows, keyless))


class ShardReadings:
    """Sends what a task has read for some maps with their entries, to each of the ``shards`` of each map."""

    def __init__(self, shards: Mapping[int, int]) -> None:
        self._shards = shards
        self._arrays: Counter[Key] = Counter()

    def counted(self, emitting: Emitting[T]) -> Emitting[T]:
        """Counts the entries that pass through."""
        while True:
            try:
                key, value = next(emitting)
            except StopIteration as end:
                result: T = end.value
                return result
            self._arrays[key] += 1
            yield key, value

    def result(self, slices: Sequence[Slice], summaries: Iterable[SliceSummary]) -> Iterator[Emitted]:
        for number, reading in readings(slices, summaries).items():
            for shard in range(self._shards[number]):
                yield (number, shard), replace(reading, items=self._arrays[number, shard])


def readings(slices: Iterable[Slice], summaries: Iterable[SliceSummary]) -> dict[int, Reading]:
    """What a task has read for each map, given the summaries of its slices."""
    by_id = {summary.slice_id: summary for summary in summaries}
    by_map: dict[int, list[Slice]] = {}
    for part in slices:
        for number in part.maps or (part.log,):
            by_map.setdefault(number, []).append(part)
    return {
        number: Reading.of(
            own[0].path,
            [(tuple(part.id), by_id[part.id].fingerprint) for part in own],
            next((error for part in own if (error := by_id[part.id].error) is not None), None),
        )
        for number, own in by_map.items()
    }


class RecordSink(Sink, Protocol):
    """A sink that reads all records but those of markers, and counts them."""

    counts: RecordCounts


def scan_records_of(
    slice_: Slice, sinks: Sequence[RecordSink], other_sinks: Sequence[Sink], settings: MapSettings, throttle: Throttle
) -> Generator[Emitted, None, SliceSummary]:
    """Scan a slice of pass 1; returns its summary, with the error if it cannot be read. The counts are those of the first sink:
    they do not depend on the map."""
    started_s, txns = throttle.now_s(), TxnRows(slice_.segment_index)
    for sink in sinks:
        sink.counts.clear()
    try:
        fingerprint = yield from scan(slice_, [*sinks, txns, *other_sinks], settings.files, throttle)
    except LogError as error:
        return SliceSummary(slice_.log, error=str(error), slice_id=slice_.id)
    counts = sinks[0].counts
    messages, keyless = counts.counters[[MESSAGES, KEYLESS]].tolist()
    return SliceSummary(
        slice_.log, messages, keyless, txns.result(), np.concatenate(counts.keyless_rows),
        slice_id=slice_.id, fingerprint=fingerprint, seconds=throttle.now_s() - started_s,
    )  # fmt: skip


def in_portions(decoded: Decoded, read: Callable[[int], tuple[int, int, T]], enlarge: Callable[[int], None]) -> Iterator[T]:
    """The results of ``read`` for decoded batches, as many at a time as fit its buffers.

    :param read: called with the first row; returns the next row, an error of ``RECORD_ERRORS`` and its result. It returns the
        first row if its buffers are too small for that batch
    :param enlarge: called with the number of records that the buffers must hold
    """
    rows, row = decoded.rows, 0
    while row < len(rows):
        next_row, error, result = read(row)
        if error:
            raise corrupt_record(error, rows[next_row], decoded.block.path)
        yield result
        if next_row == row:
            check_count(decoded, row)
            enlarge(int(rows[row]["count"]))
        row = next_row


class Entries:
    """Makes map entries and lookups of the records of decoded batches, in reused buffers."""

    def __init__(self, log: MapContext, secret: HashSecret) -> None:
        self.counts = RecordCounts()
        self._log, self._secret = log, secret.state()
        self._actions = np.empty(0, np.uint8)
        self._enlarge(_ENTRIES)

    def _enlarge(self, records: int) -> None:
        self._entries = np.empty((records, ENTRY_WORDS), np.uint64)
        self._lookups = np.empty((records, ENTRY_WORDS), np.uint64)

    def begin(self, block: Block) -> NDArray[np.bool_]:
        """See ``Sink``. Markers are in no map; aborted data is only looked up."""
        rows = block.rows
        self._actions = np.full(len(rows), MAP, np.uint8)
        attributes = rows["attributes"]
        if self._log.aborted is not None and len(self._log.aborted):
            transactional = (attributes & TRANSACTIONAL) != 0
            aborted = self._log.aborted.contains(rows["producer_id"], rows["last_offset"])
            self._actions[transactional & aborted] = LOOKUPS_ONLY
        self._actions[((attributes & CONTROL) != 0) & (rows["magic"] >= MAGIC)] = SKIP
        selected: NDArray[np.bool_] = self._actions != SKIP
        return selected

    def of(self, decoded: Decoded) -> Iterator[tuple[Packed, Packed]]:
        """Map entries and lookups, each uint64[n, 3]; valid until the next ones."""
        rows, first = decoded.rows, decoded.first_row
        actions, keyless = self._actions[first : first + len(rows)], np.zeros(len(rows), np.int32)
        batches = decoded.block.raw, decoded.scratch, rows, decoded.spans, actions, self._log.first_dirty_offset

        def read(first_row: int) -> tuple[int, int, tuple[Packed, Packed]]:
            next_row, n, m, error = scan_records(
                *batches, first_row, self._entries, self._lookups, keyless, self.counts.counters, self._secret
            )
            return next_row, error, (self._entries[:n], self._lookups[:m])

        yield from in_portions(decoded, read, self._enlarge)
        self.counts.add_keyless(rows, keyless)
