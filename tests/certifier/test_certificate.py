"""Certificates as text and as JSON."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from compaction.certifier.certificate import MOST_NAMED, Findings, LogCertificate, Status, VerifyReport, Violation
from compaction.names import TopicPartition

LOG = TopicPartition("orders", 3)


def compared(violations: int, **counts: int) -> LogCertificate:
    findings = Findings()
    for offset in range(violations):
        findings.add(offset, "broken")
    return LogCertificate.of(LOG, findings, Counter(counts))


def test_missing_records_without_a_reason_are_lost() -> None:
    found = compared(1, records_before=10, records_after=4, missing=6, superseded=3, invalid=1)
    assert (found.lost, sum(found.missing.values())) == (2, 4)
    assert found.lines() == [
        "orders-3 violated: 10 -> 4 records, 2 LOST",
        "    missing: 3 superseded, 1 without a key",
        "    orders-3:0: broken",
    ]


def test_the_text_names_the_first_violations_and_counts_the_rest() -> None:
    lines = compared(25).lines()
    assert len(lines) == 22
    assert lines[-1] == "    and 5 more violations"


HOLDS, VIOLATED, FAILED = compared(0), compared(1), LogCertificate.failed(LOG, "unreadable")


@pytest.mark.parametrize(
    ("logs", "status", "exit_code"),
    [
        ((), Status.HOLDS, 0),
        ((HOLDS, HOLDS), Status.HOLDS, 0),
        ((HOLDS, FAILED), Status.FAILED, 1),
        ((FAILED, VIOLATED, HOLDS), Status.VIOLATED, 1),
    ],
)
def test_one_violated_log_decides_the_status_of_all(logs: tuple[LogCertificate, ...], status: Status, exit_code: int) -> None:
    report = VerifyReport(5, logs, kafka_versions={"Kafka 3.9 (--kafka-version)": len(logs)})
    assert (report.status, report.exit_code) == (status, exit_code)
    document = json.loads(report.to_json())
    assert document["kafka_versions"] == {"Kafka 3.9 (--kafka-version)": len(logs)}
    assert (document["status"], document["totals"]["logs"], len(document["logs"])) == (status.value, len(logs), len(logs))


def test_all_violations_are_counted_and_those_with_the_lowest_offsets_are_named() -> None:
    findings, other = Findings(), Findings()
    findings.add_all(np.arange(5_000, 100, -1, dtype=np.int64), "high")
    other.add(7, "low")
    findings.join(other)
    assert findings.count == 4_901
    assert findings.named == [Violation(7, "low"), *(Violation(101 + n, "high") for n in range(MOST_NAMED - 1))]
