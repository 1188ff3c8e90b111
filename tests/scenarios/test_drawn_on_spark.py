"""Random logs are left on Spark as without it: all files, checkpoints and figures."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from compaction.run.sizing import Sizes
from tests.scenarios.draw import ROUND_TIMES, drawn
from tests.scenarios.language import Scenario
from tests.scenarios.runner import by, on_spark
from tests.scenarios.test_drawn import differences, kept_by

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def logs() -> dict[str, Scenario]:
    """Each with its first round alone, at one time."""
    found = drawn(range(60, 72))
    return {name: replace(one, rounds=[replace(one.rounds[0], now_ms=ROUND_TIMES[0])]) for name, one in found.items()}


#: many tasks
TINY = pytest.param(Sizes(600, 2_000, 5), marks=pytest.mark.slow)


@pytest.mark.parametrize("sizes", [TINY, Sizes(2_000, 600, 1 << 20), None], ids=["tiny", "mixed", "by size"])
def test_both_leave_the_same(spark: SparkSession, sizes: Sizes | None, logs: dict[str, Scenario]) -> None:
    assert differences(kept_by(on_spark(spark, sizes), logs), kept_by(by(sizes=sizes), logs)) == []
