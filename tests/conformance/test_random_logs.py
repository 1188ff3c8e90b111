"""Random logs, cleaned by the job and by Kafka, are equal afterwards; ``tests/scenarios/found.txt`` has all that once were not.
A chain of copies with ``--since``, each of a source that a broker appends to, has the logs of as many rounds of Kafka's own
cleaner on a log with the same appends.

``make search`` draws other seeds, ``python -m tests.conformance.fuzz`` runs any number.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compaction.certifier.certificate import LogCertificate
from compaction.names import TopicPartition
from tests.conformance import kafkas
from tests.conformance.fuzz import Batch
from tests.conformance.growing_logs import HOUR_MS, GrowingLogs, Logs
from tests.conformance.kafkas import Compared
from tests.kafka.gateway import Gateway
from tests.memory import scratch
from tests.oracle.random_logs import Flavour
from tests.scenarios.language import scenarios
from tests.scenarios.plain import plainly
from tests.scenarios.runner import by
from tests.scenarios.test_drawn import plain

pytestmark = pytest.mark.kafka

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
    assert len(logs.checkpoints) == len(GROWING)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_copy_is_found_out_and_costs_no_record(gateway: Gateway, tmp_path: Path, seed: int) -> None:
    logs = GROWING if seed else {name: GROWING[name] for name in ("few-keys", "transactions", "at-once")}
    assert GrowingLogs(gateway, tmp_path, seed, logs, damaging=True).problems() == []
