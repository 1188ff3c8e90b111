"""Random logs, cleaned by the job and by Kafka, are equal afterwards; so are all logs that once were not.

``make search`` draws other seeds, ``python -m tests.conformance.fuzz`` runs any number.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from compaction.certifier.certificate import LogCertificate
from compaction.names import TopicPartition
from tests.conformance import fuzz_bench
from tests.conformance.fuzz import CASES, local_job, random_sizes, run_stories
from tests.conformance.stories import random_story, read_story
from tests.kafka.gateway import Gateway, shared_gateway
from tests.local_job import clean_on_spark
from tests.memory import scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

#: the first seed, and how many; on Spark fewer, which takes longer for each
FIRST, STORIES, ON_SPARK = 40, 40, 4
KNOWN = sorted(CASES.glob("*.json"))


def test_random_logs_equal_kafkas_after_every_round(gateway: Gateway) -> None:
    with scratch() as root:
        stories = [random_story(seed) for seed in range(FIRST, FIRST + STORIES)]
        tally = run_stories(gateway, root, stories, local_job(random_sizes(FIRST)))
    assert not tally.failed, [(each.story.name, each.problems[:3]) for each in tally.failed]
    assert tally.cleaned > STORIES


def test_what_verify_rejects_fails_a_log_unless_its_checkpoint_is_invented(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(before: Path, *_: Any, logs: Collection[TopicPartition], **__: Any) -> SimpleNamespace:
        assert before.is_dir()
        return SimpleNamespace(logs=[LogCertificate.violated(log, 0, "a record is lost") for log in logs])

    monkeypatch.setattr(fuzz_bench, "certify_copy", reject)
    known = read_story(CASES / "a-record-without-a-key-goes.json")
    assert known.knows_what_was_cleaned
    invented = replace(known, name="invented", turns=(replace(known.turns[0], checkpoint=1), *known.turns[1:]))
    with scratch() as root:
        tally = run_stories(gateway, root, [known, invented], local_job())
    assert ["a record is lost" in problem for each in tally.failed for problem in each.problems] == [True]
    assert [each.story.name for each in tally.failed] == [known.name]


@pytest.mark.slow
def test_random_logs_equal_kafkas_after_every_round_on_spark(request: pytest.FixtureRequest, gateway: Gateway) -> None:
    spark: SparkSession = request.getfixturevalue("spark")
    with scratch() as root:
        stories = [random_story(seed) for seed in range(FIRST, FIRST + ON_SPARK)]
        tally = run_stories(gateway, root, stories, clean_on_spark(random_sizes(FIRST, spark=True), spark))
    assert not tally.failed, [(each.story.name, each.problems[:3]) for each in tally.failed]
    assert tally.cleaned > ON_SPARK


@pytest.mark.parametrize("case", KNOWN, ids=[case.stem for case in KNOWN])
def test_a_case_that_the_fuzzer_once_found_equals_kafkas_result(gateway: Gateway, case: Path) -> None:
    story = read_story(case)
    judge = shared_gateway(story.version) if story.version else gateway
    with scratch() as root:
        tally = run_stories(judge, root, [story], local_job(version=judge.version))
    assert not tally.failed, tally.failed[0].problems
    assert tally.rounds > 0


def test_there_are_cases() -> None:
    assert KNOWN
