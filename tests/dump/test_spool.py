"""Pairs stored in memory or in a file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from compaction.dump.spool import PairSpool


@pytest.fixture(params=[1 << 20, 4], ids=["in memory", "in a file"])
def spool(request: pytest.FixtureRequest) -> Iterator[PairSpool]:
    made = PairSpool(request.param)
    yield made
    made.close()


def pairs(*rows: tuple[int, int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array(rows, np.int64).reshape(-1, 2)


def test_increasing_pairs_are_returned_unchanged(spool: PairSpool) -> None:
    for start in range(0, 200_000, 50_000):
        spool.append(np.stack([np.arange(start, start + 50_000), np.arange(50_000)], axis=1))
    found = list(spool)
    assert len(found) == 200_000
    assert found[:2] == [(0, 0), (1, 1)]
    assert found[-1] == (199_999, 49_999)


def test_other_pairs_are_sorted_and_the_last_of_equal_ones_wins(spool: PairSpool) -> None:
    spool.append(pairs((5, 1), (9, 2)))
    spool.append(pairs())
    spool.append(pairs((5, 3), (-(2**63), 4)))
    assert list(spool) == [(-(2**63), 4), (5, 3), (9, 2)]


def test_it_can_be_read_again(spool: PairSpool) -> None:
    spool.append(pairs((1, 2)))
    assert list(spool) == list(spool) == [(1, 2)]


def test_an_empty_spool_is_reported_as_empty(spool: PairSpool) -> None:
    assert spool.empty
    assert list(spool) == []
    spool.append(pairs((-1, 0)))
    assert not spool.empty
