"""Policies through time, as simulated and as Kafka's own log and cleaner carry them out, day by day under its mock of time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.gateway import Gateway
from tests.policies.evenings import POLICIES, by_kafka, by_simulation
from tests.policies.stories import Shape, story

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
