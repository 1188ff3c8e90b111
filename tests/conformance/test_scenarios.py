"""The job has the same result for every scenario and random log and round as Kafka's own cleaner: files, times, offsets and
figures; and for logs that no scenario has, because Kafka truncates them. ``scenarios/found.txt`` has the random logs for which
it once had not.

A chain of copies with ``--since``, each of a source that a broker appends to, has the logs of as many rounds of Kafka's own
cleaner on a log with the same appends. ``make search`` draws other seeds, ``python -m tests.conformance.fuzz`` runs any number.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compaction import count
from compaction.certifier.certificate import LogCertificate, Status
from compaction.counting.byte_usage import STORED
from compaction.names import CLEAN_SHUTDOWN, TopicPartition
from tests.certifier.certify import certify_copy
from tests.conformance import kafkas
from tests.conformance.fuzz import Batch
from tests.conformance.growing_logs import HOUR_MS, GrowingLogs, Logs
from tests.conformance.kafkas import Compared, checkpoints, clean_as_broker, different_logs
from tests.kafka.gateway import Gateway, shared_gateway
from tests.kafka.jars import REFERENCE
from tests.kafka.log import KafkaLog, Opening
from tests.local_job import clean_locally
from tests.memory import scratch
from tests.oracle.random_logs import Flavour
from tests.scenarios.language import DAY, ROUNDS, T, files, parse, scenarios
from tests.scenarios.plain import plainly
from tests.scenarios.runner import Left, by, expire_in_place, outcome_of
from tests.scenarios.test_drawn import plain

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
    theirs = clean_as_broker(gateway, kafkas.parent, "t-0", CONFIG, ROUNDS[0])
    assert [*different_logs(gateway, ours.parent, kafkas.parent, "t-0")] == []
    assert outcome_of(report).seen_by(theirs) == theirs
    # a snapshot at the end of the segment has the transaction: Kafka loads it, and holds the log back
    assert (theirs.end_offset is not None) is same_segment, report.reason
    if same_segment:
        (certified,) = certify_copy(before.parent, ours.parent, ROUNDS[0], {"t": CONFIG}).logs
        assert (certified.status, certified.violations) == (Status.HOLDS, ())


#: the first seed, and how many
FIRST, LOGS = 40, 40
GROWING: Logs = {
    "plain": (Flavour(transactions=False, keys=40, batches=90), {}),
    "few-keys": (Flavour(batches=60, keys=2), {}),
    "transactions": (Flavour(batches=120, settled=0.6), {}),
    "compressed": (Flavour(batches=90, codecs=(0, 1, 2, 3, 4)), {}),
    "message-sets": (Flavour(batches=60, magics=(0, 1, 2), settled=0.5), {}),
    "odd": (Flavour(batches=90, odd=0.4, settled=0.6), {}),
    "ratio": (Flavour(batches=120, keys=30), {"min.cleanable.dirty.ratio": "0.5"}),
    "lag": (Flavour(batches=120, keys=30), {"min.compaction.lag.ms": str(2 * HOUR_MS)}),
    "at-once": (Flavour(batches=90, keys=5), {"delete.retention.ms": "0"}),
}
SEEDS = (0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow))


@pytest.mark.usefixtures("gateway")
def test_random_logs_equal_kafkas_after_every_round() -> None:
    both = Batch(FIRST, LOGS).run()
    assert both.failed == {}
    assert both.cleaned > LOGS


def test_the_plain_cleaner_leaves_what_kafka_leaves_after_every_round(gateway: Gateway) -> None:
    """So it may judge the job where there is no Kafka (``tests/scenarios/test_drawn.py``)."""
    with scratch() as root:
        both = Compared(gateway, plainly(plain())).run(root, plain())
    assert both.failed == {}
    assert both.cleaned > len(plain())


def test_what_verify_rejects_fails_a_log_unless_its_checkpoint_is_invented(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(before: Path, *_: Any, logs: Collection[TopicPartition], **__: Any) -> SimpleNamespace:
        assert before.is_dir()
        return SimpleNamespace(logs=[LogCertificate.violated(log, 0, "a record is lost") for log in logs])

    monkeypatch.setattr(kafkas, "certify_copy", reject)
    known = scenarios("found")["an-emptied-batch-has-no-codec"]
    assert known.knows_what_was_cleaned
    invented = replace(known, rounds=[replace(known.rounds[0], checkpoint=1), *known.rounds[1:]])
    with scratch() as root:
        both = Compared(gateway, by()).run(root, {"known": known, "invented": invented})
    assert ["a record is lost" in problem for problems in both.failed.values() for problem in problems] == [True]
    assert [*both.failed] == ["known"]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_copy_equals_the_log_after_kafkas_rounds(gateway: Gateway, tmp_path: Path, seed: int) -> None:
    logs = GrowingLogs(gateway, tmp_path, seed, GROWING)
    assert logs.problems() == []
    assert len(checkpoints(logs.kafkas, "cleaner_offsets")) == len(GROWING)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_copy_is_found_out_and_costs_no_record(gateway: Gateway, tmp_path: Path, seed: int) -> None:
    logs = GROWING if seed else {name: GROWING[name] for name in ("few-keys", "transactions", "at-once")}
    assert GrowingLogs(gateway, tmp_path, seed, logs, damaging=True).problems() == []
