"""Reads and verifies the index files of a segment and its producer snapshot; yields a ``Row`` per entry.

Mirrors ``DumpLogSegments.dumpIndex``, ``dumpTimeIndex``, ``dumpTxnIndex`` and ``dumpProducerIdSnapshot`` with
``AbstractIndex``, ``OffsetIndex``, ``TimeIndex`` and ``TransactionIndex`` (Kafka 4.3.1). Differences: if an index or log is
missing, Kafka's tool creates an empty file and fails; this one writes nothing. For each time index entry, Kafka's tool scans
the rest of the log and fails at any damage; this one reads only up to the entry's batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compaction.dumping.batch_reader import BatchReader, LocatedBatch
from compaction.dumping.findings import MISMATCH, NOT_FOUND, OUT_OF_ORDER, TIMESTAMP, Findings, Row
from compaction.dumping.segment_dump import optional_long
from compaction.dumping.targets import Target
from compaction.errors import CorruptLogError
from compaction.files.filesystem import FileSystem
from compaction.files.text_files import MAX_INDEX_BYTES, read_small
from compaction.formats.indexes import OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY
from compaction.formats.primitives import FormatError
from compaction.formats.producer_snapshot import ProducerEntry, read_snapshot
from compaction.names import INDEX, LOG

#: Kafka's default of ``--max-message-size``
MAX_MESSAGE_BYTES = 5 * 1024 * 1024
#: a broker rebuilds all indexes of a segment without ``.index``, and only then (``LogSegment.sanityCheck``)
REBUILD_HINT = (
    "if a broker is running, it may be writing to it: run again; else remove the segment's .index,"
    " and a broker rebuilds all its indexes when it loads the log"
)
#: ``AbstractIndex.warmEntries`` of an offset index
_WARM_ENTRIES = 8192 // OFFSET_ENTRY.size
_CHUNK_ENTRIES = 1 << 14
_SEQUENCES = 1 << 31
_NO_TIMESTAMP = -1
_ABORTED_FIELDS = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")
_LOW_OFFSET = "its last offset is below its base offset"


@dataclass(frozen=True)
class IndexView:
    """The dump of an index: only the sanity check of a starting broker, verification only, or (default) printing and
    verification."""

    sanity_check: bool = False
    verify_only: bool = False
    max_message_bytes: int = MAX_MESSAGE_BYTES


def dump_offset_index(fs: FileSystem, target: Target, view: IndexView, findings: Findings) -> Iterator[Row]:
    """Rows for an offset index; adds entries that do not match their batch to ``findings``.

    :raises CorruptLogError: the index fails the sanity check, or an entry does not point at a batch
    """
    batches = BatchReader(fs, target.sibling(LOG))
    base = target.base_offset or 0
    entries = OFFSET_ENTRY.array(_read(fs, target.path))
    if not len(entries):
        yield Row("empty", {}, f"{target.shown} is empty.")
        return
    if view.sanity_check:
        yield _sanity_check(fs, target, OFFSET_ENTRY.size, "" if entries["relative_offset"][-1] >= 0 else _LOW_OFFSET)
        return
    wrong: list[int] = []
    unused = _is_unused(entries)
    for number, (relative, position) in enumerate(_rows(entries)):
        if (number and relative == 0) or (unused and batches.batch_at(0, batches.size) is None):
            break
        batch = _batch_of_entry(batches, target, (number, position), view.max_message_bytes)
        if batch.last_offset != base + relative:
            wrong.append(number)
            findings.add(MISMATCH, target.absolute, (base + relative, batch.last_offset))
        if not view.verify_only:
            yield Row("offsetIndexEntry", {"offset": base + relative, "position": position})
    if not unused:
        _note(findings, target, wrong, OFFSET_ENTRY.size, "do not point at the batch with their offset")


def dump_time_index(fs: FileSystem, target: Target, view: IndexView, findings: Findings) -> Iterator[Row]:
    """Rows for a time index; adds entries that disagree with the log to ``findings``.

    :raises CorruptLogError: the index fails the sanity check, or the log cannot be read at the position of an entry
    """
    batches = BatchReader(fs, target.sibling(LOG))
    base = target.base_offset or 0
    positions = _Positions(batches, _read(fs, target.sibling(INDEX)), target.sibling(INDEX))
    entries = TIME_ENTRY.array(_read(fs, target.path))
    if view.sanity_check:
        problem = ""
        if len(entries) and entries["timestamp"][-1] < entries["timestamp"][0]:
            problem = "its last timestamp is below its first"
        elif len(entries) and entries["relative_offset"][-1] < 0:
            problem = _LOW_OFFSET
        yield _sanity_check(fs, target, TIME_ENTRY.size, problem)
        return
    wrong: list[int] = []
    before = _NO_TIMESTAMP
    for number, (timestamp, relative) in enumerate(_rows(entries)):
        if number and relative == 0:
            break
        found = _time_findings(batches, positions.find(relative, base), (timestamp, base + relative, before))
        for kind, pair in found:
            findings.add(kind, target.absolute, pair)
        wrong += [number] if found else []
        if not view.verify_only:
            yield Row("timeIndexEntry", {"timestamp": timestamp, "offset": base + relative})
        before = timestamp
    if not _is_unused(entries):
        _note(findings, target, wrong, TIME_ENTRY.size, "disagree with the log")


def dump_txn_index(fs: FileSystem, target: Target) -> Iterator[Row]:
    """Rows for a transaction index; ignores an incomplete entry at the end.

    :raises CorruptLogError: an entry has an unknown version
    """
    entries = TXN_ENTRY.array(_read(fs, target.path)).tolist()
    # Kafka reads only the first byte of the version
    versions = [(entry[0] >> 8, number) for number, entry in enumerate(entries)]
    for version, number in versions:
        if version > 0:
            message, position = f"entry has the unknown version {version}", number * TXN_ENTRY.size
            raise CorruptLogError(message, path=target.path, position=position, hint=REBUILD_HINT)
    for (version, _), (_, *values) in zip(versions, entries, strict=True):
        yield Row("abortedTransaction", {"version": version, **dict(zip(_ABORTED_FIELDS, values, strict=True))})


def dump_snapshot(fs: FileSystem, target: Target) -> Iterator[Row]:
    """Rows for a producer snapshot.

    :raises CorruptLogError: the file is malformed
    """
    try:
        entries = read_snapshot(_read(fs, target.path))
    except FormatError as error:
        hint = "remove it: a broker reads the producers from the log or an earlier snapshot"
        raise CorruptLogError(error.message, path=target.path, position=error.position, hint=hint) from None
    for entry in entries:
        yield _producer_row(entry)


def _producer_row(entry: ProducerEntry) -> Row:
    open_txn = entry.current_txn_first_offset if entry.current_txn_first_offset >= 0 else None
    fields = {
        "producerId": entry.producer_id,
        "producerEpoch": entry.producer_epoch,
        "coordinatorEpoch": entry.coordinator_epoch,
        "currentTxnFirstOffset": open_txn,
        "lastTimestamp": entry.last_timestamp_ms,
    }
    if entry.last_data_offset >= 0:
        fields |= {
            "firstSequence": (entry.last_sequence - entry.offset_delta) % _SEQUENCES,
            "lastSequence": entry.last_sequence,
            "lastOffset": entry.last_data_offset,
            "offsetDelta": entry.offset_delta,
            "timestamp": entry.last_timestamp_ms,
        }
    shown = Row("", {**fields, "currentTxnFirstOffset": optional_long(open_txn)})
    return Row("producer", fields, shown.text)


class _Positions:
    """Finds the first batch that ends at or after an offset, by the offset index."""

    def __init__(self, batches: BatchReader, index: bytes, path: str) -> None:
        self._batches, self._path = batches, path
        entries = OFFSET_ENTRY.array(index)
        self._offsets, self._positions = entries["relative_offset"], entries["position"]
        self._start, self._offset = -1, 0
        self._position = 0

    def find(self, relative: int, base: int) -> LocatedBatch | None:
        """The batch; ``None`` if all end before the offset."""
        slot = lower_slot(self._offsets, relative)
        start = 0 if slot < 0 else int(self._positions[slot])
        if not 0 <= start <= self._batches.size:
            raise CorruptLogError(
                f"index entry points at byte {start}, outside the log",
                path=self._path, position=slot * OFFSET_ENTRY.size, hint=REBUILD_HINT,
            )  # fmt: skip
        offset = base + relative
        # a search from the same position for a later offset continues after the batches already read
        if start != self._start or offset < self._offset:
            self._position = start
        self._start, self._offset = start, offset
        for batch in self._batches.batches(self._position, self._batches.size):
            if batch.last_offset >= offset:
                return batch
            self._position = batch.end
        return None


def lower_slot(offsets: NDArray[np.int32], relative: int) -> int:
    """The last entry at or below a relative offset by binary search, -1 for none.

    Repeats the steps of ``AbstractIndex.indexSlotRangeFor``, to give the same result if entries are not sorted.
    """
    if not len(offsets):
        return -1
    hot = max(0, len(offsets) - 1 - _WARM_ENTRIES)
    low, high = 0, hot
    if offsets[hot] < relative:
        low, high = hot, len(offsets) - 1
    elif offsets[0] > relative:
        return -1
    while low < high:
        middle = (low + high + 1) >> 1
        offset = offsets[middle]
        if offset == relative:
            return middle
        low, high = (low, middle - 1) if offset > relative else (middle, high)
    return low


def _time_findings(
    batches: BatchReader, batch: LocatedBatch | None, entry: tuple[int, int, int]
) -> list[tuple[str, tuple[int, int]]]:
    """The findings of an entry (timestamp, offset, timestamp of the previous entry) that disagrees with its batch."""
    timestamp, offset, before = entry
    if batch is None or batch.last_offset != offset:
        return [(NOT_FOUND, (offset, -1 if batch is None else batch.last_offset))]
    largest = batches.largest_timestamp(batch)
    found = [(TIMESTAMP, (timestamp, largest))] if largest != timestamp else []
    return found + ([(OUT_OF_ORDER, (timestamp, before))] if before >= timestamp else [])


def _batch_of_entry(batches: BatchReader, target: Target, entry: tuple[int, int], max_bytes: int) -> LocatedBatch:
    number, position = entry
    if 0 <= position <= batches.size:
        batch = batches.batch_at(position, min(batches.size, position + max_bytes))
        if batch is not None:
            return batch
        batch_beyond_limit = batches.batch_at(position, batches.size)
        if batch_beyond_limit is not None:
            raise CorruptLogError(
                f"batch of {batch_beyond_limit.size} bytes is larger than --max-message-size {max_bytes}",
                path=target.sibling(LOG), position=position, hint="give a larger --max-message-size",
            )  # fmt: skip
    raise CorruptLogError(
        f"index entry points at byte {position}, where the log has no batch",
        path=target.path, position=number * OFFSET_ENTRY.size, hint=REBUILD_HINT,
    )  # fmt: skip


def _sanity_check(fs: FileSystem, target: Target, entry_bytes: int, problem: str) -> Row:
    """:raises CorruptLogError: there is a ``problem``, or the file ends within an entry"""
    status = fs.stat(target.path)
    size = 0 if status is None else status.size
    if not problem and size % entry_bytes:
        problem = f"its size of {size} bytes is not a multiple of {entry_bytes}"
    if problem:
        raise CorruptLogError(f"fails the sanity check: {problem}", path=target.path, hint=REBUILD_HINT)
    return Row("sanityCheck", {"passed": True}, f"{target.shown} passed sanity check.")


def _is_unused(entries: NDArray[np.void]) -> bool:
    """Whether an index is preallocated, as of an active segment, and has no entry yet. Kafka's tool reads an entry of zeros and
    reports it; no broker reads it."""
    return not np.frombuffer(entries.tobytes(), np.uint8).any()


def _note(findings: Findings, target: Target, wrong: list[int], entry_bytes: int, problem: str) -> None:
    if wrong:
        text = f"{len(wrong)} of the index's entries {problem}; this is the first"
        findings.errors.append(CorruptLogError(text, path=target.path, position=wrong[0] * entry_bytes, hint=REBUILD_HINT))


def _rows(entries: NDArray[np.void]) -> Iterator[tuple[int, ...]]:
    """The entries as tuples, in chunks, because a preallocated index may be large."""
    for start in range(0, len(entries), _CHUNK_ENTRIES):
        yield from entries[start : start + _CHUNK_ENTRIES].tolist()


def _read(fs: FileSystem, path: str) -> bytes:
    if fs.stat(path) is None:
        raise CorruptLogError("the segment's index is missing", path=path, hint="put it next to the segment's log")
    return read_small(fs, path, REBUILD_HINT, MAX_INDEX_BYTES)
