"""The job has the same result for every scenario and round as Kafka's own cleaner: files, times, offsets and figures;
and for logs that no scenario has, because Kafka truncates them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from compaction import count
from compaction.certifier.certificate import Status
from compaction.counting.byte_usage import STORED
from compaction.names import CLEAN_SHUTDOWN
from compaction.report import LogStatus
from tests.certifier.certify import certify_copy
from tests.conformance.compare import differences
from tests.conformance.kafkas import Compared
from tests.kafka.cleaner import CleanResult, clean_partition_if_due
from tests.kafka.gateway import Gateway, shared_gateway
from tests.kafka.jars import REFERENCE
from tests.kafka.log import KafkaLog, Opening
from tests.local_job import clean_locally
from tests.scenarios.language import DAY, ROUNDS, T, files, parse, scenarios
from tests.scenarios.runner import Left, by, expire_in_place

pytestmark = pytest.mark.kafka

GROUPS = {name: scenarios(name) for name in files()}
CASES = [
    pytest.param(group, name, number, id=f"{name}-{number + 1}")
    for group, scenarios in GROUPS.items()
    for name, scenario in scenarios.items()
    for number in range(len(scenario.rounds))
]
Outcomes = Mapping[tuple[str, int], tuple[Left, list[str]]]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The directory of each group."""
    return {group: tmp_path_factory.mktemp(group) for group in GROUPS}


@pytest.fixture(scope="module")
def outcomes(gateway: Gateway, roots: Mapping[str, Path]) -> Callable[[str], Outcomes]:
    """The outcomes of a group: all of its scenarios, cleaned by both sides at once when first used.

    An error of the group's run fails each of its tests, and is not repeated.
    """

    @cache
    def run(group: str) -> Outcomes | Exception:
        done: dict[tuple[str, int], tuple[Left, list[str]]] = {}
        try:
            for version, expires in sorted({(each.version, each.expires) for each in GROUPS[group].values()}):
                some = {k: each for k, each in GROUPS[group].items() if (each.version, each.expires) == (version, expires)}
                judge = shared_gateway(version) if version else gateway
                ours = expire_in_place if expires else by(version or REFERENCE)
                both = Compared(judge, ours).run(roots[group] / version, some)
                done |= {(each.name, each.number): (each, both.problems[each.name, each.number]) for each in both.rounds}
        except Exception as error:
            return error
        return done

    def outcome(group: str) -> Outcomes:
        found = run(group)
        if isinstance(found, Exception):
            raise found
        return found

    return outcome


@pytest.mark.parametrize(("group", "name", "number"), CASES)
def test_the_log_equals_kafkas(outcomes: Callable[[str], Outcomes], group: str, name: str, number: int) -> None:
    left, problems = outcomes(group)[name, number]
    assert problems == []
    # otherwise: python -m tests.scenarios
    assert left.answer == GROUPS[group][name].answers[number]


@pytest.mark.parametrize("group", GROUPS)
def test_every_byte_of_the_logs_is_counted(outcomes: Callable[[str], Outcomes], roots: Mapping[str, Path], group: str) -> None:
    outcomes(group)
    # each log is where its last round was
    last = {each.parent for each in roots[group].rglob("logs/*-0")}
    readable = [log for log_dir in last for log in count(log_dir, stored=True, engine="local").plan.logs if log.error is None]
    assert len(readable) > len(GROUPS[group]) / 2
    for log in readable:
        assert log.usage is not None
        segments = Path(log.location.path).glob("*.log")
        assert log.usage.file_bytes == sum(file.stat().st_size for file in segments), log.location
        assert log.usage.states[:, :, STORED].sum() == log.usage.file_bytes, log.location


CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def truncated_over_a_marker(gateway: Gateway, path: Path, *, committed: bool, same_segment: bool) -> None:
    """A log whose transaction from offset 2 to 3 has lost its marker at offset 4; its producers had expired before.

    ``UnifiedLog.rebuildProducerState`` replays nothing if it knew no producer before the truncation. Its next snapshots lack
    the producer of the transaction that the truncation left without a marker: there is no such transaction.
    """
    lines = [
        f"segment batch ab | sent 1 ac | {'commit' if committed else 'abort'} 1 | gap -1",
        "segment batch b",
        "segment batch d",
    ]
    (*begun, marker), (after,), (active,) = parse([*lines, "clean"]).rounds[0].segments
    with KafkaLog(gateway, path, Opening(T, CONFIG)) as log:
        log.append(*begun)
        if not same_segment:
            log.roll()
        end = log.end_offset
        log.append(marker)
        log.raise_high_watermark()
        log.clock.set(T + 2 * DAY)
        log.expire_producers()
        log.truncate(end)
        log.append(after)
        log.roll()
        log.append(active)
        log.raise_high_watermark()


@pytest.mark.parametrize("same_segment", [True, False])
@pytest.mark.parametrize("committed", [False, True])
def test_a_log_truncated_over_a_marker_of_an_expired_producer_is_cleaned_as_by_kafka(
    gateway: Gateway, tmp_path: Path, committed: bool, same_segment: bool
) -> None:
    before, ours, kafkas = (tmp_path / name / "t-0" for name in ("before", "ours", "kafkas"))
    truncated_over_a_marker(gateway, kafkas, committed=committed, same_segment=same_segment)
    for copy in (before, ours):
        shutil.copytree(kafkas, copy)
        (copy.parent / CLEAN_SHUTDOWN).touch()
    report = clean_locally(ours.parent, ROUNDS[0], {"t": CONFIG})["t"]
    cleaned = clean_partition_if_due(gateway, kafkas, Opening(ROUNDS[0], CONFIG), None)
    assert differences(gateway, ours, kafkas) == []
    # a snapshot at the end of the segment has the transaction: Kafka loads it, and holds the log back
    assert (report.status is LogStatus.CLEANED) == isinstance(cleaned, CleanResult) == same_segment, report.reason
    if isinstance(cleaned, CleanResult):
        assert (report.end_offset, report.records_after) == (cleaned.end_offset, cleaned.stats.messages_written)
        (certified,) = certify_copy(before.parent, ours.parent, ROUNDS[0], {"t": CONFIG}).logs
        assert (certified.status, certified.violations) == (Status.HOLDS, ())
