"""The certifier's oracle: it judges one record at a time, with dictionaries. It does not judge files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.oracle.logs import ABORT, COMMIT
from tests.oracle.records import NaiveBatch, NaiveRecord, _text
from tests.oracle.segments import NaiveSegment


@dataclass(frozen=True)
class Round:
    """The bounds of a round; ``legacy_horizon_ms`` is ``RangeTask.legacy_delete_horizon_ms``."""

    log_start: int
    cleaned_to: int
    now_ms: int
    legacy_horizon_ms: int


@dataclass
class Judgement:
    """Missing records by reason, and the offsets of lost, changed and made-up records and of tombstones dropped too early."""

    reasons: Counter[str] = field(default_factory=Counter)
    lost: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)
    made_up: set[int] = field(default_factory=set)
    brings_back: set[int] = field(default_factory=set)


def judge(before: Sequence[NaiveSegment], after: Sequence[NaiveSegment], round_: Round) -> Judgement:
    """Judge ``after``."""
    found, sources = Judgement(), {record.offset: (segment, batch, record) for segment, batch, record in _all(before)}
    left = {record.offset: _as_written(batch, record) for _, batch, record in _all(after)}
    outcome = outcomes(before)
    last: dict[bytes, int] = {}
    kept_of: Counter[bytes] = Counter()
    for offset, (_, batch, record) in sources.items():
        counts = not batch.control and outcome[batch.last_offset] != ABORT and offset < round_.cleaned_to
        if record.key is not None and counts:
            last[record.key] = max(offset, last.get(record.key, -1))
            kept_of[record.key] += offset in left
    for offset, record in left.items():
        if offset not in sources:
            found.made_up.add(offset)
        elif _plain(record) != _plain(_as_written(*sources[offset][1:])):
            found.changed.add(offset)
    for offset, (segment, batch, record) in sources.items():
        if offset not in left:
            reason = _reason(segment, batch, record, last, outcome[batch.last_offset], round_)
            if reason is None:
                found.lost.add(offset)
            else:
                found.reasons[reason] += 1
            if reason == "tombstone" and kept_of[record.key or b""]:
                found.brings_back.add(offset)
    return found


def outcomes(segments: Sequence[NaiveSegment]) -> dict[int, int | None]:
    """How the transaction of each batch ended, by its last offset."""
    ended: dict[int, int | None] = {}
    waiting: dict[int, list[int]] = {}
    for segment in segments:
        for batch in segment.batches:
            ended[batch.last_offset] = None
            if batch.control and batch.control_type() in (ABORT, COMMIT):
                for offset in waiting.pop(batch.producer_id, []):
                    ended[offset] = batch.control_type()
            elif batch.transactional and not batch.control:
                waiting.setdefault(batch.producer_id, []).append(batch.last_offset)
    return ended


def _all(segments: Sequence[NaiveSegment]) -> Iterator[tuple[NaiveSegment, NaiveBatch, NaiveRecord]]:
    for segment in segments:
        for batch in segment.batches:
            for record in batch.records():
                yield segment, batch, record


def _as_written(batch: NaiveBatch, record: NaiveRecord) -> NaiveRecord:
    """A v0 message in a v1 wrapper with log append time gets that timestamp when rewritten."""
    return replace(record, timestamp=batch.max_timestamp) if batch.magic == 1 and batch.log_append_time else record


def _plain(record: NaiveRecord) -> tuple[object, ...]:
    headers = tuple((_text(name), value) for name, value in record.headers)
    return record.timestamp, record.key, record.value, headers


def _reason(
    segment: NaiveSegment, batch: NaiveBatch, record: NaiveRecord, last: dict[bytes, int], outcome: int | None, round_: Round
) -> str | None:
    if record.offset < round_.log_start:
        return "below_log_start"
    if record.offset >= round_.cleaned_to:
        return None
    if batch.control:
        return "marker" if batch.control_type() in (ABORT, COMMIT) else None
    if outcome == ABORT:
        return "aborted"
    if record.key is None:
        return "invalid"
    if last.get(record.key, -1) > record.offset:
        return "superseded"
    horizon_ms = batch.delete_horizon_ms
    passed = horizon_ms is not None and horizon_ms <= round_.now_ms
    if batch.magic < 2:
        passed = segment.mtime_ms <= round_.legacy_horizon_ms
    return "tombstone" if record.value is None and passed else None
