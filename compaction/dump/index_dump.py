"""Dumps and verifies the index files of a segment and its producer snapshot.

Mirrors ``DumpLogSegments.dumpIndex``, ``dumpTimeIndex``, ``dumpTxnIndex`` and ``dumpProducerIdSnapshot`` with
``AbstractIndex``, ``OffsetIndex``, ``TimeIndex`` and ``TransactionIndex`` (Kafka 4.3.0). Differences: where an index or log is
missing Kafka's tool makes an empty file and dies, here nothing is written; and each time index entry costs it a walk to the end
of the log, so that it dies of damage anywhere behind, where here only the batches up to the entry's are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compaction.dump.batch_reader import BatchAt, BatchReader
from compaction.dump.findings import Findings
from compaction.dump.targets import Target
from compaction.errors import CorruptLogError
from compaction.formats.indexes import OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.producer_snapshot import SnapshotEntry, read_snapshot
from compaction.fs.filesystem import FileSystem
from compaction.fs.text_files import MAX_INDEX_BYTES, read_small
from compaction.names import INDEX, LOG

#: Kafka's default of ``--max-message-size``
MAX_MESSAGE_BYTES = 5 * 1024 * 1024
REBUILD_HINT = "remove it: a broker builds it anew when it loads the log"
#: ``AbstractIndex.warmEntries`` of an offset index
_WARM_ENTRIES = 8192 // OFFSET_ENTRY.size
_CHUNK_ENTRIES = 1 << 14
_SEQUENCES = 1 << 31
_NO_TIMESTAMP = -1
_LOW_OFFSET = "its last offset is below its base offset"


@dataclass(frozen=True)
class IndexView:
    """What to do with an index: check it as a broker does when it starts, verify it without printing it, or both print and
    verify."""

    sanity_check: bool = False
    verify_only: bool = False
    max_message_bytes: int = MAX_MESSAGE_BYTES


def dump_offset_index(fs: FileSystem, target: Target, view: IndexView, findings: Findings) -> Iterator[str]:
    """Lines for an offset index; entries that do not point at their batch go to ``findings``.

    :raises CorruptLogError: the index fails the sanity check, or an entry points at no batch
    """
    batches = BatchReader(fs, target.sibling(LOG))
    base = _base_offset(target)
    entries = OFFSET_ENTRY.array(_read(fs, target.path))
    if not len(entries):
        yield f"{target.shown} is empty."
        return
    if view.sanity_check:
        _check(fs, target, OFFSET_ENTRY.size, "" if entries["relative_offset"][-1] >= 0 else _LOW_OFFSET)
        yield f"{target.shown} passed sanity check."
        return
    wrong: list[int] = []
    for number, (relative, position) in enumerate(_rows(entries)):
        if number and relative == 0:
            break
        batch = _batch_of_entry(batches, target, (number, position), view.max_message_bytes)
        if batch.last_offset != base + relative:
            wrong.append(number)
            findings.mismatches.setdefault(target.absolute, {})[base + relative] = batch.last_offset
        if not view.verify_only:
            yield f"offset: {base + relative} position: {position}"
    _note(findings, target, wrong, OFFSET_ENTRY.size, "do not point at the batch with their offset")


def dump_time_index(fs: FileSystem, target: Target, view: IndexView, findings: Findings) -> Iterator[str]:
    """Lines for a time index; entries that disagree with the log go to ``findings``.

    :raises CorruptLogError: the index fails the sanity check, or the log cannot be read where an entry points
    """
    batches = BatchReader(fs, target.sibling(LOG))
    base = _base_offset(target)
    positions = _Positions(batches, _read(fs, target.sibling(INDEX)), target.sibling(INDEX))
    entries = TIME_ENTRY.array(_read(fs, target.path))
    if view.sanity_check:
        _check(fs, target, TIME_ENTRY.size, _insane_times(entries))
        yield f"{target.shown} passed sanity check."
        return
    wrong: list[int] = []
    before = _NO_TIMESTAMP
    for number, (timestamp, relative) in enumerate(_rows(entries)):
        if number and relative == 0:
            break
        if not _verify_time(batches, positions.find(relative, base), (timestamp, base + relative, before), (target, findings)):
            wrong.append(number)
        if not view.verify_only:
            yield f"timestamp: {timestamp} offset: {base + relative}"
        before = timestamp
    _note(findings, target, wrong, TIME_ENTRY.size, "disagree with the log")


def dump_txn_index(fs: FileSystem, target: Target) -> Iterator[str]:
    """Lines for a transaction index; a torn entry at the end is left out.

    :raises CorruptLogError: an entry has an unknown version
    """
    entries = TXN_ENTRY.array(_read(fs, target.path)).tolist()
    # Kafka reads the version's first byte alone
    versions = [(entry[0] >> 8, number) for number, entry in enumerate(entries)]
    for version, number in versions:
        if version > 0:
            what, position = f"entry has version {version}, which is not known", number * TXN_ENTRY.size
            raise CorruptLogError(what, path=target.path, position=position, hint=REBUILD_HINT)
    for (version, _), (_, producer, first, last, stable) in zip(versions, entries, strict=True):
        yield f"version: {version} producerId: {producer} firstOffset: {first} lastOffset: {last} lastStableOffset: {stable}"


def dump_snapshot(fs: FileSystem, target: Target) -> Iterator[str]:
    """Lines for a producer snapshot.

    :raises CorruptLogError: the file is not what the format says
    """
    try:
        entries = read_snapshot(_read(fs, target.path))
    except FormatError as error:
        hint = "remove it: a broker reads the producers from the log or an earlier snapshot"
        raise CorruptLogError(error.what, path=target.path, position=error.position, hint=hint) from None
    for entry in entries:
        yield _producer_line(entry)


def _producer_line(entry: SnapshotEntry) -> str:
    first = entry.current_txn_first_offset
    shown = f"OptionalLong[{first}]" if first >= 0 else "OptionalLong.empty"
    line = (
        f"producerId: {entry.producer_id} producerEpoch: {entry.epoch} coordinatorEpoch: {entry.coordinator_epoch}"
        f" currentTxnFirstOffset: {shown} lastTimestamp: {entry.timestamp}"
    )
    if entry.last_offset < 0:
        return line
    first_sequence = (entry.last_sequence - entry.offset_delta) % _SEQUENCES
    return (
        f"{line} firstSequence: {first_sequence} lastSequence: {entry.last_sequence} lastOffset: {entry.last_offset}"
        f" offsetDelta: {entry.offset_delta} timestamp: {entry.timestamp}"
    )


class _Positions:
    """Finds the first batch that ends at or after an offset, from where an offset index says on."""

    def __init__(self, batches: BatchReader, index: bytes, path: str) -> None:
        self._batches, self._path = batches, path
        entries = OFFSET_ENTRY.array(index)
        self._offsets, self._positions = entries["relative_offset"], entries["position"]
        self._start, self._offset = -1, 0
        self._position = 0

    def find(self, relative: int, base: int) -> BatchAt | None:
        """The batch, ``None`` where all end before."""
        slot = lower_slot(self._offsets, relative)
        start = 0 if slot < 0 else int(self._positions[slot])
        if not 0 <= start <= self._batches.size:
            raise CorruptLogError(
                f"index entry points at byte {start}, which the log does not have",
                path=self._path, position=slot * OFFSET_ENTRY.size, hint=REBUILD_HINT,
            )  # fmt: skip
        offset = base + relative
        # a walk from the same place for a later offset would pass the same batches first
        if start != self._start or offset < self._offset:
            self._position = start
        self._start, self._offset = start, offset
        while (batch := self._batches.batch_at(self._position, self._batches.size)) is not None:
            if batch.last_offset >= offset:
                return batch
            self._position = batch.end
        return None


def lower_slot(offsets: NDArray[np.int32], relative: int) -> int:
    """The last entry at or below a relative offset by binary search, -1 for none.

    Mirrors ``AbstractIndex.indexSlotRangeFor`` step by step, so that an index whose entries do not ascend gives the same.
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
        found = offsets[middle]
        if found == relative:
            return middle
        low, high = (low, middle - 1) if found > relative else (middle, high)
    return low


def _verify_time(
    batches: BatchReader, batch: BatchAt | None, entry: tuple[int, int, int], place: tuple[Target, Findings]
) -> bool:
    """Hold an entry (timestamp, offset, timestamp of the entry before) against its batch: whether it is right."""
    timestamp, offset, before = entry
    target, findings = place
    if batch is None or batch.last_offset != offset:
        found = -1 if batch is None else batch.last_offset
        findings.not_found.setdefault(target.absolute, []).append((offset, found))
        return False
    largest = batches.largest_timestamp(batch)
    if largest != timestamp:
        findings.timestamps.setdefault(target.absolute, []).append((timestamp, largest))
    if before >= timestamp:
        findings.out_of_order.setdefault(target.absolute, []).append((timestamp, before))
    return largest == timestamp > before


def _batch_of_entry(batches: BatchReader, target: Target, entry: tuple[int, int], max_bytes: int) -> BatchAt:
    number, position = entry
    if 0 <= position <= batches.size:
        batch = batches.batch_at(position, min(batches.size, position + max_bytes))
        if batch is not None:
            return batch
        whole = batches.batch_at(position, batches.size)
        if whole is not None:
            raise CorruptLogError(
                f"batch of {whole.size} bytes is larger than --max-message-size {max_bytes}",
                path=target.sibling(LOG), position=position, hint="give a larger --max-message-size",
            )  # fmt: skip
    raise CorruptLogError(
        f"index entry points at byte {position}, where the log has no batch",
        path=target.path, position=number * OFFSET_ENTRY.size, hint=REBUILD_HINT,
    )  # fmt: skip


def _insane_times(entries: NDArray[np.void]) -> str:
    """Why ``TimeIndex.sanityCheck`` refuses the index, if it does."""
    if len(entries) and entries["timestamp"][-1] < entries["timestamp"][0]:
        return "its last timestamp is below its first"
    return _LOW_OFFSET if len(entries) and entries["relative_offset"][-1] < 0 else ""


def _check(fs: FileSystem, target: Target, entry_bytes: int, problem: str) -> None:
    found = fs.stat(target.path)
    size = 0 if found is None else found.size
    if not problem and size % entry_bytes:
        problem = f"its size of {size} bytes is not a multiple of {entry_bytes}"
    if problem:
        raise CorruptLogError(f"fails the sanity check: {problem}", path=target.path, hint=REBUILD_HINT)


def _note(findings: Findings, target: Target, wrong: list[int], entry_bytes: int, what: str) -> None:
    if wrong:
        text = f"{len(wrong)} of the index's entries {what}, this is the first"
        findings.errors.append(CorruptLogError(text, path=target.path, position=wrong[0] * entry_bytes, hint=REBUILD_HINT))


def _rows(entries: NDArray[np.void]) -> Iterator[tuple[int, ...]]:
    """The entries as plain tuples, so many at a time that a preallocated index does not fill the memory."""
    for start in range(0, len(entries), _CHUNK_ENTRIES):
        yield from entries[start : start + _CHUNK_ENTRIES].tolist()


def _read(fs: FileSystem, path: str) -> bytes:
    if fs.stat(path) is None:
        raise CorruptLogError("the segment's index is missing", path=path, hint="put it beside the others")
    return read_small(fs, path, REBUILD_HINT, MAX_INDEX_BYTES)


def _base_offset(target: Target) -> int:
    base = target.base_offset
    if base is None:
        raise CorruptLogError("the name does not start with the segment's base offset", path=target.path, hint="rename it back")
    return base
