"""Logs whose figures are estimated, simulated and as Kafka's own log and cleaner leave them."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

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
@pytest.mark.parametrize("policy", [0, 1, 3])
def test_estimates_are_within_their_bounds(gateway: Gateway, tmp_path: Path, shape: Shape, median: float, policy: int) -> None:
    days = story(100 + policy, shape, keys=300)
    kafka = by_kafka(gateway, tmp_path / "t-0", days, POLICIES[policy])
    ours = by_simulation(tmp_path / "whole", days, POLICIES[policy])
    differences = [abs(mine.size / theirs.size - 1) for mine, theirs in zip(ours, kafka, strict=True) if theirs.size]
    assert statistics.median(differences) <= median
    assert max(differences) <= 0.08
    assert [day.cleaned for day in ours] == [day.cleaned for day in kafka]
