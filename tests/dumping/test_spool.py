"""Pairs stored in memory or in a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compaction.dumping.findings import PairSpool


@pytest.fixture(params=[1 << 20, 4], ids=["in memory", "in a file"])
def spool(request: pytest.FixtureRequest) -> Iterator[PairSpool]:
    made = PairSpool(request.param)
    yield made
    made.close()


def test_increasing_pairs_are_returned_unchanged(spool: PairSpool) -> None:
    for number in range(200_000):
        spool.append(number, number % 50_000)
    found = list(spool)
    assert len(found) == 200_000
    assert found[:2] == [(0, 0), (1, 1)]
    assert found[-1] == (199_999, 49_999)


def test_other_pairs_are_sorted_and_the_last_of_equal_ones_wins(spool: PairSpool) -> None:
    for pair in ((5, 1), (9, 2), (5, 3), (-(2**63), 4)):
        spool.append(*pair)
    assert list(spool) == [(-(2**63), 4), (5, 3), (9, 2)]


def test_it_can_be_read_again(spool: PairSpool) -> None:
    spool.append(1, 2)
    assert list(spool) == list(spool) == [(1, 2)]


def test_an_empty_spool_is_reported_as_empty(spool: PairSpool) -> None:
    assert spool.empty
    assert list(spool) == []
    spool.append(-1, 0)
    assert not spool.empty
