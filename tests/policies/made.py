"""Comparisons made by hand."""

from __future__ import annotations

from dataclasses import replace

from compaction.policies.comparison import (
    ComparedLog,
    Comparison,
    Distribution,
    KeyFigures,
    LogTotals,
    Outcome,
    OutcomeStatus,
    RepetitionRange,
)
from compaction.policies.shared_passes import AGE_BOUNDS_MS, POSITIONS
from compaction.report import LogReport, LogStatus

#: 2025-11-18T08:53:20Z
AS_OF_MS = 1_763_456_000_000
POLICIES = ("cleanup.policy=compact", "cleanup.policy=delete,retention.bytes=1000")
WHY = ("yes   cleanup policy compact includes compact", "no    ratio 0.2 > 0.5\n      becomes cleanable after 3 kB more")


def log(
    name: str,
    size: int,
    *,
    left: tuple[int, int] = (50, 80),
    expired: int = 20,
    status: OutcomeStatus = OutcomeStatus.CLEANED,
    log_dir: str = "/data",
    reason: str = "over 0.5",
) -> ComparedLog:
    """A log of ``size`` kB of which the two policies leave so many per cent; a record is 100 bytes."""
    topic, _, partition = name.rpartition("-")
    return ComparedLog(
        topic,
        int(partition),
        log_dir,
        before=_held(size, 100),
        spread=_spread(size, 100),
        keys=KeyFigures(size * 3, 9, tuple(RepetitionRange(a, b, size, size * a) for a, b in ((1, 1), (2, 2), (5, 8)))),
        outcomes=(
            Outcome(
                POLICIES[0], status, reason,
                LogReport(topic, int(partition), log_dir, LogStatus.CLEANED, reason, compacted=True),
                after=_held(size, left[0]), gone=_spread(size, 100 - left[0]), broker_rounds=2, why=WHY,
            ),
            Outcome(
                POLICIES[1], OutcomeStatus.CLEANED, "2 of 9 segments expire",
                LogReport(topic, int(partition), log_dir, LogStatus.CLEANED, "2 of 9 segments expire", expired_segments=2),
                after=_held(size, left[1]), expired=_held(size, expired), gone=_spread(size, 100 - left[1]),
                expired_by_age=_spread(size, min(expired, 100 - left[1])).by_age,
            ),
        ),
    )  # fmt: skip


def skipped(name: str, size: int, code: str) -> ComparedLog:
    """A log that the first policy does not change."""
    made = log(name, size)
    first = made.outcomes[0]
    run = replace(first.run, status=LogStatus.SKIPPED, reason_code=code, compacted=False)
    unchanged = replace(first, status=OutcomeStatus.SKIPPED, reason=f"{code}: not yet", run=run, after=made.before)
    return replace(made, outcomes=(unchanged, *made.outcomes[1:]))


def failed(name: str, error: str) -> ComparedLog:
    """A log without figures."""
    topic, _, partition = name.rpartition("-")
    return ComparedLog(topic, int(partition), "/data", error=error)


def comparison(*logs: ComparedLog) -> Comparison:
    return Comparison("run-1", AS_OF_MS, POLICIES, logs, AGE_BOUNDS_MS, 1.25)


def _held(size: int, percent: int) -> LogTotals:
    records = size * percent // 10
    return LogTotals(size * 10 * percent, 9 * percent // 100, records, records * 80, records // 10, records // 50)


def _spread(size: int, percent: int) -> Distribution:
    records = size * percent // 10
    ages = (0, records // 4, records - records // 4, *(0 for _ in AGE_BOUNDS_MS[2:]), 0)
    places = tuple(records // POSITIONS for _ in range(POSITIONS))
    return Distribution(ages, tuple(80 * each for each in ages), places)
