"""The job has the same result for every scenario and round as Kafka's own cleaner: files, times, offsets and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from compaction import count
from compaction.counting.byte_usage import STORED
from tests.conformance.kafkas import Compared
from tests.kafka.gateway import Gateway, shared_gateway
from tests.kafka.jars import REFERENCE
from tests.scenarios.language import files, scenarios
from tests.scenarios.runner import Left, expire_in_place, in_place_by

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
                ours = expire_in_place if expires else in_place_by(version or REFERENCE)
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
