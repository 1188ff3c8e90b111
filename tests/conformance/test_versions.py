"""The rules of every version leave what the cleaner of that version leaves: random logs, scenarios and the sample.

One version of each rule set, the last or the first that has it. ``make search`` has all versions and other random logs.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.conformance.bench import Bench
from tests.conformance.broker_dir import clean_as_broker, logs_of
from tests.conformance.compare import differences
from tests.conformance.fuzz import CASES, local_job, random_sizes, run_stories
from tests.conformance.ours import clean_in_process
from tests.conformance.stories import Story, random_story, read_story
from tests.conformance.test_sample import CONFIGS, HOUR_MS
from tests.golden import unpack_sample
from tests.kafka.gateway import Gateway
from tests.kafka.jars import REFERENCE
from tests.memory import scratch
from tests.scenarios.language import Scenario, scenarios

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

#: the judges, and the rules of another version that differ least from theirs
JUDGES = {"2.8.2": "3.1", "3.0.2": "3.1", "3.3.2": "3.4", "3.9.1": "3.9.2", "3.9.2": "4.0", "4.0.2": "4.4", "4.4.0": "4.3"}
#: what ``make test`` does with the reference version is done here with the others
OTHERS = pytest.mark.parametrize("judge", [version for version in JUDGES if version != REFERENCE], indirect=True)
#: the first seed, and how many
FIRST, STORIES = 40, 8
#: stories that show the difference between any two of these
TELLING = range(40)
#: a version whose rules hardly a random log tells from the judge's, and a case that does: empty segments (KAFKA-12889)
RARE = {"2.8.2": ("3.0", "an-empty-segment-joins-a-far-group-since-3-0")}
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
    return {name: one for name, one in found.items() if one.high_watermark is None or release >= (3, 1)}


@OTHERS
def test_random_logs_equal_the_versions_own_after_every_round(judge: Gateway) -> None:
    stories = [random_story(seed, judge.release) for seed in range(FIRST, FIRST + STORIES)]
    with scratch() as root:
        tally = run_stories(judge, root, stories, local_job(random_sizes(FIRST), version=judge.version))
    assert not tally.failed, [(each.story.name, each.problems[:3]) for each in tally.failed]
    assert tally.cleaned > 0


def test_random_logs_show_the_rules_of_another_version(judge: Gateway) -> None:
    if judge.version in RARE:
        version, case = RARE[judge.version]
        story = read_story(CASES / f"{case}.json")
        assert differ(judge, version, [story]), f"{case} is the same by the rules of {judge.version} and {version}"
    other = JUDGES[judge.version]
    stories = [random_story(seed, judge.release) for seed in TELLING]
    if not any(differ(judge, other, stories[start : start + 10]) for start in range(0, len(stories), 10)):
        pytest.fail(f"{len(TELLING)} random logs are the same by the rules of {judge.version} and {other}")


def differ(judge: Gateway, version: str, stories: Sequence[Story]) -> bool:
    """Whether any of these stories differs by the rules of that version."""
    with scratch() as root:
        return bool(run_stories(judge, root, stories, local_job(version=version)).failed)


@OTHERS
def test_scenarios_equal_the_versions_own(judge: Gateway) -> None:
    with scratch() as root:
        rounds = Bench(judge, root, scenarios_for(judge.release)).run()
    problems = {key: found for key, each in rounds.items() if (found := each.problems())}
    assert not problems


@OTHERS
def test_the_sample_equals_the_versions_own(judge: Gateway, tmp_path: Path) -> None:
    kafkas = unpack_sample(tmp_path)
    ours = tmp_path / "ours"
    shutil.copytree(kafkas, ours)
    as_of_ms = int((kafkas / "meta.properties").stat().st_mtime) * 1000 + HOUR_MS
    for log in logs_of(kafkas):
        clean_as_broker(judge, kafkas, log, CONFIGS[log.rsplit("-", 1)[0]], as_of_ms)
    clean_in_process(ours, as_of_ms, "--kafka-version", judge.version)
    assert [text for log in logs_of(kafkas) for text in differences(judge, ours / log, kafkas / log)] == []
