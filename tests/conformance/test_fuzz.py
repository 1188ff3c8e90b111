"""Random logs, cleaned by the job and by Kafka, are equal afterwards; ``tests/scenarios/found.txt`` has all that once were not.

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
from tests.conformance import kafkas
from tests.conformance.fuzz import random_sizes, run_scenarios
from tests.kafka.gateway import Gateway
from tests.memory import scratch
from tests.scenarios.draw import draw, drawn
from tests.scenarios.language import scenarios
from tests.scenarios.plain import is_plain, plainly
from tests.scenarios.runner import in_place_by, on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

#: the first seed, and how many; on Spark fewer, which takes longer for each
FIRST, LOGS, ON_SPARK = 40, 40, 4
#: the first logs of the plain cleaner's tests
JUDGED = 120


def test_random_logs_equal_kafkas_after_every_round(gateway: Gateway) -> None:
    with scratch() as root:
        found = {f"seed{seed}": draw(seed) for seed in range(FIRST, FIRST + LOGS)}
        tally = run_scenarios(gateway, root, found, in_place_by(sizes=random_sizes(FIRST)))
    assert not tally.failed
    assert tally.cleaned > LOGS


def test_the_plain_cleaner_leaves_what_kafka_leaves_after_every_round(gateway: Gateway) -> None:
    """So it may judge the job where there is no Kafka (``tests/scenarios/test_drawn.py``)."""
    found = {name: one for name, one in drawn(range(JUDGED)).items() if is_plain(one)}
    with scratch() as root:
        tally = run_scenarios(gateway, root, found, plainly(found))
    assert not tally.failed
    assert tally.cleaned > JUDGED


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
        tally = run_scenarios(gateway, root, {"known": known, "invented": invented}, in_place_by())
    assert ["a record is lost" in problem for problems in tally.failed.values() for problem in problems] == [True]
    assert [*tally.failed] == ["known"]


@pytest.mark.slow
def test_random_logs_equal_kafkas_after_every_round_on_spark(request: pytest.FixtureRequest, gateway: Gateway) -> None:
    spark: SparkSession = request.getfixturevalue("spark")
    with scratch() as root:
        found = {f"seed{seed}": draw(seed) for seed in range(FIRST, FIRST + ON_SPARK)}
        tally = run_scenarios(gateway, root, found, on_spark(spark, random_sizes(FIRST, spark=True)))
    assert not tally.failed
    assert tally.cleaned > ON_SPARK
