"""The rules of every version leave what the cleaner of that version leaves: random logs, scenarios and the sample.

One version of each rule set, the last or the first that has it. ``make search`` has all versions and other random logs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.fuzz import random_sizes
from tests.conformance.kafkas import Compared, cleaned_by_both
from tests.golden import unpack_sample
from tests.golden.make_sample import CONFIGS
from tests.kafka.gateway import Gateway
from tests.memory import scratch
from tests.scenarios.draw import draw
from tests.scenarios.language import Scenario, scenarios
from tests.scenarios.runner import by

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

#: what ``make test`` does with the reference version is done here with the others
JUDGES = ("2.8.2", "3.0.2", "3.3.2", "3.9.1", "3.9.2", "4.0.2")
#: the first seed, and how many
FIRST, LOGS = 40, 8
SCENARIOS = {name: one for file in ("cleaning", "planning", "transactions") for name, one in scenarios(file).items()}
#: what 2.8 does against its own rules: a marker is lost if a record has its key (KAFKA-14055)
LOSES_MARKERS = "txn-user-keys-like-a-markers"


@pytest.fixture(scope="module", params=JUDGES)
def judge(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """A JVM with the classes of the version."""
    gateway = Gateway(version=request.param)
    yield gateway
    gateway.close()


def scenarios_for(release: tuple[int, ...]) -> dict[str, Scenario]:
    """All but those in which a version is known to lose data that its rules keep."""
    found = {name: one for name, one in SCENARIOS.items() if name != LOSES_MARKERS or release >= (3, 0, 2)}
    # cleans past the high watermark (KAFKA-13194)
    marked = {name for name, one in found.items() if any(each.high_watermark is not None for each in one.rounds)}
    return {name: one for name, one in found.items() if name not in marked or release >= (3, 1)}


def test_random_logs_equal_the_versions_own_after_every_round(judge: Gateway) -> None:
    found = {f"seed{seed}": draw(seed, judge.release) for seed in range(FIRST, FIRST + LOGS)}
    with scratch() as root:
        both = Compared(judge, by(judge.version, random_sizes(FIRST))).run(root, found)
    assert both.failed == {}
    assert both.cleaned > 0


def test_scenarios_equal_the_versions_own(judge: Gateway) -> None:
    with scratch() as root:
        found = scenarios_for(judge.release)
        both = Compared(judge, by(judge.version)).run(root, found)
    assert both.failed == {}
    assert len(both.rounds) == sum(len(each.rounds) for each in found.values())


def test_the_sample_equals_the_versions_own(judge: Gateway, tmp_path: Path) -> None:
    kafkas = unpack_sample(tmp_path)
    ours = Path(shutil.copytree(kafkas, tmp_path / "ours"))
    as_of_ms = int((kafkas / "meta.properties").stat().st_mtime) * 1000 + 3_600_000
    assert cleaned_by_both(judge, ours, kafkas, CONFIGS, as_of_ms, engine="local").problems == []
