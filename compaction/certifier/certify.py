"""Certifies logs: walk every segment, compare every range of offsets, join the keys, conclude.

What is proved for each log:

1. every record of ``after`` is that of ``before`` at its offset, but for what a rewrite may change (``batch_checks``);
2. every record that is missing has a reason (``compare``, ``key_tables``): superseded by a later record of the same key below
   the cleaner checkpoint that is not aborted, a tombstone past its horizon, aborted, a marker, without a key (Kafka: invalid),
   below the log start, or expired;
3. ends, checkpoints, indexes, transactions and the active segment agree (``log_checks``, ``index_checks``, ``txn_outcomes``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from compaction.certifier.certificate import LogCertificate, VerifyReport
from compaction.certifier.checks.log_checks import check_log
from compaction.certifier.checks.log_pair import Findings, LogPair, RangeTask
from compaction.certifier.checks.offset_ranges import RANGE_BYTES, slices
from compaction.certifier.checks.record_checks import RangeResult
from compaction.certifier.checks.segment_walk import SegmentWalk, WalkTask
from compaction.certifier.checks.txn_checks import Transactions, check_index, check_markers, check_open, check_outcomes
from compaction.certifier.task_runner import TaskRunner


def certify_pairs(
    engine: TaskRunner, pairs: Sequence[LogPair | LogCertificate], now_ms: int, range_bytes: int = RANGE_BYTES
) -> VerifyReport:
    """The certificates of all logs, in order; what could not be paired is passed on."""
    started = time.monotonic()
    logs = {log: pair for log, pair in enumerate(pairs) if isinstance(pair, LogPair)}
    tasks = [task for log, pair in logs.items() for task in _walk_tasks(log, pair)]
    walks: dict[tuple[int, bool], list[SegmentWalk]] = {}
    for walk in engine.walk(tasks):
        walks.setdefault((walk.task.log, walk.task.is_after), []).append(walk)
    certificates: dict[int, LogCertificate] = {}
    findings: dict[int, Findings] = {}
    works: list[RangeTask] = []
    for log, pair in logs.items():
        before, after = walks[log, False], walks[log, True]
        error = next((walk.error for walk in before if walk.error is not None), None)
        if error is not None:
            certificates[log] = LogCertificate.failed(pair.topic_partition, error)
            continue
        findings[log] = Findings()
        works += work_on(log, pair, before, after, findings[log], engine.parts, range_bytes)
    results = engine.compare(works, {log: logs[log].rules.strict for log in findings})
    certificates |= _conclude(logs, findings, results)
    outcome = (certificates[log] if isinstance(pair, LogPair) else pair for log, pair in enumerate(pairs))
    return VerifyReport(now_ms, tuple(outcome), time.monotonic() - started)


def _walk_tasks(log: int, pair: LogPair) -> Iterator[WalkTask]:
    twins = {each.base_offset: each for each in pair.before.segments}
    yield from (WalkTask(log, each, is_after=False) for each in pair.before.segments)
    yield from (WalkTask(log, each, True, twins.get(each.base_offset)) for each in pair.after.segments)


def walk_both_sides(engine: TaskRunner, pair: LogPair) -> tuple[list[SegmentWalk], list[SegmentWalk]]:
    """The segments of one log's sides."""
    walks = engine.walk(list(_walk_tasks(0, pair)))
    return [walk for walk in walks if not walk.task.is_after], [walk for walk in walks if walk.task.is_after]


def _conclude(
    logs: Mapping[int, LogPair], findings: Mapping[int, Findings], results: Sequence[RangeResult]
) -> dict[int, LogCertificate]:
    counts: dict[int, Counter[str]] = {log: Counter() for log in findings}
    errors: dict[int, str] = {}
    for result in results:
        findings[result.log].join(result.findings)
        counts[result.log].update(result.counts)
        if result.error is not None:
            errors[result.log] = result.error
    certificates = {}
    for log, found in findings.items():
        name, count = logs[log].topic_partition, counts[log]
        balance = count["records_before"] - count["missing"] - count["records_after"]
        if balance and not found.count:
            found.add(logs[log].after.log_start_offset, f"numbers of records do not balance: {balance} more before than after")
        judged = log not in errors
        certificates[log] = LogCertificate.of(name, found, count) if judged else LogCertificate.failed(name, errors[log])
    return certificates


def work_on(
    log: int,
    pair: LogPair,
    before: list[SegmentWalk],
    after: list[SegmentWalk],
    findings: Findings,
    parts: int,
    range_bytes: int,
) -> Iterator[RangeTask]:
    """Check what the walks tell, and cut the log into ranges of offsets."""
    check_log(pair, before, after, findings)
    was, is_ = Transactions.of(before), Transactions.of(after)
    check_outcomes(was, is_, findings)
    check_markers(was, is_, pair, findings)
    check_open(was, pair, findings)
    check_index(before, after, is_, pair, findings)
    return slices(log, pair, before, after, was.aborted(), parts, range_bytes)
