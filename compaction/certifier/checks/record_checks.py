"""Compares the records of one range of offsets before and after cleaning.

A retained record must equal the record of ``before`` at its offset. A missing record must have a reason. Superseded records are
known only after the keys of all ranges are joined, so their keys are emitted (``key_tables``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.certifier.checks.batch_checks import check_batches
from compaction.certifier.checks.erased_keys import ErasedKeys
from compaction.certifier.checks.key_tables import KeyTables, keys_of
from compaction.certifier.checks.log_pair import Bools, Int64s, Rows
from compaction.certifier.checks.offset_ranges import RangeTask
from compaction.certifier.checks.read_chunks import LOG_APPEND_TIME, Chunk, read_chunks
from compaction.certifier.checks.segment_walk import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from compaction.certifier.checks.violations import Findings
from compaction.errors import CorruptLogError, LogError
from compaction.formats.java_text import java_text
from compaction.kernels.reading.locate import HEADERS, KEY, TIMESTAMP, VALUE, compare_records
from compaction.kernels.reading.tables import ABORT, COMMIT

_DIFFERENT = {
    TIMESTAMP: "timestamp of the record differs",
    KEY: "key of the record differs",
    VALUE: "value of the record differs",
    HEADERS: "headers of the record differ",
}
#: reasons that do not depend on other records of the key
BELOW_START, EXPIRED, MARKER, ABORTED, INVALID = "below_log_start", "expired", "marker", "aborted", "invalid"


@dataclass
class RangeResult:
    """Violations and counts of a range: records on both sides, missing ones by reason, and retained ones that could have been
    dropped (``aborted_left``, ``invalid_left``). ``error``: why ``before`` cannot be read."""

    log: int
    findings: Findings = field(default_factory=Findings)
    counts: Counter[str] = field(default_factory=Counter)
    error: str | None = None


@dataclass(frozen=True, eq=False)
class _SourceRecords:
    """A chunk of ``before``; for its n records whether each is ``retained`` in ``after``, and becomes a tombstone: bool[n]."""

    chunk: Chunk
    retained: Bools
    tombstones: Bools


def compare_range(task: RangeTask, erased: ErasedKeys | None = None) -> tuple[RangeResult, KeyTables]:
    """Compare one range; the keys are those of the records that can supersede or be superseded.

    :param erased: the keys, if the log was not cleaned but these keys were erased from it
    """
    result, keys = RangeResult(task.log), KeyTables(task.partitions, task.seed)
    try:
        _compare_sides(task, result, keys, erased)
    except LogError as error:
        result.error = str(error)
    return result, keys


def _compare_sides(task: RangeTask, result: RangeResult, keys: KeyTables, erased: ErasedKeys | None) -> None:
    after = _After(task, result)
    for before in read_chunks(task.before, task.first_offset, task.end_offset):
        retained = np.zeros(len(before.records), np.bool_)
        selected = (
            np.zeros(len(retained), np.bool_) if erased is None else erased.to_erase(before, task.cleaned_to, result.counts)
        )
        sources = _SourceRecords(
            before, retained, selected if erased is not None and erased.tombstones else np.zeros_like(selected)
        )
        copied = np.zeros(len(before.rows), np.bool_)
        _require_ascending(before)
        for chunk, first, end in after.up_to(int(before.rows["last_offset"][-1])):
            check_batches(before, chunk, first, end, task.rules, result.findings)
            _compare(sources, chunk, first, end, result, erased)
            if erased is not None:
                copied[erased.copied(before, chunk, first, end)] = True
        if erased is None:
            _classify(before, retained, task, result, keys)
        else:
            erased.check_missing(before, retained, selected, result.findings, result.counts)
            erased.check_untouched(before, copied, selected, result.findings)
    for chunk, first, end in after.up_to(task.end_offset):
        result.findings.add_all(chunk.rows["base_offset"][first:end], "batch is not in the source")


def _require_ascending(before: Chunk) -> None:
    """:raises CorruptLogError: offsets of records do not increase, so records cannot be looked up by offset"""
    falls = np.flatnonzero(np.diff(before.records["offset"]) <= 0)
    if len(falls):
        position = int(before.rows["position"][before.records["batch"][falls[0] + 1]])
        problem = "offsets of records do not increase"
        raise CorruptLogError(problem, path=before.path, position=position, hint="restore this segment")


class _After:
    """Reads ``after`` in step with ``before``."""

    def __init__(self, task: RangeTask, result: RangeResult) -> None:
        self._chunks = read_chunks(task.after, task.first_offset, task.end_offset)
        self._chunk: Chunk | None = None
        self._row = 0
        self._previous = -1
        self._result = result

    def up_to(self, last_offset: int) -> Iterator[tuple[Chunk, int, int]]:
        """Chunks with the rows ``[first, end)`` of the next batches that end at or below ``last_offset``."""
        while True:
            if self._chunk is None:
                self._chunk, self._row = self._next(), 0
                if self._chunk is None:
                    return
                self._count(self._chunk)
            rows = self._chunk.rows
            end = int(np.searchsorted(rows["last_offset"], last_offset, "right"))
            if end > self._row:
                yield self._chunk, self._row, end
                self._row = end
            if end < len(rows):
                return
            self._chunk = None

    def _next(self) -> Chunk | None:
        """The next chunk. A malformed one is a violation and ends the range."""
        try:
            return next(self._chunks, None)
        except CorruptLogError as error:
            self._chunks = iter(())
            self._result.findings.add(self._previous + 1, str(error))
            return None

    def _count(self, chunk: Chunk) -> None:
        offsets = chunk.records["offset"]
        self._result.counts["records_after"] += len(offsets)
        if len(offsets):
            falls = np.flatnonzero(offsets <= np.append(self._previous, offsets[:-1]))
            self._result.findings.add_all(offsets[falls], "offset does not increase")
            self._previous = int(offsets[-1])


def _compare(
    source: _SourceRecords, after: Chunk, first: int, end: int, result: RangeResult, erased: ErasedKeys | None
) -> None:
    """Compare the records of batches ``[first, end)`` with their sources, which are flagged as retained."""
    before, retained, records = source.chunk, source.retained, after.records
    records = records[(records["batch"] >= first) & (records["batch"] < end)]
    if not len(records):
        return
    sources = before.records["offset"]
    positions = np.searchsorted(sources, records["offset"])
    has_source = positions < len(sources)
    has_source[has_source] = sources[positions[has_source]] == records["offset"][has_source]
    result.findings.add_all(records["offset"][~has_source], "record is not in the source")
    source_rows = np.where(has_source, positions, -1).astype(np.int64)
    retained[positions[has_source]] = True
    differences = np.zeros(len(records), np.uint8)
    compare_records(records, after.data, before.records, before.data, source_rows, differences)
    rows = np.flatnonzero(has_source)
    differences[rows[_changed_by_format(before.records[positions[rows]], records[rows], after)]] &= ~np.uint8(TIMESTAMP)
    tombstone_rows = rows[source.tombstones[positions[rows]]]
    if erased is not None and len(tombstone_rows):
        tombstones = before.records[positions[tombstone_rows]], after, records[tombstone_rows]
        result.findings.join(erased.check_tombstones(before, *tombstones, result.counts))
        differences[tombstone_rows] &= ~np.uint8(VALUE | HEADERS)
    for row in np.flatnonzero(differences & HEADERS).tolist():
        old_headers, new_headers = (
            _headers(chunk, record) for chunk, record in ((before, before.records[positions[row]]), (after, records[row]))
        )
        if _same_headers(old_headers, new_headers, replaced=erased is None):
            differences[row] &= ~np.uint8(HEADERS)
    for bit, message in _DIFFERENT.items():
        result.findings.add_all(records["offset"][(differences & bit) != 0], message)


def _changed_by_format(sources: Rows, records: Rows, after: Chunk) -> Bools:
    """Whether each record of a wrapper may have another timestamp, bool[n]: messages of another magic than their wrapper get
    the wrapper's magic (Kafka up to 3.9). Magic 0 has no timestamps, and messages without one get the append time."""
    batches = after.rows[records["batch"]]
    append_time = (batches["magic"] >= 1) & ((batches["attributes"] & LOG_APPEND_TIME) != 0)
    changed: Bools = (batches["magic"] == 0) | (append_time & (sources["timestamp"] == -1))
    return changed


def _headers(chunk: Chunk, record: np.void) -> bytes:
    return chunk.data[record["headers_at"] : record["end"]].tobytes()


@lru_cache(maxsize=4096)
def _same_headers(before: bytes, after: bytes, *, replaced: bool) -> bool:
    """Whether headers are equal; if ``replaced``, after names that are not UTF-8 are replaced, as in cleaning."""
    old_headers, new_headers = _read_headers(before), _read_headers(after)
    if old_headers is None or new_headers is None or len(old_headers) != len(new_headers):
        return False
    return all(
        value == new_value and (new_name == name or (replaced and new_name == java_text(name).encode()))
        for (name, value), (new_name, new_value) in zip(old_headers, new_headers, strict=True)
    )


def _read_headers(raw: bytes) -> list[tuple[bytes, bytes | None]] | None:
    """Names and values; ``None`` if malformed."""
    count, position = _number(raw, 0)
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        size, position = _number(raw, position)
        name, position = raw[position : position + max(size, 0)], position + max(size, 0)
        length, position = _number(raw, position)
        value = None if length < 0 else raw[position : position + length]
        position += max(length, 0)
        if size < 0 or position > len(raw):
            return None
        headers.append((name, value))
    return headers if position == len(raw) else None


def _number(raw: bytes, position: int) -> tuple[int, int]:
    word = shift = 0
    while position < len(raw):
        byte, position = raw[position], position + 1
        word |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (word >> 1) ^ -(word & 1), position
    return -1, len(raw) + 1


def _classify(before: Chunk, retained: Bools, task: RangeTask, result: RangeResult, keys: KeyTables) -> None:
    """Count missing records by reason, and add the keys of those that can supersede or be superseded."""
    kinds = RecordKinds.of(before, task)
    offsets = before.records["offset"]
    missing = ~retained
    counts = result.counts
    counts["records_before"] += len(offsets)
    counts["missing"] += int(missing.sum())
    unexplained = missing
    for reason, matching in ((BELOW_START, offsets < task.before_start), (EXPIRED, offsets < task.after_start)):
        counts[reason] += int((unexplained & matching).sum())
        unexplained = unexplained & ~matching
    late = unexplained & (offsets >= task.cleaned_to)
    result.findings.add_all(offsets[late], "record is missing at or past the cleaner checkpoint")
    unexplained = unexplained & ~late
    result.findings.add_all(offsets[unexplained & kinds.control & ~kinds.marker], "control record is missing")
    for reason, matching in ((MARKER, kinds.control), (ABORTED, kinds.aborted), (INVALID, kinds.invalid)):
        counts[reason] += int((unexplained & matching).sum())
        unexplained = unexplained & ~matching
    clean = retained & (offsets < task.cleaned_to) & (offsets >= task.after_start)
    counts["aborted_left"] += int((clean & kinds.aborted).sum())
    counts["invalid_left"] += int((clean & kinds.invalid & ~kinds.control & ~kinds.aborted).sum())
    keys.add(before, np.flatnonzero(supersedable(offsets, kinds, task)), missing, kinds.droppable)


def supersedable(offsets: Int64s, kinds: RecordKinds, task: RangeTask) -> Bools:
    """Whether each record can supersede others and be superseded, bool[n]."""
    chosen: Bools = ~kinds.control & ~kinds.aborted & ~kinds.invalid & (offsets < task.cleaned_to)
    return chosen & (offsets >= task.after_start)


def last_of_key(task: RangeTask, key: bytes) -> int:
    """The offset of the range's last record with this key, -1 if there is none."""
    last = -1
    for chunk in read_chunks(task.before, task.first_offset, task.end_offset):
        records = chunk.records[supersedable(chunk.records["offset"], RecordKinds.of(chunk, task), task)]
        records = records[records["key_size"] == len(key)]
        equal = pc.equal(keys_of(chunk, records), pa.scalar(key, pa.binary()))
        last = max([last, *records["offset"][equal.to_numpy(zero_copy_only=False)].tolist()])
    return last


@dataclass(frozen=True, eq=False)
class RecordKinds:
    """Properties of a chunk's records, bool[n] each. ``marker``: a COMMIT or ABORT marker; ``invalid``: without a key;
    ``droppable``: a tombstone past its delete horizon."""

    control: Bools
    marker: Bools
    aborted: Bools
    invalid: Bools
    droppable: Bools

    @classmethod
    def of(cls, chunk: Chunk, task: RangeTask) -> RecordKinds:
        """Classify the records of a chunk."""
        rows, batch = chunk.rows, chunk.records["batch"]
        v2 = rows["magic"] >= 2
        control = v2 & ((rows["attributes"] & CONTROL) != 0)
        marker = control & ((rows["control_type"] == ABORT) | (rows["control_type"] == COMMIT))
        data = v2 & ~control & ((rows["attributes"] & TRANSACTIONAL) != 0)
        aborted = np.zeros(len(rows), np.bool_)
        aborted[data] = task.aborted.contains(rows["producer_id"][data], rows["last_offset"][data])
        droppable = _tombstones_droppable(rows, chunk.mtime_ms, task)
        tombstone = chunk.records["value_size"] < 0
        return cls(
            control[batch], marker[batch], aborted[batch], chunk.records["key_size"] < 0, tombstone & droppable[batch]
        )  # fmt: skip


def _tombstones_droppable(rows: Rows, mtime_ms: int, task: RangeTask) -> Bools:
    """Whether tombstones of each batch may be dropped, bool[b]."""
    rules = task.rules
    by_mtime = mtime_ms <= task.legacy_delete_horizon_ms
    if rules.mtime_only:
        return np.full(len(rows), by_mtime)
    v2 = rows["magic"] >= 2
    dated = v2 & ((rows["attributes"] & DELETE_HORIZON) != 0)
    passed: Bools = np.where(v2, dated & (rows["base_timestamp"] <= rules.now_ms), by_mtime)
    if rules.several_rounds:
        # an earlier round may have set the horizon, at the earliest when the segment was complete; its producers' clocks, or
        # whoever copied its file, may have stated a later time
        passed |= ~dated & (np.minimum(rows["max_timestamp"], mtime_ms) <= rules.now_ms - rules.delete_retention_ms)
    return passed
