"""The sample is cleaned by the job on Spark as by Kafka's cleaner."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.compare import rebuilt
from tests.conformance.kafkas import checkpoints, cleaned_by_both
from tests.golden import unpack_sample
from tests.golden.make_sample import CLEANED, CONFIGS
from tests.kafka.gateway import Gateway
from tests.oracle.disk import read_partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

HOUR_MS = 3_600_000


def test_the_sample_equals_kafkas_and_has_every_reason_to_skip(spark: SparkSession, gateway: Gateway, tmp_path: Path) -> None:
    """After one round an hour after it was created, with its idempotent producers still active."""
    kafkas = unpack_sample(tmp_path)
    ours = Path(shutil.copytree(kafkas, kafkas.with_name("ours")))
    as_of_ms = int((kafkas / "meta.properties").stat().st_mtime) * 1000 + HOUR_MS
    both = cleaned_by_both(gateway, ours, kafkas, CONFIGS, as_of_ms, spark=spark)
    assert both.problems == []
    cleaned = {log: outcome.end_offset for log, outcome in both.outcomes.items() if outcome.end_offset is not None}
    assert checkpoints(ours, "cleaner_offsets") == {f"{CLEANED}-0": 2000, **cleaned}
    skipped = both.outcomes.keys() - cleaned
    assert skipped == {
        "__transaction_state-0",
        "clickstream-0",
        "clickstream-1",
        "inventory-0",
        "ledger-0",
        "never-written-0",
    }
    assert len({both.reports[log].reason for log in skipped}) >= 4
    # an open transaction
    assert cleaned["payments-open-0"] < read_partition(kafkas / "payments-open-0")[-1].base_offset
    # the comparison of compressed segments depends on it
    for log in ("orders-0", "customers-0", "payments-0", "__consumer_offsets-0"):
        segment = read_partition(kafkas / log)[0]
        assert rebuilt(segment, 4096) == (segment.index, segment.time_index)
