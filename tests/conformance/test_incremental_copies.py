"""A chain of copies with ``--since``, each of a source that a broker appends to, has the logs of as many rounds of Kafka's own
cleaner on a log with the same appends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.growing_logs import HOUR_MS, GrowingLogs, Logs
from tests.kafka.gateway import Gateway
from tests.oracle.random_logs import Flavour

pytestmark = pytest.mark.kafka

LOGS: Logs = {
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


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_each_copy_equals_the_log_after_kafkas_rounds(gateway: Gateway, tmp_path: Path, seed: int) -> None:
    logs = GrowingLogs(gateway, tmp_path, seed, LOGS)
    assert logs.problems() == []
    assert len(logs.checkpoints) == len(LOGS)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_damaged_copy_is_found_out_and_costs_no_record(gateway: Gateway, tmp_path: Path, seed: int) -> None:
    logs = LOGS if seed else {name: LOGS[name] for name in ("few-keys", "transactions", "at-once")}
    assert GrowingLogs(gateway, tmp_path, seed, logs, damaging=True).problems() == []
