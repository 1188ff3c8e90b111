"""The job without Spark leaves of random logs, round after round, the bytes that the plain cleaner leaves.

The plain cleaner is held to Kafka's own in ``tests/oracle``, the job itself in ``tests/conformance``.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from compaction.kernels.keys import KeyFilter
from compaction.run.sizing import Sizes
from tests.memory import scratch
from tests.passes.random_cases import FLAVOURS, NOW_MS, random_case, random_cases
from tests.passes.rounds import assert_four_rounds_equal, run_round

WHOLE = Sizes(1 << 30, 1 << 30, 1 << 30)
TINY = Sizes(500, 1_500, 7)


@pytest.mark.parametrize(("sizes", "seeds"), [(WHOLE, range(6)), (TINY, range(6, 10)), (None, range(10, 12))])
def test_four_rounds_give_the_output_of_the_plain_cleaner(sizes: Sizes | None, seeds: range) -> None:
    cases = random_cases(seeds)
    with scratch() as root:
        assert_four_rounds_equal(root / "logs", cases, NOW_MS, sizes)


@pytest.mark.parametrize("version", ["2.8.2", "3.0.2", "3.9.1", "3.9.2", "4.3.1"])
def test_four_rounds_by_the_rules_of_a_version_give_the_output_of_the_plain_cleaner(version: str) -> None:
    with scratch() as root:
        assert_four_rounds_equal(root / "logs", random_cases(range(2)), NOW_MS, version=version)


def test_a_log_is_cleaned_the_same_by_itself_and_among_many() -> None:
    together = random_cases(range(2))
    with scratch() as root:
        assert not list(run_round(root / "together", together, NOW_MS))
        for flavour, among in zip(FLAVOURS, together, strict=False):
            alone = random_case(flavour, 0)
            assert not list(run_round(root / "alone", [alone], NOW_MS))
            assert (among.name, among.segments) == (alone.name, alone.segments)


def test_mostly_clean_logs_need_few_lookups_for_the_same_output(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = {"before": 0, "after": 0}
    prune = KeyFilter.prune

    def counted(self: KeyFilter, given: NDArray[np.uint64], first_dirty_offset: int) -> NDArray[np.uint64]:
        kept = prune(self, given, first_dirty_offset)
        lookups["before"] += len(given)
        lookups["after"] += len(kept)
        return kept

    monkeypatch.setattr(KeyFilter, "prune", counted)
    cases = random_cases(range(20, 26))
    for case in cases:
        # all but the last closed segment count as cleaned
        case.checkpoint = case.segments[max(0, len(case.segments) - 2)].base_offset
    with scratch() as root:
        found = list(run_round(root / "logs", cases, NOW_MS, TINY))
    assert not found, found[:5]
    assert 0 < lookups["after"] < lookups["before"]
