"""Compares one range of offsets of a log, before and after: what is left record by record, and what is missing.

Each record that is left equals the one of ``before`` at its offset. Each that is missing has a reason; for those that only a
record of the same key can explain, keys are handed on (``key_tables``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from compaction.certifier.checks.batch_checks import check_batches
from compaction.certifier.checks.key_tables import KeyTables
from compaction.certifier.checks.log_pair import CleaningRules, Findings, Int64s, RangeTask, Rows
from compaction.certifier.checks.read_chunks import Chunk, read_chunks
from compaction.certifier.checks.segment_walk import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from compaction.certifier.checks.txn_checks import in_aborted_ranges
from compaction.errors import CorruptLogError, LogError
from compaction.formats.java_text import java_text
from compaction.kernels.reading.locate import HEADERS, KEY, TIMESTAMP, VALUE, compare_records
from compaction.kernels.reading.tables import ABORT, COMMIT

Bools = NDArray[np.bool_]

_DIFFERENT = {
    TIMESTAMP: "timestamp of the record differs",
    KEY: "key of the record differs",
    VALUE: "value of the record differs",
    HEADERS: "headers of the record differ",
}
#: reasons that need no other record
BELOW_START, EXPIRED, MARKER, ABORTED, INVALID = "below_log_start", "expired", "marker", "aborted", "invalid"


@dataclass
class RangeResult:
    """What was found in a range: violations, numbers of records on both sides, missing ones by reason; ``aborted_left`` and
    ``invalid_left`` are records that could have been dropped. ``error``: why ``before`` could not be read."""

    log: int
    findings: Findings = field(default_factory=Findings)
    counts: Counter[str] = field(default_factory=Counter)
    error: str | None = None


def compare_range(work: RangeTask) -> tuple[RangeResult, KeyTables]:
    """Compare one range."""
    result, keys = RangeResult(work.log), KeyTables(work.parts, work.seed)
    try:
        _compare_both(work, result, keys)
    except LogError as error:
        result.error = str(error)
    return result, keys


def _compare_both(work: RangeTask, result: RangeResult, keys: KeyTables) -> None:
    after = _After(work, result)
    for before in read_chunks(work.before, work.first_offset, work.end_offset):
        found = np.zeros(len(before.records), np.bool_)
        _require_ascending(before)
        for chunk, first, end in after.up_to(int(before.rows["last_offset"][-1])):
            check_batches(before, chunk, first, end, work.rules, result.findings)
            _compare(before, chunk, first, end, found, result)
        _classify(before, found, work, result, keys)
    for chunk, first, end in after.up_to(work.end_offset):
        result.findings.add_all(chunk.rows["base_offset"][first:end], "batch is not in the source")


def _require_ascending(before: Chunk) -> None:
    """Partners are looked up by offset.

    :raises CorruptLogError: offsets of records do not increase
    """
    falls = np.flatnonzero(np.diff(before.records["offset"]) <= 0)
    if len(falls):
        position = int(before.rows["position"][before.records["batch"][falls[0] + 1]])
        what = "offsets of records do not increase"
        raise CorruptLogError(what, path=before.path, position=position, hint="restore this segment")


class _After:
    """The chunks of ``after``, taken as far as ``before`` was read."""

    def __init__(self, work: RangeTask, result: RangeResult) -> None:
        self._chunks = read_chunks(work.after, work.first_offset, work.end_offset)
        self._chunk: Chunk | None = None
        self._row = 0
        self._previous = -1
        self._result = result

    def up_to(self, last_offset: int) -> Iterator[tuple[Chunk, int, int]]:
        """Chunks, and which of their batches end at or below ``last_offset`` and were not given before."""
        while True:
            if self._chunk is None:
                self._chunk, self._row = self._next(), 0
                if self._chunk is None:
                    return
                self._note(self._chunk)
            rows = self._chunk.rows
            end = int(np.searchsorted(rows["last_offset"], last_offset, "right"))
            if end > self._row:
                yield self._chunk, self._row, end
                self._row = end
            if end < len(rows):
                return
            self._chunk = None

    def _next(self) -> Chunk | None:
        """The next chunk; none follows one that cannot be read, which is a violation."""
        try:
            return next(self._chunks, None)
        except CorruptLogError as error:
            self._chunks = iter(())
            self._result.findings.add(self._previous + 1, str(error))
            return None

    def _note(self, chunk: Chunk) -> None:
        offsets = chunk.records["offset"]
        self._result.counts["records_after"] += len(offsets)
        if len(offsets):
            falls = np.flatnonzero(offsets <= np.append(self._previous, offsets[:-1]))
            self._result.findings.add_all(offsets[falls], "offset does not increase")
            self._previous = int(offsets[-1])


def _compare(before: Chunk, after: Chunk, first: int, end: int, found: Bools, result: RangeResult) -> None:
    """The records of some batches; marks their sources in ``found``."""
    records = after.records
    records = records[(records["batch"] >= first) & (records["batch"] < end)]
    if not len(records):
        return
    sources = before.records["offset"]
    at = np.searchsorted(sources, records["offset"])
    known = at < len(sources)
    known[known] = sources[at[known]] == records["offset"][known]
    result.findings.add_all(records["offset"][~known], "record is not in the source")
    partner = np.where(known, at, -1).astype(np.int64)
    found[at[known]] = True
    differences = np.zeros(len(records), np.uint8)
    compare_records(records, after.data, before.records, before.data, partner, differences)
    for row in np.flatnonzero(differences & HEADERS).tolist():
        one, other = (_headers(chunk, each) for chunk, each in ((before, before.records[at[row]]), (after, records[row])))
        if _same_headers(one, other):
            differences[row] &= ~np.uint8(HEADERS)
    for bit, what in _DIFFERENT.items():
        result.findings.add_all(records["offset"][(differences & bit) != 0], what)


def _headers(chunk: Chunk, record: np.void) -> bytes:
    return chunk.data[record["headers_at"] : record["end"]].tobytes()


@lru_cache(maxsize=4096)
def _same_headers(before: bytes, after: bytes) -> bool:
    """Whether headers mean the same once names that are not UTF-8 are made so, as a rewrite does. Mostly few are different."""
    one, other = _read_headers(before), _read_headers(after)
    if one is None or other is None or len(one) != len(other):
        return False
    return all(
        value == left and name_left in (name, java_text(name).encode())
        for (name, value), (name_left, left) in zip(one, other, strict=True)
    )


def _read_headers(raw: bytes) -> list[tuple[bytes, bytes | None]] | None:
    """Names and values, ``None`` for malformed headers."""
    count, at = _number(raw, 0)
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        size, at = _number(raw, at)
        name, at = raw[at : at + max(size, 0)], at + max(size, 0)
        length, at = _number(raw, at)
        value = None if length < 0 else raw[at : at + length]
        at += max(length, 0)
        if size < 0 or at > len(raw):
            return None
        headers.append((name, value))
    return headers if at == len(raw) else None


def _number(raw: bytes, at: int) -> tuple[int, int]:
    word = shift = 0
    while at < len(raw):
        byte, at = raw[at], at + 1
        word |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (word >> 1) ^ -(word & 1), at
    return -1, len(raw) + 1


def _classify(before: Chunk, found: Bools, work: RangeTask, result: RangeResult, keys: KeyTables) -> None:
    """Say why each missing record is missing, as far as it is known without the others."""
    kinds = RecordKinds.of(before, work)
    offsets = before.records["offset"]
    missing = ~found
    counts = result.counts
    counts["records_before"] += len(offsets)
    counts["missing"] += int(missing.sum())
    left = missing
    for reason, some in ((BELOW_START, offsets < work.before_start), (EXPIRED, offsets < work.after_start)):
        counts[reason] += int((left & some).sum())
        left = left & ~some
    late = left & (offsets >= work.cleaned_to)
    result.findings.add_all(offsets[late], "record is missing though cleaning did not come so far")
    left = left & ~late
    result.findings.add_all(offsets[left & kinds.control & ~kinds.marker], "control record is missing")
    for reason, some in ((MARKER, kinds.control), (ABORTED, kinds.aborted), (INVALID, kinds.invalid)):
        counts[reason] += int((left & some).sum())
        left = left & ~some
    some = found & (offsets < work.cleaned_to) & (offsets >= work.after_start)
    counts["aborted_left"] += int((some & kinds.aborted).sum())
    counts["invalid_left"] += int((some & kinds.invalid & ~kinds.control & ~kinds.aborted).sum())
    keys.add(before, np.flatnonzero(supersedable(offsets, kinds, work)), missing, kinds.droppable)


def supersedable(offsets: Int64s, kinds: RecordKinds, work: RangeTask) -> Bools:
    """Which records may supersede others and be superseded, bool[n]."""
    chosen: Bools = ~kinds.control & ~kinds.aborted & ~kinds.invalid & (offsets < work.cleaned_to)
    return chosen & (offsets >= work.after_start)


@dataclass(frozen=True, eq=False)
class RecordKinds:
    """What each record of a chunk is, bool[n] each: ``control``, of these ``marker``; ``aborted``; ``invalid`` (without a key);
    ``droppable`` (a tombstone past its horizon)."""

    control: Bools
    marker: Bools
    aborted: Bools
    invalid: Bools
    droppable: Bools

    @classmethod
    def of(cls, chunk: Chunk, work: RangeTask) -> RecordKinds:
        """The kinds of a chunk's records."""
        rows, batch = chunk.rows, chunk.records["batch"]
        modern = rows["magic"] >= 2
        control = modern & ((rows["attributes"] & CONTROL) != 0)
        marker = control & ((rows["control_type"] == ABORT) | (rows["control_type"] == COMMIT))
        data = modern & ~control & ((rows["attributes"] & TRANSACTIONAL) != 0)
        aborted = np.zeros(len(rows), np.bool_)
        aborted[data] = in_aborted_ranges(work.aborted, rows["producer_id"][data], rows["last_offset"][data])
        passed = _horizon_passed(rows, chunk.mtime_ms, work)
        tombstone = chunk.records["value_size"] < 0
        return cls(
            control[batch], marker[batch], aborted[batch], chunk.records["key_size"] < 0, tombstone & passed[batch]
        )  # fmt: skip


def _horizon_passed(rows: Rows, mtime_ms: int, work: RangeTask) -> Bools:
    """In which batches tombstones may be dropped."""
    rules: CleaningRules = work.rules
    modern = rows["magic"] >= 2
    dated = modern & ((rows["attributes"] & DELETE_HORIZON) != 0)
    passed: Bools = np.where(modern, dated & (rows["base_timestamp"] <= rules.now_ms), mtime_ms <= work.legacy_horizon_ms)
    if rules.several_rounds:
        # a round in between may have set the horizon, at the earliest when the batch was written
        passed |= ~dated & (rows["max_timestamp"] + rules.delete_retention_ms <= rules.now_ms)
    return passed
