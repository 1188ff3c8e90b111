"""Logs cleaned by ``compaction.strategy`` timestamp and header have, round after round, the bytes of the plain cleaner's.

The plain cleaner keeps a dictionary of the record of each key with the highest rank (``tests.oracle.cleaner``).
"""

from __future__ import annotations

import random

import pytest

from compaction.engine.sizing import Sizes
from tests.local_job import read_offsets
from tests.memory import scratch
from tests.passes.random_cases import NOW_MS, RANKED_FLAVOURS, random_case
from tests.passes.rounds import move_on, run_round

WHOLE = Sizes(1 << 30, 1 << 30, 1 << 30)
#: many slices, tasks and shards
TINY = Sizes(500, 1_500, 7)


@pytest.mark.parametrize("strategy", ["timestamp", "v"])
@pytest.mark.parametrize(("sizes", "seeds"), [(WHOLE, range(5)), (TINY, range(5, 9))])
def test_four_rounds_give_the_output_of_the_plain_cleaner(strategy: str, sizes: Sizes, seeds: range) -> None:
    cases = [random_case(flavour, seed, strategy) for seed in seeds for flavour in RANKED_FLAVOURS]
    rng, now_ms = random.Random(seeds.start), NOW_MS
    with scratch() as root:
        for number in range(4):
            found = list(run_round(root / "logs", cases, now_ms, sizes))
            assert not found, f"round {number}: {found[:5]}"
            move_on(rng, cases, read_offsets(root / "logs", "cleaner_offsets"))
            now_ms += (0, 1_000, 10**9)[number % 3]
    assert sum(not case.ended for case in cases) > len(cases) / 2
