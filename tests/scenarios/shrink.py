"""Reduces a failing scenario: removes everything that the failure does not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.oracle.records import NaiveBatch, NaiveRecord, decode, encode
from tests.scenarios.language import Round, Scenario

#: whether a scenario still fails
Fails = Callable[[Scenario], bool]
_LIMIT = 400


def shrink(scenario: Scenario, fails: Fails) -> Scenario:
    """The smallest scenario found that still fails, within a bounded number of attempts."""
    tried = 0
    progress = True
    while progress:
        progress = False
        for smaller in filter(_is_valid, _smaller(scenario)):
            tried += 1
            if tried > _LIMIT:
                return scenario
            if fails(smaller):
                scenario, progress = smaller, True
                break
    return scenario


def _is_valid(scenario: Scenario) -> bool:
    """Whether the log start never decreases, and is always within the log: else Kafka deletes the log."""
    end_offset = log_start = 0
    for each in scenario.rounds:
        ends = [decode_one(segment[-1]).next_offset for segment in each.segments if segment]
        end_offset = max([end_offset, *ends])
        if not log_start <= each.log_start <= end_offset:
            return False
        log_start = each.log_start
    return True


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with something removed, the largest cuts first."""
    rounds = list(scenario.rounds)
    for at in reversed(range(len(rounds))):
        if len(rounds) > 1:
            yield replace(scenario, rounds=rounds[:at] + rounds[at + 1 :])
    for at, each in enumerate(rounds):
        for smaller in _smaller_rounds(each, first=at == 0):
            yield replace(scenario, rounds=[*rounds[:at], smaller, *rounds[at + 1 :]])
    for name in scenario.config:
        yield replace(scenario, config={key: value for key, value in scenario.config.items() if key != name})


def _smaller_rounds(each: Round, *, first: bool) -> Iterator[Round]:
    defaults = Round(each.now_ms)
    for name in ("log_start", "high_watermark", "killed", "lost", "checkpoint"):
        if getattr(each, name) != getattr(defaults, name):
            yield replace(each, **{name: getattr(defaults, name)})
    segments = list(each.segments)
    for at in range(len(segments)):
        if len(segments) > 1 or not first:
            mtimes = {place - (place > at): time for place, time in each.mtimes.items() if place != at}
            yield replace(each, segments=segments[:at] + segments[at + 1 :], mtimes=mtimes)
    for at, segment in enumerate(segments):
        for batches in _fewer(segment):
            yield replace(each, segments=[*segments[:at], batches, *segments[at + 1 :]])


def _fewer(given: Sequence[bytes]) -> Iterator[list[bytes]]:
    batches = list(given)
    size = len(batches) // 2
    while size:
        for at in range(0, len(batches), size):
            yield batches[:at] + batches[at + size :]
        size //= 2
    for at, raw in enumerate(batches):
        for lighter in _lighter(raw):
            yield [*batches[:at], lighter, *batches[at + 1 :]]


def _lighter(raw: bytes) -> Iterator[bytes]:
    """The batch without one of its records, or without its codec."""
    batch = decode_one(raw)
    if batch.magic < 2 or batch.control or batch.count < 1:
        return
    records = batch.records()
    horizon = -1 if batch.delete_horizon_ms is None else batch.delete_horizon_ms
    for at in range(len(records)) if len(records) > 1 else ():
        yield encode(batch, records[:at] + records[at + 1 :], horizon)
    plain = encode(_plain(batch), [_short(record) for record in records], horizon)
    if len(plain) < len(raw) or batch.codec:
        yield plain


def decode_one(raw: bytes) -> NaiveBatch:
    """A batch by itself."""
    (batch,) = decode(raw)
    return batch


def _plain(batch: NaiveBatch) -> NaiveBatch:
    return replace(batch, attributes=batch.attributes & ~7)


def _short(record: NaiveRecord) -> NaiveRecord:
    return replace(record, value=None if record.value is None else b"v", headers=())
