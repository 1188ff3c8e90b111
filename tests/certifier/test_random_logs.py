"""Random logs cleaned over several rounds hold; damaged ones are judged as by the oracle."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from compaction.certifier.certificate import LogCertificate, Status
from compaction.certifier.find_pairs import VerifyRequest
from compaction.report import LogReport, LogStatus
from tests.certifier.certify import certify
from tests.certifier.oracle import Judgement, Round, judge
from tests.local_job import KAFKA, clean_locally, read_offsets, resolver_of
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.records import NaiveBatch, NaiveRecord, encode
from tests.oracle.segments import NaiveSegment, write_segment
from tests.passes.random_cases import INTERVAL_BYTES, NOW_MS, Case, lay_out, random_cases

#: how the texts of violations begin, by the oracle's sets of offsets
_LOST = ("record is missing", "control record is missing")
_CHANGED = ("timestamp of", "key of", "value of", "headers of")


class Rounds:
    """Rounds over random logs in ``root``: ``before`` is a copy of what ``logs`` was."""

    def __init__(self, root: Path, seed: int, kafka_version: str = KAFKA) -> None:
        self.kafka_version = kafka_version
        self.logs, self.before = root / "logs", root / "before"
        self.cases = random_cases([seed])
        for case in self.cases:
            # what lies below a checkpoint is clean
            case.checkpoint = case.segments[0].base_offset

    def run(self, now_ms: int) -> dict[str, LogReport]:
        """One round; the cases that did not fail move on by ``settle``."""
        for place in (self.logs, self.before):
            shutil.rmtree(place, ignore_errors=True)
        self.cases = [case for case in self.cases if not case.ended]
        lay_out(self.logs, self.cases, now_ms)
        shutil.copytree(self.logs, self.before)
        return clean_locally(self.logs, now_ms, self.topics, kafka_version=self.kafka_version)

    @property
    def topics(self) -> dict[str, dict[str, str]]:
        return {case.name: case.topic_config for case in self.cases}

    def request(self, now_ms: int, *, in_place: bool = False) -> VerifyRequest:
        before = () if in_place else (str(self.before),)
        given = resolver_of(self.topics)
        request = VerifyRequest(before, (str(self.logs),), now_ms, exact=True, resolver=given, strict=True)
        return replace(request, kafka_version=self.kafka_version)

    def settle(self, rng: random.Random, reports: dict[str, LogReport]) -> None:
        ends = read_offsets(self.logs, "cleaner_offsets")
        for case in self.cases:
            case.ended = reports[case.name].status is LogStatus.FAILED
            for file in (self.logs / f"{case.name}-0").glob("*.deleted"):
                file.unlink()
            case.segments = read_partition(self.logs / f"{case.name}-0")
            # where others stay, what is clean is cleaned again
            if rng.random() < 0.4 and case.name in ends:
                case.checkpoint = ends[case.name]


@pytest.mark.parametrize(("seed", "range_bytes", "version"), [(0, 400, "2.8"), (1, 1 << 20, "4.3"), (2, 1_500, "3.9.1")])
def test_the_result_of_every_round_holds(seed: int, range_bytes: int, version: str) -> None:
    rng, now_ms, judged = random.Random(seed), NOW_MS, Counter[bool]()
    with scratch() as root:
        rounds = Rounds(root, seed, version)
        for number in range(4):
            reports = rounds.run(now_ms)
            for in_place in (False, True):
                for log in certify(rounds.request(now_ms, in_place=in_place), range_bytes).logs:
                    assert (log.status, log.violations, log.lost) == (Status.HOLDS, (), 0), log.lines()
                    if not in_place and reports[log.topic].status is LogStatus.CLEANED:
                        assert _figures(log) == _told(reports[log.topic])
                    judged[in_place] += 1
            rounds.settle(rng, reports)
            now_ms += (0, 1_000, 10**9)[number % 3]
    assert judged[True] == judged[False] > 40


def _figures(log: LogCertificate) -> tuple[int, ...]:
    return tuple(log.missing[reason] for reason in ("superseded", "tombstone", "aborted", "marker", "invalid"))


def _told(report: LogReport) -> tuple[int, ...]:
    removed = report.superseded_records, report.tombstones_removed, report.aborted_records
    return (*removed, report.markers_removed, report.invalid_records)


@pytest.mark.parametrize("seed", range(3, 6))
def test_damaged_logs_are_judged_as_by_the_oracle(seed: int) -> None:
    rng, damaged = random.Random(seed), 0
    with scratch() as root:
        rounds = Rounds(root, seed)
        rounds.run(NOW_MS)
        ends = read_offsets(rounds.logs, "cleaner_offsets")
        judgements: dict[str, Judgement] = {}
        for case in rounds.cases:
            after = _damaged(rng, read_partition(rounds.logs / f"{case.name}-0"))
            shutil.rmtree(rounds.logs / f"{case.name}-0")
            write_partition(rounds.logs / f"{case.name}-0", after)
            before = read_partition(rounds.before / f"{case.name}-0")
            judgements[case.name] = judge(before, after, _round(case, ends[case.name], after))
        for log in certify(rounds.request(NOW_MS), 700).logs:
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


def _round(case: Case, cleaned_to: int, after: Sequence[NaiveSegment]) -> Round:
    # nothing is clean before the first round
    return Round(case.segments[0].base_offset, cleaned_to, NOW_MS, 0)


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
