"""Logs whose figures are estimated, simulated and as Kafka's own log and cleaner leave them."""

from __future__ import annotations

import statistics
from pathlib import Path
from unittest.mock import patch

import pytest

from compaction.policies import arrivals
from tests.kafka.gateway import Gateway
from tests.policies.evenings import POLICIES, by_kafka, by_simulation
from tests.policies.stories import Shape, story

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    ("shape", "policy", "median"),
    [
        (Shape(most_records=20, transactions=True), 0, 0.01),
        (Shape(most_records=20, codec="zstd", value_bytes=300), 3, 0.03),
        (Shape(most_records=20, codec="lz4", value_bytes=300, producers=True), 0, 0.03),
    ],
    ids=["plain", "zstd", "lz4"],
)
def test_estimates_are_within_their_bounds(gateway: Gateway, tmp_path: Path, shape: Shape, policy: int, median: float) -> None:
    days = story(100 + policy, shape, keys=300)
    kafka = by_kafka(gateway, tmp_path / "t-0", days, POLICIES[policy])
    ours = by_simulation(tmp_path / "whole", days, POLICIES[policy])
    differences = [abs(mine.size / theirs.size - 1) for mine, theirs in zip(ours, kafka, strict=True) if theirs.size]
    assert statistics.median(differences) <= median
    assert max(differences) <= 0.08
    assert [day.cleaned for day in ours] == [day.cleaned for day in kafka]


@pytest.mark.parametrize("policy", [0, 2])
def test_a_large_log_is_simulated_by_its_parts(gateway: Gateway, tmp_path: Path, policy: int) -> None:
    config = {**POLICIES[policy], **({"internal.segment.bytes": "600000", "retention.bytes": "4000000"} if policy == 2 else {})}
    days = story(500, Shape(most_records=20), days=30, per_day=80, keys=6000)
    kafka = by_kafka(gateway, tmp_path / "t-0", days, config)
    with patch.object(arrivals, "EXACT_RECORDS", 10):
        ours = by_simulation(tmp_path / "whole", days, config)
    mine, theirs = ([day.size for day in each] for each in (ours, kafka))
    differences = [abs(one / other - 1) for one, other in zip(mine, theirs, strict=True)]
    assert statistics.mean(mine) == pytest.approx(statistics.mean(theirs), rel=0.02)
    assert max(mine) == pytest.approx(max(theirs), rel=0.02)
    assert statistics.median(differences) <= 0.01
    assert max(differences) <= 0.05
    assert [day.cleaned for day in ours] == [day.cleaned for day in kafka]
