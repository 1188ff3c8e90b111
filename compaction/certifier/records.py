"""Compares the records of one range of offsets before and after cleaning.

Tasks compare ranges independently. A retained record must equal the record of ``before`` at its offset. A missing record must
have a reason. Superseded records are known only after the keys of all ranges are joined, so their keys are emitted
(``key_tables``).

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

import secrets
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from compaction.certifier.certificate import Findings
from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.find_pairs import LONG_MAX, CleaningRules, legacy_delete_horizon_ms
from compaction.certifier.key_tables import KeyTables
from compaction.certifier.reader import (
    CODEC,
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchKinds,
    Bools,
    ByteRange,
    Chunk,
    Int64s,
    Rows,
    read_chunks,
    read_varint,
)
from compaction.certifier.segments import SegmentWalk, WalkedLog, byte_range
from compaction.certifier.transactions import is_aborted
from compaction.config.entries import to_long
from compaction.engine import Reading, pack
from compaction.errors import CorruptLogError, LogError
from compaction.formats.java_text import java_text
from compaction.kernels.locate import HEADERS, KEY, TIMESTAMP, VALUE, compare_records

#: ``before`` has about this many bytes in each range
RANGE_BYTES = 64 << 20
#: bytes of a log whose keys are joined by one task
PARTITION_BYTES = 96 << 20
_MOST_PARTITIONS = 4096


@dataclass(frozen=True, eq=False)
class RangeTask:
    """The batches of one log with last offsets in ``[first_offset, end_offset)``, on both sides.

    ``cleaned_to``: no record at or past it may be missing. ``legacy_delete_horizon_ms``: segments modified up to this time may
    lose their v0 and v1 tombstones. Keys are hashed with ``seed`` into ``partitions``.
    """

    log: int
    first_offset: int
    end_offset: int
    before: tuple[ByteRange, ...]
    after: tuple[ByteRange, ...]
    aborted: Rows
    rules: CleaningRules
    before_start: int
    after_start: int
    cleaned_to: int
    legacy_delete_horizon_ms: int
    partitions: int = 1
    seed: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(source.size_bytes for source in (*self.before, *self.after))


def cut_into_ranges(number: int, log: WalkedLog, aborted: Rows, range_bytes: int) -> Iterator[RangeTask]:
    """The tasks of a log, of about ``range_bytes`` each; together their ranges hold every offset that is compared."""
    pair = log.pair
    packs = pack([cut for walk in log.before for cut in _cut(walk)], lambda cut: cut[1].size_bytes, range_bytes) or [[]]
    starts = [pair.compared_from, *(cuts[0][0] for cuts in packs[1:]), LONG_MAX]
    size = sum(walk.size_bytes for walk in log.before)
    horizon_ms, seed = legacy_delete_horizon_ms(pair), secrets.randbits(32)
    for cuts, first, end in zip(packs, starts, starts[1:], strict=False):
        yield RangeTask(
            log=number,
            first_offset=first,
            end_offset=end,
            before=tuple(source for _, source in cuts),
            after=tuple(_within(log.after, first, end)),
            aborted=aborted[(aborted["last"] >= first) & (aborted["first"] < end)],
            rules=pair.rules,
            before_start=pair.before.log_start_offset,
            after_start=pair.after.log_start_offset,
            cleaned_to=pair.changed_to,
            legacy_delete_horizon_ms=horizon_ms,
            partitions=max(1, min(_MOST_PARTITIONS, size // PARTITION_BYTES)),
            seed=seed,
        )


def _cut(walk: SegmentWalk) -> Iterator[tuple[int, ByteRange]]:
    """The byte ranges between a segment's cuts, each with its first offset."""
    ends = [position for position, _ in walk.cuts[1:]] + [walk.size_bytes]
    for (position, offset), end in zip(walk.cuts, ends, strict=False):
        yield offset, byte_range(walk.task.files, position, end)


def _within(walks: list[SegmentWalk], first_offset: int, end_offset: int) -> Iterator[ByteRange]:
    """The byte ranges that may hold batches with last offsets in ``[first_offset, end_offset)``."""
    for walk in walks:
        if walk.next_offset <= first_offset or walk.task.files.base_offset >= end_offset or not walk.cuts:
            continue
        start = max(position for position, offset in walk.cuts if offset <= first_offset or position == walk.cuts[0][0])
        end = min((position for position, offset in walk.cuts if offset >= end_offset), default=walk.size_bytes)
        if start < end:
            yield byte_range(walk.task.files, start, end)


_EQUAL = {
    "base_offset": "base offset",
    "leader_epoch": "leader epoch",
    "producer_id": "producer id",
    "producer_epoch": "producer epoch",
    "base_sequence": "base sequence",
}
_FLAGS = {TRANSACTIONAL: "transactional bit", CONTROL: "control bit"}
_NONE = {name: title for name, title in _EQUAL.items() if name != "base_offset"}


#: the batches of ``after`` that break a rule, bool[b], and a message
Problem = tuple[Bools, str]


def check_batches(before: Chunk, after: Chunk, rules: CleaningRules, findings: Findings) -> None:
    """Check the batches of ``after``, whose last offsets are within ``before``."""
    rows = after.rows
    source_rows = np.searchsorted(before.rows["last_offset"], rows["last_offset"])
    source = before.rows[np.minimum(source_rows, len(before.rows) - 1)]
    v2 = source["magic"] >= 2
    for wrong, message in (
        *_check_v2(source, rows, v2 & (rows["magic"] >= 2)),
        *_check_converted(source, rows, ~v2 & (rows["magic"] >= 2)),
        *_check_messages(source, rows, rules),
        *_check_timestamps(source, after, rules),
        *_check_horizons(source, rows, rules),
    ):
        findings.add_all(rows["base_offset"][wrong], message)


def _check_v2(source: Rows, rows: Rows, selected: Bools) -> Iterator[Problem]:
    paired = selected & (source["last_offset"] == rows["last_offset"])
    yield selected & ~paired, "no batch of the source has this batch's last offset"
    for name, title in _EQUAL.items():
        yield paired & (source[name] != rows[name]), f"{title} of the batch differs"
    changed = source["attributes"] ^ rows["attributes"]
    for bit, title in _FLAGS.items():
        yield paired & ((changed & bit) != 0), f"{title} of the batch differs"
    yield from _check_form(changed, rows, paired)


def _check_form(changed: NDArray[np.int16], rows: Rows, selected: Bools) -> Iterator[Problem]:
    emptied = (rows["count"] == 0) & ((rows["attributes"] & CODEC) == 0)
    yield selected & ((changed & CODEC) != 0) & ~emptied, "codec of the batch differs"
    yield selected & ((changed & LOG_APPEND_TIME) != 0), "timestamp type of the batch differs"


def _check_converted(source: Rows, rows: Rows, selected: Bools) -> Iterator[Problem]:
    for name, title in _NONE.items():
        yield selected & (rows[name] != -1), f"batch has a {title}, its source has none"
    attributes = np.where(source["magic"] == 0, source["attributes"] & CODEC, source["attributes"] & (CODEC | LOG_APPEND_TIME))
    changed = (attributes ^ rows["attributes"]).astype(np.int16)
    yield from _check_form(changed, rows, selected)
    flagged = selected & ((rows["attributes"] & (TRANSACTIONAL | CONTROL)) != 0)
    yield flagged, "batch is transactional or a control batch, its source is not"


def _check_messages(source: Rows, rows: Rows, rules: CleaningRules) -> Iterator[Problem]:
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
        yield became_v2, "message became v2"
    yield old & ~same, "magic or size of the message differs"


def _check_timestamps(source: Rows, after: Chunk, rules: CleaningRules) -> Iterator[Problem]:
    rows = after.rows
    # of a batch without records the smallest number
    largest = np.full(len(rows), np.iinfo(np.int64).min)
    np.maximum.at(largest, after.records["batch"], after.records["timestamp"])
    # under log append time records have the timestamp of their batch; the records are compared
    unchanged = rows["max_timestamp"] == source["max_timestamp"]
    if rules.several_rounds:
        # an earlier round has retained records of the batch, and their largest timestamp
        unchanged |= rows["count"] == 0
    yield ~unchanged & (rows["max_timestamp"] != largest), "max timestamp of the batch is not that of any record"
    empty_or_append = (rows["count"] == 0) | ((rows["attributes"] & LOG_APPEND_TIME) != 0)
    # what retains all records and gets no delete horizon is copied with the max timestamp of its source, be that too low
    copied = np.logical_and.reduce([rows[name] == source[name] for name in ("magic", "attributes", "count")])
    low = (rows["magic"] >= 2) & ~empty_or_append & ~copied & (rows["max_timestamp"] < largest)
    yield low & unchanged, "max timestamp of the batch is below that of a record"
    changed = (rows["magic"] >= 2) & (source["magic"] >= 2) & (rows["count"] == 0) & ~unchanged
    yield changed, "max timestamp of the emptied batch differs"


def _check_horizons(source: Rows, rows: Rows, rules: CleaningRules) -> Iterator[Problem]:
    old_horizon, new_horizon = BatchKinds.of(source).dated, BatchKinds.of(rows).dated
    if rules.erases:
        yield new_horizon & ~old_horizon, "batch has a delete horizon, its source has none"
        new_horizon = new_horizon & old_horizon
    if rules.mtime_only:
        yield new_horizon & ~old_horizon, "delete horizon in a log of a Kafka without them"
        old_horizon = old_horizon & new_horizon
    yield old_horizon & ~new_horizon & (rows["count"] > 0), "delete horizon was removed"
    moved = old_horizon & new_horizon & (source["base_timestamp"] != rows["base_timestamp"])
    yield moved, "delete horizon was changed"
    horizon_ms = rules.now_ms + rules.delete_retention_ms
    if rules.exact and not rules.several_rounds:
        # a sum that wraps to a negative one sets no horizon
        wrong = rows["base_timestamp"] != to_long(horizon_ms)
    else:
        wrong = rows["base_timestamp"] > horizon_ms
    if not rules.mtime_only:
        yield new_horizon & ~old_horizon & wrong, "new delete horizon is not that of the round"


_DIFFERENT = {
    TIMESTAMP: "timestamp of the record differs",
    KEY: "key of the record differs",
    VALUE: "value of the record differs",
    HEADERS: "headers of the record differ",
}


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
        _require_ascending(before)
        retained, copied = np.zeros(len(before.records), np.bool_), np.zeros(len(before.rows), np.bool_)
        selected = None if erased is None else erased.to_erase(before, task.cleaned_to, result.counts)
        for chunk in after.up_to(int(before.rows["last_offset"][-1])):
            check_batches(before, chunk, task.rules, result.findings)
            retained[_compare(before, chunk, result, erased, selected)] = True
            if erased is not None:
                copied[erased.copied(before, chunk)] = True
        if erased is None or selected is None:
            _classify(before, retained, task, result, keys)
        else:
            erased.check_missing(before, retained, selected, result.findings, result.counts)
            erased.check_untouched(before, copied, selected, result.findings)
    for chunk in after.up_to(task.end_offset):
        result.findings.add_all(chunk.rows["base_offset"], "batch is not in the source")


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
        self._row, self._previous, self._result = 0, -1, result

    def up_to(self, last_offset: int) -> Iterator[Chunk]:
        """The next batches that end at or below ``last_offset``."""
        while (chunk := self._chunk or self._next()) is not None:
            end = int(np.searchsorted(chunk.rows["last_offset"], last_offset, "right"))
            if end > self._row:
                yield chunk.between(self._row, end)
            if end < len(chunk.rows):
                self._chunk, self._row = chunk, end
                return
            self._chunk, self._row = None, 0

    def _next(self) -> Chunk | None:
        """The next chunk, counted. A malformed one is a violation and ends the range."""
        try:
            chunk = next(self._chunks, None)
        except CorruptLogError as error:
            self._chunks = iter(())
            self._result.findings.add(self._previous + 1, str(error))
            return None
        if chunk is None:
            return None
        self._result.read(chunk)
        offsets = chunk.records["offset"]
        self._result.counts["records_after"] += len(offsets)
        if len(offsets):
            falls = np.flatnonzero(offsets <= np.append(self._previous, offsets[:-1]))
            self._result.findings.add_all(offsets[falls], "offset does not increase")
            self._previous = int(offsets[-1])
        return chunk


def _compare(before: Chunk, after: Chunk, result: RangeResult, erased: ErasedKeys | None, selected: Bools | None) -> Int64s:
    """Compare the records of ``after`` with their sources; returns the rows of ``before`` that it has, int64[m].

    :param selected: whether each record of ``before`` has one of the ``erased`` keys, bool[n]
    """
    records, sources = after.records, before.records["offset"]
    if not len(records):
        return np.empty(0, np.int64)
    positions = np.searchsorted(sources, records["offset"])
    has_source = positions < len(sources)
    has_source[has_source] = sources[positions[has_source]] == records["offset"][has_source]
    result.findings.add_all(records["offset"][~has_source], "record is not in the source")
    source_rows = np.where(has_source, positions, -1).astype(np.int64)
    differences = np.zeros(len(records), np.uint8)
    compare_records(records, after.data, before.records, before.data, source_rows, differences)
    rows = np.flatnonzero(has_source)
    differences[rows[_changed_by_format(before.records[positions[rows]], records[rows], after)]] &= ~np.uint8(TIMESTAMP)
    if erased is not None and erased.tombstones and selected is not None:
        tombstones = rows[selected[positions[rows]]]
        emptied = before.records[positions[tombstones]], after, records[tombstones]
        result.findings.join(erased.check_tombstones(before, *emptied, result.counts))
        differences[tombstones] &= ~np.uint8(VALUE | HEADERS)
    for row in np.flatnonzero(differences & HEADERS).tolist():
        old_headers, new_headers = (
            _headers(chunk, record) for chunk, record in ((before, before.records[positions[row]]), (after, records[row]))
        )
        if _same_headers(old_headers, new_headers, replaced=erased is None):
            differences[row] &= ~np.uint8(HEADERS)
    for bit, message in _DIFFERENT.items():
        result.findings.add_all(records["offset"][(differences & bit) != 0], message)
    return positions[rows]


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
    end = len(raw)
    count, position = read_varint(raw, 0, end, end)
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        size, position = read_varint(raw, position, end, end)
        name, position = raw[position : position + max(size, 0)], position + max(size, 0)
        length, position = read_varint(raw, position, end, end)
        value = None if length < 0 else raw[position : position + length]
        position += max(length, 0)
        if size < 0 or not 0 <= position <= end:
            return None
        headers.append((name, value))
    return headers if position == end else None


#: the first rule that applies to a record of ``before``: why it may be missing, or (``LATE``, ``KEYED``) by itself may not
BELOW_START, EXPIRED, LATE, MARKER, ABORTED, INVALID, KEYED = range(7)
_REASONS = {BELOW_START: "below_log_start", EXPIRED: "expired", MARKER: "marker", ABORTED: "aborted", INVALID: "invalid"}


def fates_of(chunk: Chunk, task: RangeTask) -> Int64s:
    """The fate of each record of a chunk, int64[n]. ``MARKER``: a control record; ``INVALID``: without a key; ``KEYED``: it can
    supersede others and be superseded."""
    rows, batch, offsets, kinds = chunk.rows, chunk.records["batch"], chunk.records["offset"], BatchKinds.of(chunk.rows)
    data, aborted = kinds.transactional, np.zeros(len(rows), np.bool_)
    aborted[data] = is_aborted(task.aborted, rows["producer_id"][data], rows["last_offset"][data])
    conditions = {
        BELOW_START: offsets < task.before_start,
        EXPIRED: offsets < task.after_start,
        LATE: offsets >= task.cleaned_to,
        MARKER: kinds.control[batch],
        ABORTED: aborted[batch],
        INVALID: chunk.records["key_size"] < 0,
    }
    fates: Int64s = np.select(list(conditions.values()), list(conditions), KEYED)
    return fates


def droppable(chunk: Chunk, task: RangeTask) -> Bools:
    """Whether each record of a chunk is a tombstone past its delete horizon, bool[n]."""
    rules, rows, kinds = task.rules, chunk.rows, BatchKinds.of(chunk.rows)
    by_mtime = chunk.mtime_ms <= task.legacy_delete_horizon_ms
    passed: Bools = np.where(kinds.v2, kinds.dated & (rows["base_timestamp"] <= rules.now_ms), by_mtime)
    if rules.mtime_only:
        passed[:] = by_mtime
    elif rules.several_rounds:
        # an earlier round may have set the horizon, at the earliest when the segment was complete; its producers' clocks, or
        # whoever copied its file, may have stated a later time
        complete_ms = np.minimum(rows["max_timestamp"], chunk.mtime_ms)
        passed |= ~kinds.dated & (complete_ms <= rules.now_ms - rules.delete_retention_ms)
    of_record: Bools = passed[chunk.records["batch"]] & (chunk.records["value_size"] < 0)
    return of_record


def _classify(before: Chunk, retained: Bools, task: RangeTask, result: RangeResult, keys: KeyTables) -> None:
    """Count missing records by reason, and add the keys of those that can supersede or be superseded."""
    offsets, fates, missing, counts = before.records["offset"], fates_of(before, task), ~retained, result.counts
    counts["records_before"] += len(offsets)
    counts["missing"] += int(missing.sum())
    for fate, reason in _REASONS.items():
        counts[reason] += int((missing & (fates == fate)).sum())
    result.findings.add_all(offsets[missing & (fates == LATE)], "record is missing at or past the cleaner checkpoint")
    other_control = (fates == MARKER) & ~BatchKinds.of(before.rows).marker[before.records["batch"]]
    result.findings.add_all(offsets[missing & other_control], "control record is missing")
    counts["aborted_left"] += int((retained & (fates == ABORTED)).sum())
    counts["invalid_left"] += int((retained & (fates == INVALID)).sum())
    keys.add(before, np.flatnonzero(fates == KEYED), missing, droppable(before, task))
