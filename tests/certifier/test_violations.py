"""A log with millions of violations has all of them counted and the first few named."""

from __future__ import annotations

import numpy as np

from compaction.certifier.certificate import MOST_NAMED, Findings, Violation


def test_all_violations_are_counted_and_those_with_the_lowest_offsets_are_named() -> None:
    findings, other = Findings(), Findings()
    findings.add_all(np.arange(5_000, 100, -1, dtype=np.int64), "high")
    other.add(7, "low")
    findings.join(other)
    assert findings.count == 4_901
    assert findings.named == [Violation(7, "low"), *(Violation(101 + n, "high") for n in range(MOST_NAMED - 1))]
