"""Findings are printed in the order of Kafka's maps."""

from __future__ import annotations

from compaction.dumping.findings import Findings, PairSpool, java_order


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
    findings.not_found["/time"] = [(7, -1)]
    findings.out_of_order["/time"] = [(5, 6)]
    findings.timestamps["/time"] = [(1, 2), (3, 4)]
    findings.mismatches["/index"] = {3: 4, 9: 8}
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
