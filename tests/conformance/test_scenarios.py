"""The job has the same result for every scenario and round as Kafka's own cleaner: files, times, offsets and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from compaction import count
from compaction.counting.byte_usage import STORED
from tests.conformance.bench import Bench, Round
from tests.kafka.gateway import Gateway
from tests.scenarios.language import files, scenarios

pytestmark = pytest.mark.kafka

GROUPS = {name: scenarios(name) for name in files()}
#: of the others, some files are of logs of which nothing is removed
RULES = "cleaning", "planning", "transactions"
CASES = [
    pytest.param(group, name, number, id=f"{name}-{number + 1}")
    for group, scenarios in GROUPS.items()
    for name, scenario in scenarios.items()
    for number in range(len(scenario.rounds))
]
Outcomes = Mapping[tuple[str, int], Round]


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The directory of each group."""
    return {group: tmp_path_factory.mktemp(group) for group in GROUPS}


@pytest.fixture(scope="module")
def outcomes(gateway: Gateway, roots: Mapping[str, Path]) -> Callable[[str], Outcomes]:
    """The outcomes of a group: all of its scenarios, cleaned by both sides at once when first used.

    An error of the group's run fails each of its tests, and is not repeated.
    """
    done: dict[str, Outcomes | Exception] = {}

    def run(group: str) -> Outcomes:
        if group not in done:
            try:
                done[group] = Bench(gateway, roots[group], GROUPS[group]).run()
            except Exception as error:
                done[group] = error
        found = done[group]
        if isinstance(found, Exception):
            raise found
        return found

    return run


@pytest.mark.parametrize(("group", "name", "number"), CASES)
def test_the_log_equals_kafkas(outcomes: Callable[[str], Outcomes], group: str, name: str, number: int) -> None:
    assert outcomes(group)[name, number].problems() == []


@pytest.mark.parametrize("group", GROUPS)
def test_the_answers_in_the_file_are_kafkas(outcomes: Callable[[str], Outcomes], group: str) -> None:
    """Otherwise: ``python -m tests.scenarios``."""
    for name, scenario in GROUPS[group].items():
        found = [list(outcomes(group)[name, number].answer) for number in range(len(scenario.rounds))]
        assert [list(answer) for answer in scenario.answers] == found, name


@pytest.mark.parametrize("group", RULES)
def test_kafka_removes_records_in_most_scenarios(outcomes: Callable[[str], Outcomes], group: str) -> None:
    kafkas = [outcomes(group)[name, 0].kafkas for name in GROUPS[group]]
    assert sum(one is not None and one.stats.messages_written < one.stats.messages_read for one in kafkas) > len(kafkas) / 2


def test_kafka_skips_some_logs(outcomes: Callable[[str], Outcomes]) -> None:
    planned = {**outcomes("cleaning"), **outcomes("planning")}
    alone = {name for (name, number), one in planned.items() if number == 0 and one.kafkas is None}
    assert alone >= {"nothing-dirty", "ratio-under-the-bound", "ratio-at-the-bound", "too-young-all", "a-single-segment"}


@pytest.mark.parametrize("group", GROUPS)
def test_every_byte_of_the_logs_is_counted(outcomes: Callable[[str], Outcomes], roots: Mapping[str, Path], group: str) -> None:
    outcomes(group)
    plan = count(roots[group] / "kafkas", stored=True, engine="local").plan
    readable = [log for log in plan.logs if log.error is None]
    assert len(readable) > len(GROUPS[group]) / 2
    for log in readable:
        assert log.usage is not None
        files = Path(log.location.path).glob("*.log")
        assert log.usage.file_bytes == sum(file.stat().st_size for file in files), log.location
        assert log.usage.states[:, :, STORED].sum() == log.usage.file_bytes, log.location
