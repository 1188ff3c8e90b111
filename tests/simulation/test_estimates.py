"""Logs whose figures are estimated, simulated and as Kafka's own log and cleaner leave them."""

from __future__ import annotations

import statistics
from pathlib import Path
from unittest.mock import patch

import pytest

from compaction.simulation import arrivals
from tests.kafka.gateway import Gateway
from tests.simulation.stories import Shape, story
from tests.simulation.test_replay_against_kafka import POLICIES, by_kafka, by_simulation

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(
    ("shape", "median"),
    [
        (Shape(most_records=20, transactions=True), 0.01),
        (Shape(most_records=20, codec="zstd", value_bytes=300), 0.03),
        (Shape(most_records=20, codec="lz4", value_bytes=300, producers=True), 0.03),
    ],
    ids=["plain", "zstd", "lz4"],
)
@pytest.mark.parametrize("policy", [0, 3])
def test_estimates_are_within_their_bounds(gateway: Gateway, tmp_path: Path, shape: Shape, median: float, policy: int) -> None:
    days = story(100 + policy, shape, keys=300)
    kafka = by_kafka(gateway, tmp_path / "t-0", days, POLICIES[policy])
    ours = by_simulation(tmp_path / "whole", days, POLICIES[policy])
    differences = [abs(mine.size / theirs.size - 1) for mine, theirs in zip(ours, kafka, strict=True) if theirs.size]
    assert statistics.median(differences) <= median
    assert max(differences) <= 0.08
    assert [day.cleaned for day in ours] == [day.cleaned for day in kafka]


@pytest.mark.parametrize("policy", [0, 2])
def test_a_large_log_is_simulated_by_its_parts(gateway: Gateway, tmp_path: Path, policy: int) -> None:
    """Cleanings may come a check earlier or later: sizes are compared over the whole time."""
    config = {**POLICIES[policy], **({"internal.segment.bytes": "100000", "retention.bytes": "1000000"} if policy == 2 else {})}
    days = story(200 + policy, Shape(most_records=20, transactions=True), per_day=30, keys=900)
    kafka = by_kafka(gateway, tmp_path / "t-0", days, config)
    with patch.object(arrivals, "EXACT_RECORDS", 10):
        ours = by_simulation(tmp_path / "whole", days, config)
    mine, theirs = ([day.size for day in each] for each in (ours, kafka))
    assert statistics.mean(mine) == pytest.approx(statistics.mean(theirs), rel=0.08)
    assert max(mine) == pytest.approx(max(theirs), rel=0.2)
    assert sum(day.cleaned for day in ours) == pytest.approx(sum(day.cleaned for day in kafka), abs=2)
