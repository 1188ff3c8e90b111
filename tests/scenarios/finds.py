"""A failing scenario becomes a known one: it is reduced to what the failure needs, and written in the language. The text has
the same bytes when it is parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.kafka.encode import ABORT, CODECS, COMMIT
from tests.oracle.records import NaiveBatch, NaiveRecord, decode, encode
from tests.scenarios.language import KNOWN, ROUNDS, Round, Scenario, T, parse

#: whether a scenario still fails
Fails = Callable[[Scenario], bool]
_LIMIT = 400
_PLAIN = re.compile(rb"[A-Za-z0-9:/][A-Za-z0-9:/-]*")


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
    short = [replace(record, value=None if record.value is None else b"v", headers=()) for record in records]
    plain = encode(replace(batch, attributes=batch.attributes & ~7), short, horizon)
    if len(plain) < len(raw) or batch.codec:
        yield plain


def decode_one(raw: bytes) -> NaiveBatch:
    """A batch by itself."""
    (batch,) = decode(raw)
    return batch


def printed(name: str, scenario: Scenario) -> str:
    """The section of a file, with its answers.

    :raises ValueError: the language does not have this scenario
    """
    text = "\n".join(_lines(scenario))
    if parse(text.splitlines()) != scenario:
        raise ValueError(f"{name} is another scenario when it is read:\n{text}")
    return f"scenario {name}\n{text}\n"


def _lines(scenario: Scenario) -> Iterator[str]:
    yield from (f"set {key} {value}" for key, value in scenario.config.items())
    yield from ["only-kafka"] * scenario.only_kafka + ["as-leader"] * scenario.as_leader
    yield from [f"version {scenario.version}"] * bool(scenario.version)
    before, printer = Round(0), _Batches()
    state: int | None
    for number, each in enumerate(scenario.rounds):
        for word, state, old in (("log-start", each.log_start, before.log_start),
                                 ("high-watermark", each.high_watermark, before.high_watermark),
                                 ("checkpoint", each.checkpoint, KNOWN)):  # fmt: skip
            if state != old:
                yield f"{word} {'none' if state is None else state}"
        yield from ["killed"] * each.killed
        yield from (f"without {file}" for file in each.lost)
        yield from (f"without {file} ours" for file in each.lost_ours)
        for at, segment in enumerate(each.segments):
            yield "segment"
            if at in each.mtimes:
                yield f"  mtime {_time(each.mtimes[at])}"
            for raw in segment:
                yield from (f"  {line}" for line in printer.lines(raw))
        when = "" if number < len(ROUNDS) and each.now_ms == ROUNDS[number] else f" at={_time(each.now_ms)}"
        yield "expire" if scenario.expires else f"clean{when}"
        yield from (f"> {line}" for line in each.answer)
        before = each


def _time(time_ms: int) -> str:
    sign, left = ("-", T - time_ms) if time_ms < T else ("", time_ms - T)
    days, left = divmod(left, 86_400_000)
    seconds, ms = divmod(left, 1_000)
    parts = [f"{number}{unit}" for number, unit in ((days, "d"), (seconds, "s"), (ms, "ms")) if number]
    return sign + ("".join(parts) or "0ms")


def _shown(data: bytes | None) -> str:
    if data is None:
        return "none"
    if not data:
        return '""'
    return data.decode() if _PLAIN.fullmatch(data) and data != b"none" and not data.startswith(b"0x") else f"0x{data.hex()}"


class _Batches:
    """Prints batches one after another: ``offset`` is that of the next record if none is named."""

    def __init__(self) -> None:
        self.offset = 0

    def lines(self, raw: bytes) -> list[str]:
        batches = list(decode(raw))
        if len(batches) == 1:
            before = self.offset
            for read in (self._marker, self._batch, self._message_set):
                self.offset = before
                lines = read(batches[0])
                if lines and self._encodes(lines, before, raw):
                    return lines
            self.offset = before
        return [f"bytes {raw.hex()}"]

    def _encodes(self, lines: Sequence[str], offset: int, raw: bytes) -> bool:
        try:
            (found,) = parse([f"writer offset={offset}", "segment", *lines, "clean"]).rounds
        except (ValueError, OverflowError):
            return False
        return found.segments == [[raw]]

    def _marker(self, batch: NaiveBatch) -> list[str]:
        kind = {COMMIT: "commit", ABORT: "abort"}.get(batch.control_type() if batch.control and batch.count else -1)  # type: ignore[arg-type]
        if kind is None:
            return []
        gap, self.offset = batch.base_offset - self.offset, batch.next_offset
        (record,) = batch.records()
        horizon = "" if batch.delete_horizon_ms is None else f" horizon={_time(batch.delete_horizon_ms)}"
        line = f"{kind} {batch.producer_id}.{batch.producer_epoch}{self._at(record)}{horizon}"
        return [*([f"gap {gap}"] if gap else []), line]

    def _at(self, record: NaiveRecord) -> str:
        return "" if record.timestamp == T + record.offset * 1000 else f" time={_time(record.timestamp)}"

    def _batch(self, batch: NaiveBatch) -> list[str]:
        if batch.magic < 2 or batch.control:
            return []
        records = batch.records()
        latest = max((record.timestamp for record in records), default=-1)
        words = {
            "codec": CODECS[batch.codec] if batch.codec and batch.codec < len(CODECS) else None,
            "epoch": batch.leader_epoch or None,
            "append-time": _time(batch.max_timestamp) if batch.log_append_time else None,
            "max-time": _time(batch.max_timestamp) if batch.max_timestamp != latest and not batch.log_append_time else None,
            "base": batch.base_offset if not records or records[0].offset != batch.base_offset else None,
            "last": batch.last_offset if not records or records[-1].offset != batch.last_offset else None,
            "producer": f"{batch.producer_id}.{batch.producer_epoch}" if batch.producer_id >= 0 else None,
            "sequence": batch.base_sequence if batch.base_sequence != -1 else None,
            "in-transaction": "yes" if batch.transactional else None,
            "horizon": _time(batch.delete_horizon_ms) if batch.delete_horizon_ms is not None else None,
        }
        return ["batch" + "".join(f" {name}={value}" for name, value in words.items() if value is not None),
                *map(self._record, records)]  # fmt: skip

    def _message_set(self, batch: NaiveBatch) -> list[str]:
        codec = f" codec={CODECS[batch.codec]}" if batch.codec and batch.codec < len(CODECS) else ""
        return [] if batch.magic == 2 else [f"v{batch.magic}{codec}", *map(self._record, batch.records())]

    def _record(self, record: NaiveRecord) -> str:
        key = "." if record.key is None else _shown(record.key)
        # letters are keys of one record each, and a capital letter is a tombstone
        if record.key is not None and re.fullmatch(rb"[A-Za-z]+", record.key) and not re.fullmatch(rb"[a-z]", record.key):
            key = f"0x{record.key.hex()}"
        offset = "" if record.offset == self.offset else f" offset={record.offset}"
        self.offset = record.offset + 1
        headers = "".join(
            f" header:{_shown(name)}={'null' if value is None else _shown(value)}" for name, value in record.headers
        )
        return f"record {key}{offset}{self._at(record)} value={_shown(record.value)}{headers}"
