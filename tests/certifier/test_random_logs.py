"""Random logs cleaned over several rounds hold; of damaged ones, exactly the records are named that were lost and changed."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compaction.certifier.certificate import LogCertificate, Status
from compaction.certifier.find_pairs import VerifyRequest
from compaction.report import LogReport, LogStatus
from tests.certifier.certify import certify
from tests.local_job import KAFKA, TopicConfigs, clean_locally, resolver_of
from tests.memory import scratch
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.records import NaiveBatch, NaiveRecord, encode
from tests.oracle.segments import NaiveSegment, write_segment
from tests.passes.random_cases import INTERVAL_BYTES, NOW_MS, lay_out, random_cases
from tests.scenarios.draw import drawn
from tests.scenarios.language import KNOWN, Scenario
from tests.scenarios.plain import as_broker, is_plain
from tests.scenarios.runner import Outcomes, outcomes, rounds_of

#: how the texts of violations of a changed record begin
_CHANGED = ("timestamp of", "key of", "value of", "headers of")
#: records by their offsets
Left = dict[int, NaiveRecord]


def asked(
    sources: tuple[str, ...], log_dir: Path, now_ms: int, topics: TopicConfigs, version: str = KAFKA, **known: Any
) -> VerifyRequest:
    return VerifyRequest(sources, (str(log_dir),), now_ms, resolver=resolver_of(topics), kafka_version=version, **known)


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
            for log in certify(asked(sources, log_dir, now_ms, topics, version, exact=True, strict=True), range_bytes).logs:
                assert (log.status, log.violations, log.lost) == (Status.HOLDS, (), 0), log.lines()
                assert not any(log.left.values()), log.left
                if sources and reports[log.topic].status is LogStatus.CLEANED:
                    assert _figures(log) == _told(reports[log.topic])
                judged[not sources] += 1
            # the time of the round need not be known
            for log in certify(asked(sources, log_dir, now_ms + 3_600_000, topics, version), range_bytes).logs:
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
def test_what_is_damaged_afterwards_is_named(seed: int) -> None:
    """Beside it, what a log lost is what the job says that it removed."""
    rng, damaged, cases = random.Random(seed), 0, random_cases([seed])
    topics = {case.name: case.topic_config for case in cases}
    with scratch() as root:
        logs, before = root / "logs", root / "before"
        # what lies below a checkpoint would have to be clean
        lay_out(before, [replace(case, checkpoint=case.segments[0].base_offset) for case in cases])
        shutil.copytree(before, logs)
        reports = clean_locally(logs, NOW_MS, topics)
        sound, left = dict[str, Left](), dict[str, Left]()
        for case in cases:
            partition = logs / f"{case.name}-0"
            sound[case.name] = what_is_left(read_partition(partition))
            segments = _damaged(rng, read_partition(partition))
            left[case.name] = what_is_left(segments)
            shutil.rmtree(partition)
            write_partition(partition, segments)
        for log in certify(asked((str(before),), logs, NOW_MS, topics, exact=True, strict=True), 700).logs:
            lost = set(sound[log.topic]) - set(left[log.topic])
            changed = {at for at, record in left[log.topic].items() if record != sound[log.topic][at]}
            assert (_figures(log), log.lost) == (_told(reports[log.topic]), len(lost)), log.lines()
            if log.violation_count == len(log.violations):
                said = [(each.offset, each.what) for each in log.violations]
                assert {at for at, what in said if what.startswith("record is missing")} == lost
                assert {at for at, what in said if what.startswith(_CHANGED)} == changed
            damaged += bool(lost or changed)
    assert damaged > 5


def what_is_left(segments: Sequence[NaiveSegment]) -> Left:
    return {record.offset: record for segment in segments for batch in segment.batches for record in batch.records()}


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
