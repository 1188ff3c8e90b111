"""Random logs cleaned over several rounds hold; damaged ones are judged as by an oracle, which has dictionaries of records and
judges no files."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from compaction.certifier.certificate import LogCertificate, Status
from compaction.certifier.find_pairs import VerifyRequest
from compaction.report import LogReport, LogStatus
from tests.certifier.certify import certify
from tests.local_job import KAFKA, TopicConfigs, clean_locally, read_offsets, resolver_of
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.logs import ABORT, COMMIT
from tests.oracle.records import NaiveBatch, NaiveRecord, _text, encode
from tests.oracle.segments import NaiveSegment, write_segment
from tests.passes.random_cases import INTERVAL_BYTES, NOW_MS, Case, lay_out, random_cases
from tests.scenarios.draw import drawn
from tests.scenarios.language import KNOWN, Scenario
from tests.scenarios.plain import as_broker, is_plain
from tests.scenarios.runner import Outcomes, outcomes, rounds_of

#: how the texts of violations begin, by the oracle's sets of offsets
_LOST = ("record is missing", "control record is missing")
_CHANGED = ("timestamp of", "key of", "value of", "headers of")


@dataclass(frozen=True)
class Round:
    """The bounds of a round before which nothing is clean."""

    log_start: int
    cleaned_to: int
    now_ms: int


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
    found, sources = Judgement(), {record.offset: (batch, record) for batch, record in _all(before)}
    left = {record.offset: _as_written(batch, record) for batch, record in _all(after)}
    outcome = ends_of_transactions(before)
    last: dict[bytes, int] = {}
    kept_of: Counter[bytes] = Counter()
    for offset, (batch, record) in sources.items():
        counts = not batch.control and outcome[batch.last_offset] != ABORT and offset < round_.cleaned_to
        if record.key is not None and counts:
            last[record.key] = max(offset, last.get(record.key, -1))
            kept_of[record.key] += offset in left
    for offset, record in left.items():
        if offset not in sources:
            found.made_up.add(offset)
        elif _plain(record) != _plain(_as_written(*sources[offset])):
            found.changed.add(offset)
    for offset, (batch, record) in sources.items():
        if offset not in left:
            reason = _reason(batch, record, last, outcome[batch.last_offset], round_)
            if reason is None:
                found.lost.add(offset)
            else:
                found.reasons[reason] += 1
            if reason == "tombstone" and kept_of[record.key or b""]:
                found.brings_back.add(offset)
    return found


def ends_of_transactions(segments: Sequence[NaiveSegment]) -> dict[int, int | None]:
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


def _all(segments: Sequence[NaiveSegment]) -> Iterator[tuple[NaiveBatch, NaiveRecord]]:
    for segment in segments:
        for batch in segment.batches:
            for record in batch.records():
                yield batch, record


def _as_written(batch: NaiveBatch, record: NaiveRecord) -> NaiveRecord:
    """A v0 message in a v1 wrapper with log append time gets that timestamp when rewritten."""
    return replace(record, timestamp=batch.max_timestamp) if batch.magic == 1 and batch.log_append_time else record


def _plain(record: NaiveRecord) -> tuple[object, ...]:
    headers = tuple((_text(name), value) for name, value in record.headers)
    return record.timestamp, record.key, record.value, headers


def _reason(batch: NaiveBatch, record: NaiveRecord, last: dict[bytes, int], outcome: int | None, round_: Round) -> str | None:
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
    passed = batch.magic == 2 and horizon_ms is not None and horizon_ms <= round_.now_ms
    return "tombstone" if record.value is None and passed else None


def clean_from_the_start(seed: int) -> list[Case]:
    """Random logs; what lies below a checkpoint would have to be clean."""
    cases = random_cases([seed])
    for case in cases:
        case.checkpoint = case.segments[0].base_offset
    return cases


def request(before: Path | None, logs: Path, cases: Sequence[Case], now_ms: int, version: str = KAFKA) -> VerifyRequest:
    topics = resolver_of({case.name: case.topic_config for case in cases})
    sources = () if before is None else (str(before),)
    made = VerifyRequest(sources, (str(logs),), now_ms, exact=True, resolver=topics, strict=True)
    return replace(made, kafka_version=version)


def from_the_start(scenario: Scenario) -> Scenario:
    """What lies below a checkpoint is clean; each second one is lost, so that what is clean is cleaned again. Nothing is below
    a log start, which has a figure of its own."""
    rounds = enumerate(scenario.rounds)
    kept = [replace(each, checkpoint=None if number % 2 else KNOWN, log_start=0) for number, each in rounds]
    return replace(scenario, rounds=kept)


@pytest.mark.parametrize(("first", "range_bytes", "version"), [(0, 400, "2.8.2"), (30, 1 << 20, "4.3.1"), (60, 1_500, "3.9.1")])
def test_the_result_of_every_round_holds(first: int, range_bytes: int, version: str) -> None:
    judged = Counter[bool]()

    def certified(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
        before = Path(shutil.copytree(log_dir, log_dir.with_name("before")))
        reports = clean_locally(log_dir, now_ms, topics, kafka_version=version)
        for sources in ((str(before),), ()):
            made = VerifyRequest(sources, (str(log_dir),), now_ms, exact=True, resolver=resolver_of(topics), strict=True)
            for log in certify(replace(made, kafka_version=version), range_bytes).logs:
                assert (log.status, log.violations, log.lost) == (Status.HOLDS, (), 0), log.lines()
                assert not any(log.left.values()), log.left
                if sources and reports[log.topic].status is LogStatus.CLEANED:
                    assert _figures(log) == _told(reports[log.topic])
                judged[not sources] += 1
            # the time of the round need not be known
            later = VerifyRequest(sources, (str(log_dir),), now_ms + 3_600_000, resolver=resolver_of(topics))
            for log in certify(replace(later, kafka_version=version), range_bytes).logs:
                assert (log.status, log.violations) == (Status.HOLDS, ()), log.lines()
        return outcomes(reports.values()), log_dir

    found = drawn(range(first, first + 15), tuple(map(int, version.split("."))))
    known = {name: from_the_start(one) for name, one in found.items() if is_plain(one)}
    with scratch() as root:
        assert len([*rounds_of(root, known, certified, as_broker)]) > 25
    assert judged[True] == judged[False] > 25


def _figures(log: LogCertificate) -> tuple[int, ...]:
    return tuple(log.missing[reason] for reason in ("superseded", "tombstone", "aborted", "marker", "invalid"))


def _told(report: LogReport) -> tuple[int, ...]:
    removed = report.superseded_records, report.tombstones_removed, report.aborted_records
    return (*removed, report.markers_removed, report.invalid_records)


@pytest.mark.parametrize("seed", range(3, 6))
def test_damaged_logs_are_judged_as_by_the_oracle(seed: int) -> None:
    rng, damaged, cases = random.Random(seed), 0, clean_from_the_start(seed)
    with scratch() as root:
        logs, before = root / "logs", root / "before"
        lay_out(before, cases)
        shutil.copytree(before, logs)
        clean_locally(logs, NOW_MS, {case.name: case.topic_config for case in cases})
        ends = read_offsets(logs, "cleaner_offsets")
        judgements: dict[str, Judgement] = {}
        for case in cases:
            after = _damaged(rng, read_partition(logs / f"{case.name}-0"))
            shutil.rmtree(logs / f"{case.name}-0")
            write_partition(logs / f"{case.name}-0", after)
            judgements[case.name] = judge(case.segments, after, Round(case.segments[0].base_offset, ends[case.name], NOW_MS))
        for log in certify(request(before, logs, cases, NOW_MS), 700).logs:
            expected, said = judgements[log.topic], {(each.offset, each.what) for each in log.violations}
            assert {reason: n for reason, n in log.missing.items() if n} == dict(expected.reasons), log.lines()
            assert log.lost == len(expected.lost)
            if log.violation_count == len(log.violations):
                assert {at for at, what in said if what.startswith(_LOST) and "marker" not in what} == expected.lost
                assert {at for at, what in said if what.startswith(_CHANGED)} == expected.changed
                assert {at for at, what in said if what.startswith("record is not in")} == expected.made_up
                assert {at for at, what in said if what.startswith("tombstone is")} == expected.brings_back
            damaged += bool(expected.lost or expected.changed or expected.made_up)
    assert damaged > 5


def _damaged(rng: random.Random, segments: list[NaiveSegment]) -> list[NaiveSegment]:
    """One to three records dropped, changed or moved, with good CRCs and indexes."""
    for _ in range(rng.randrange(1, 4)):
        places = [(s, b) for s, segment in enumerate(segments) for b, batch in enumerate(segment.batches) if _can_change(batch)]
        if not places:
            return segments
        s, b = rng.choice(places)
        segment, batch = segments[s], segments[s].batches[b]
        records = list(_changed(rng, batch.records()))
        horizon_ms = -1 if batch.delete_horizon_ms is None else batch.delete_horizon_ms
        raw = [each.raw for each in segment.batches]
        raw[b : b + 1] = [encode(batch, records, horizon_ms, names_as_text=False)] if records else []
        segments[s] = write_segment(segment.base_offset, raw, INTERVAL_BYTES, segment.mtime_ms, segment.aborted_txns)
    return segments


def _can_change(batch: NaiveBatch) -> bool:
    return batch.magic == 2 and batch.count > 0 and not batch.control and not batch.log_append_time


def _changed(rng: random.Random, records: list[NaiveRecord]) -> Iterator[NaiveRecord]:
    chosen, how = rng.randrange(len(records)), rng.randrange(5)
    for number, record in enumerate(records):
        if number != chosen:
            yield record
        elif how == 1:
            yield replace(record, value=(record.value or b"") + b"!")
        elif how == 2:
            yield replace(record, key=b"another")
        elif how == 3:
            yield replace(record, timestamp=record.timestamp + 1)
        elif how == 4:
            yield replace(record, headers=(*record.headers, (b"more", None)))
