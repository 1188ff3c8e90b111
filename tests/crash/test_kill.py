"""A few of the kills that ``tests.crash.kill`` does by the hundred."""

from __future__ import annotations

import pytest

from tests.crash.kill import run

pytestmark = [pytest.mark.crash, pytest.mark.spark]


def test_a_killed_run_is_made_good_by_the_next_one() -> None:
    """Every third chain runs on executors of their own."""
    tally = run(seed=20, kills=15, cluster_every=3)
    assert sum(tally.kills.values()) >= 15
    assert tally.reruns >= 3
