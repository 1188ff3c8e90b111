"""Findings are printed in the order of Kafka's maps; pairs of offsets are stored in memory or in a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compaction.dumping.findings import MISMATCH, NOT_FOUND, OUT_OF_ORDER, TIMESTAMP, Findings, PairSpool, java_order


def test_paths_are_in_the_order_of_a_java_map() -> None:
    # hash codes of one-letter strings are their letters; a table of 16 places takes 13 of them, then 32 places are needed
    few = dict.fromkeys("qpab")
    assert [name for name, _ in java_order(few)] == ["p", "a", "q", "b"]
    many = {chr(97 + number): None for number in range(14)}
    assert [name for name, _ in java_order(many)] == sorted(many)


def test_kinds_of_findings_have_a_fixed_order() -> None:
    findings = Findings()
    spool = PairSpool()
    spool.append(-1, 4)
    findings.gaps["/log"] = spool
    for kind, *pairs in ((NOT_FOUND, (7, -1)), (OUT_OF_ORDER, (5, 6)), (TIMESTAMP, (1, 2), (3, 4))):
        for pair in pairs:
            findings.add(kind, "/time", pair)
    for pair in ((3, 5), (9, 8), (3, 4)):
        findings.add(MISMATCH, "/index", pair)
    assert [row.text for _, row in findings.rows()] == [
        "Mismatches in :/index",
        "  Index offset: 9, log offset: 8",
        "  Index offset: 3, log offset: 4",
        "Found timestamp mismatch in :/time",
        "  Index timestamp: 1, log timestamp: 2",
        "  Index timestamp: 3, log timestamp: 4",
        "Found out of order timestamp in :/time",
        "  Index timestamp: 5, Previously indexed timestamp: 6",
        "The following indexed offsets are not found in :/time",
        "Indexed offset: 7, found log offset: -1",
        "Non-consecutive offsets in /log",
        "  -1 is followed by 4",
    ]
    findings.close()


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
