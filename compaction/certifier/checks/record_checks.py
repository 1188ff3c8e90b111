"""Compares the records of one range of offsets before and after cleaning.

A retained record must equal the record of ``before`` at its offset. A missing record must have a reason. Superseded records are
known only after the keys of all ranges are joined, so their keys are emitted (``key_tables``).

Compares the batches of ``after`` with their sources.

The rule for a batch ``b`` of ``before`` and its batch ``a`` of ``after``:

* ``b`` is v2: ``a`` has the same base and last offset, leader epoch, producer id and epoch, base sequence, codec (none if ``a``
  is emptied), timestamp type, transactional and control bits. A delete horizon does not change while there are records; a new
  one is ``now + delete.retention.ms``. The max timestamp is that of the retained records, or unchanged. Up to Kafka 3.0 there
  are no new delete horizons, and a rewritten batch loses the one that it has. An erasure sets none.
* ``b`` is v0 or v1: ``a`` is an equal message, or a v2 batch of some of its records with the same codec and timestamp type,
  without producer and leader epoch. Up to Kafka 3.9 it is not a v2 batch but a wrapper of the same magic.

Mirrors ``MemoryRecords.filterTo``.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from compaction.certifier.checks.erased_keys import ErasedKeys
from compaction.certifier.checks.key_tables import KeyTables, keys_of
from compaction.certifier.checks.log_pair import Bools, CleaningRules, Int64s, Rows
from compaction.certifier.checks.offset_ranges import RangeTask
from compaction.certifier.checks.read_chunks import CODEC, LOG_APPEND_TIME, Chunk, read_chunks
from compaction.certifier.checks.segment_walk import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from compaction.certifier.checks.violations import Findings
from compaction.config.kinds import to_long
from compaction.errors import CorruptLogError, LogError
from compaction.formats.java_text import java_text
from compaction.kernels.locate import HEADERS, KEY, TIMESTAMP, VALUE, compare_records
from compaction.kernels.tables import ABORT, COMMIT
from compaction.task_runner import Reading

_EQUAL = {
    "base_offset": "base offset",
    "leader_epoch": "leader epoch",
    "producer_id": "producer id",
    "producer_epoch": "producer epoch",
    "base_sequence": "base sequence",
}
_FLAGS = {TRANSACTIONAL: "transactional bit", CONTROL: "control bit"}
_NONE = {name: title for name, title in _EQUAL.items() if name != "base_offset"}


def check_batches(before: Chunk, after: Chunk, first: int, end: int, rules: CleaningRules, findings: Findings) -> None:
    """Check rows ``[first, end)`` of ``after``, whose last offsets are within ``before``."""
    rows = after.rows[first:end]
    source_rows = np.searchsorted(before.rows["last_offset"], rows["last_offset"])
    source_rows = np.minimum(source_rows, len(before.rows) - 1)
    source = before.rows[source_rows]
    v2 = source["magic"] >= 2
    _check_v2(source, rows, v2 & (rows["magic"] >= 2), findings)
    _check_converted(source, rows, ~v2 & (rows["magic"] >= 2), findings)
    _check_messages(source, rows, rules, findings)
    largest = _largest_timestamps(after, first, end)
    _check_timestamps(source, rows, largest, rules, findings)
    _check_horizons(source, rows, rules, findings)


def _report(rows: NDArray[np.void], wrong: NDArray[np.bool_], message: str, findings: Findings) -> None:
    findings.add_all(rows["base_offset"][wrong], message)


def _check_v2(source: NDArray[np.void], rows: NDArray[np.void], selected: NDArray[np.bool_], findings: Findings) -> None:
    paired = selected & (source["last_offset"] == rows["last_offset"])
    _report(rows, selected & ~paired, "no batch of the source has this batch's last offset", findings)
    for name, title in _EQUAL.items():
        _report(rows, paired & (source[name] != rows[name]), f"{title} of the batch differs", findings)
    changed = source["attributes"] ^ rows["attributes"]
    for bit, title in _FLAGS.items():
        _report(rows, paired & ((changed & bit) != 0), f"{title} of the batch differs", findings)
    _check_form(changed, rows, paired, findings)


def _check_form(changed: NDArray[np.int16], rows: NDArray[np.void], selected: NDArray[np.bool_], findings: Findings) -> None:
    emptied = (rows["count"] == 0) & ((rows["attributes"] & CODEC) == 0)
    _report(rows, selected & ((changed & CODEC) != 0) & ~emptied, "codec of the batch differs", findings)
    _report(rows, selected & ((changed & LOG_APPEND_TIME) != 0), "timestamp type of the batch differs", findings)


def _check_converted(source: NDArray[np.void], rows: NDArray[np.void], selected: NDArray[np.bool_], findings: Findings) -> None:
    for name, title in _NONE.items():
        _report(rows, selected & (rows[name] != -1), f"batch has a {title}, its source has none", findings)
    attributes = np.where(source["magic"] == 0, source["attributes"] & CODEC, source["attributes"] & (CODEC | LOG_APPEND_TIME))
    changed = (attributes ^ rows["attributes"]).astype(np.int16)
    _check_form(changed, rows, selected, findings)
    flagged = selected & ((rows["attributes"] & (TRANSACTIONAL | CONTROL)) != 0)
    _report(rows, flagged, "batch is transactional or a control batch, its source is not", findings)


def _check_messages(source: NDArray[np.void], rows: NDArray[np.void], rules: CleaningRules, findings: Findings) -> None:
    """Check rows of magic 0 and 1, and whether these became v2 though they must not."""
    old = rows["magic"] < 2
    same_magic = source["magic"] == rows["magic"]
    same = same_magic & (source["size"] == rows["size"])
    if rules.keeps_magic:
        wrapper = same_magic & ((rows["attributes"] & CODEC) != 0)
        same |= wrapper & (((source["attributes"] ^ rows["attributes"]) & (CODEC | LOG_APPEND_TIME)) == 0)
        # an emptied batch has no message
        became_v2 = (source["magic"] < 2) & ~old & (rows["count"] > 0)
        if rules.erases:
            # only v2 retains the end of a log whose last record is erased
            became_v2 &= rows["last_offset"] != source["last_offset"]
        _report(rows, became_v2, "message became v2", findings)
    _report(rows, old & ~same, "magic or size of the message differs", findings)


def _largest_timestamps(after: Chunk, first: int, end: int) -> Int64s:
    """The largest timestamp of each batch's records, the smallest int64 if it has none: int64[end - first]."""
    largest = np.full(len(after.rows), np.iinfo(np.int64).min)
    np.maximum.at(largest, after.records["batch"], after.records["timestamp"])
    return largest[first:end]


def _check_timestamps(
    source: NDArray[np.void], rows: NDArray[np.void], largest: Int64s, rules: CleaningRules, findings: Findings
) -> None:
    # under log append time records have the timestamp of their batch; record_checks compares it
    unchanged = rows["max_timestamp"] == source["max_timestamp"]
    if rules.several_rounds:
        # an earlier round has retained records of the batch, and their largest timestamp
        unchanged |= rows["count"] == 0
    _report(
        rows, ~unchanged & (rows["max_timestamp"] != largest), "max timestamp of the batch is not that of any record", findings
    )
    empty_or_append = (rows["count"] == 0) | ((rows["attributes"] & LOG_APPEND_TIME) != 0)
    # what retains all records and gets no delete horizon is copied with the max timestamp of its source, be that too low
    copied = np.logical_and.reduce([rows[name] == source[name] for name in ("magic", "attributes", "count")])
    low = (rows["magic"] >= 2) & ~empty_or_append & ~copied & (rows["max_timestamp"] < largest)
    _report(rows, low & unchanged, "max timestamp of the batch is below that of a record", findings)
    changed = (rows["magic"] >= 2) & (source["magic"] >= 2) & (rows["count"] == 0) & ~unchanged
    _report(rows, changed, "max timestamp of the emptied batch differs", findings)


def _check_horizons(source: NDArray[np.void], rows: NDArray[np.void], rules: CleaningRules, findings: Findings) -> None:
    old_horizon = (source["magic"] >= 2) & ((source["attributes"] & DELETE_HORIZON) != 0)
    new_horizon = (rows["magic"] >= 2) & ((rows["attributes"] & DELETE_HORIZON) != 0)
    if rules.erases:
        _report(rows, new_horizon & ~old_horizon, "batch has a delete horizon, its source has none", findings)
        new_horizon = new_horizon & old_horizon
    if rules.mtime_only:
        _report(rows, new_horizon & ~old_horizon, "delete horizon in a log of a Kafka without them", findings)
        old_horizon = old_horizon & new_horizon
    _report(rows, old_horizon & ~new_horizon & (rows["count"] > 0), "delete horizon was removed", findings)
    moved = old_horizon & new_horizon & (source["base_timestamp"] != rows["base_timestamp"])
    _report(rows, moved, "delete horizon was changed", findings)
    horizon_ms = rules.now_ms + rules.delete_retention_ms
    if rules.exact and not rules.several_rounds:
        # a sum that wraps to a negative one sets no horizon
        wrong = rows["base_timestamp"] != to_long(horizon_ms)
    else:
        wrong = rows["base_timestamp"] > horizon_ms
    if not rules.mtime_only:
        _report(rows, new_horizon & ~old_horizon & wrong, "new delete horizon is not that of the round", findings)


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
    dropped (``aborted_left``, ``invalid_left``). ``reading``: of the range; of a result that ``joins`` keys, what was read for
    that."""

    log: int
    findings: Findings = field(default_factory=Findings)
    counts: Counter[str] = field(default_factory=Counter)
    reading: Reading = Reading()
    joins: bool = False
    #: of the batches that were compared
    checksum: int = 0

    def read(self, chunk: Chunk) -> None:
        self.checksum = zlib.crc32(chunk.identity(), self.checksum)


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
    error = None
    try:
        _compare_sides(task, result, keys, erased)
    except LogError as failure:
        error = str(failure)
    path = task.before[0].path if task.before else ""
    result.reading = Reading.of(path, (task.first_offset, result.checksum), error)
    return result, keys


def _compare_sides(task: RangeTask, result: RangeResult, keys: KeyTables, erased: ErasedKeys | None) -> None:
    after = _After(task, result)
    for before in read_chunks(task.before, task.first_offset, task.end_offset):
        result.read(before)
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
                self._result.read(self._chunk)
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
