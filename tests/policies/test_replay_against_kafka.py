"""Policies through time, as simulated and as Kafka's own log and cleaner carry them out, day by day under its mock of time."""

from __future__ import annotations

import statistics
from pathlib import Path
from unittest.mock import patch

import pytest

from compaction.policies import arrivals
from tests.kafka.gateway import Gateway
from tests.policies.evenings import POLICIES, Shape, by_kafka, by_simulation, story

pytestmark = pytest.mark.kafka


#: each story by two policies, each policy for two stories
PAIRS = [(number, (number + more) % len(POLICIES)) for number in range(4) for more in (0, 1)]


@pytest.mark.parametrize(("number", "policy"), PAIRS)
def test_each_evening_is_kafkas_to_the_byte(gateway: Gateway, tmp_path: Path, number: int, policy: int) -> None:
    transactions, long = number in (1, 3), number == 3
    shape = Shape(transactions=transactions, long_transactions=long, producers=number == 2, keyless=number % 2 == 1)
    days = story(number, shape)
    kafka = by_kafka(gateway, tmp_path / "t-0", days, POLICIES[policy])
    assert by_simulation(tmp_path / "whole", days, POLICIES[policy]) == kafka
    assert any(day.cleaned for day in kafka) or policy == 2


@pytest.mark.parametrize("policy", range(len(POLICIES)))
def test_segments_without_timestamps_are_rolled_and_deleted_as_by_kafka(gateway: Gateway, tmp_path: Path, policy: int) -> None:
    """They are rolled ``segment.ms`` after they were created, and are as old as their files."""
    days = story(policy, Shape(timeless=True))
    kafka = by_kafka(gateway, tmp_path / "t-0", days, POLICIES[policy])
    assert by_simulation(tmp_path / "whole", days, POLICIES[policy]) == kafka
    assert len({day.segments for day in kafka}) > 1


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
