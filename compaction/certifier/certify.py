"""Certifies logs: walk all segments, compare all ranges of offsets, join the keys, conclude.

The proof for each log:

1. every record of ``after`` equals that of ``before`` at its offset, except for fields that a rewrite may change
(``records``);
2. every missing record has a reason (``records``, ``key_tables``): superseded by a later record of its key that is below
   the cleaner checkpoint and not aborted, a tombstone past its delete horizon, aborted, a marker, without a key (Kafka:
   invalid), below the log start, or expired;
3. start and end offsets, checkpoints, indexes, transactions and the active segment are consistent (``segments``,
   ``transactions``);
4. the files beside the records equal those of before, or in place agree with the log (``kept_files``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from compaction.certifier.certificate import Findings, LogCertificate, VerifyReport
from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.find_pairs import LogPair, VerifyRequest, find_pairs
from compaction.certifier.kept_files import WalkedLog, check_directories, check_logs
from compaction.certifier.key_tables import JoinedKeys
from compaction.certifier.records import PARTITION_BYTES, RANGE_BYTES, RangeResult, RangeTask, compare_range, cut_into_ranges
from compaction.certifier.segments import SegmentWalk, WalkTask, check_log, log_end, walk_segment
from compaction.certifier.transactions import (
    Transactions,
    check_index,
    check_markers,
    check_open,
    check_outcomes,
    check_retained,
)
from compaction.errors import StorageError
from compaction.screen.amounts import counted
from compaction.screen.steps import step
from compaction.task_runner import Item, Job, Place, Reading, TaskRunner, pack

#: the part of a log under which results travel
_RESULT = -1
#: the walks of ``before`` and of ``after``
Walks = tuple[list[SegmentWalk], list[SegmentWalk]]


def certify(start: Callable[[], TaskRunner], request: VerifyRequest) -> VerifyReport:
    """Certify the requested logs.

    :param start: starts the task runner
    :raises UsageError: a partition that the request names does not exist
    """
    pairs = find_pairs(request)
    return certify_pairs(start(), pairs, request.now_ms)


def certify_pairs(
    runner: TaskRunner,
    pairs: Sequence[LogPair | LogCertificate],
    now_ms: int,
    range_bytes: int = RANGE_BYTES,
    erased: ErasedKeys | None = None,
) -> VerifyReport:
    """Certify all logs, in order, and their log directories. A log that could not be paired already has its certificate.

    :param erased: the keys, if the logs were not cleaned but these keys were erased from them
    """
    started = time.monotonic()
    step(f"verifying {counted(len(pairs), 'log')}")
    logs = {log: pair for log, pair in enumerate(pairs) if isinstance(pair, LogPair)}
    walks = walk_logs(runner, logs)
    certificates: dict[int, LogCertificate] = {}
    findings: dict[int, Findings] = {}
    tasks: list[RangeTask] = []
    results_of_files = check_logs({log: _walked(pair, walks[log][0]) for log, pair in logs.items()})
    for log, pair in logs.items():
        error, log_findings = (
            next((walk.error for walk in walks[log][0] if walk.error is not None), None),
            results_of_files[log],
        )
        if isinstance(log_findings, StorageError):
            error, log_findings = error or str(log_findings), Findings()
        if error is not None:
            certificates[log] = LogCertificate.failed(pair.topic_partition, error)
            continue
        findings[log] = log_findings
        tasks += _check_walks(log, pair, walks[log], findings[log], range_bytes)
    results = compare_ranges(runner, tasks, {log: logs[log].rules.strict for log in findings}, erased)
    certificates |= _conclude(logs, findings, results)
    in_order = (certificates[log] if isinstance(pair, LogPair) else pair for log, pair in enumerate(pairs))
    versions = Counter(pair.rules.kafka_version for pair in logs.values())
    directories = check_directories(logs.values())
    return VerifyReport(now_ms, tuple(in_order), time.monotonic() - started, versions, directories=directories)


def _walked(pair: LogPair, before: Sequence[SegmentWalk]) -> WalkedLog:
    return WalkedLog(pair, log_end(before), tuple(epoch for walk in before for epoch in walk.epochs))


def walk_logs(runner: TaskRunner, logs: Mapping[int, LogPair]) -> dict[int, Walks]:
    """Walk all segments of the logs."""
    walks: dict[int, Walks] = {log: ([], []) for log in logs}
    for walk in walk_segments(runner, [task for log, pair in logs.items() for task in _walk_tasks(log, pair)]):
        walks[walk.task.log][walk.task.is_after].append(walk)
    return walks


def _walk_tasks(log: int, pair: LogPair) -> Iterator[WalkTask]:
    sources = {segment.base_offset: segment for segment in pair.before.segments}
    erases = pair.rules.erases
    # below the log start the cleaner takes aborted data for committed, and an erasure keeps all transactions
    start = 0 if erases else pair.after.log_start_offset
    for segment in pair.before.segments:
        yield WalkTask(log, segment, is_after=False, producers=erases, txns_from=start)
    for segment in pair.after.segments:
        yield WalkTask(log, segment, True, sources.get(segment.base_offset), producers=erases, txns_from=start)


def _check_walks(log: int, pair: LogPair, walks: Walks, findings: Findings, range_bytes: int) -> Iterator[RangeTask]:
    """Make all checks that need no records, and cut the log into ranges."""
    before, after = walks
    check_log(pair, before, after, findings)
    txns_before, txns_after = Transactions.of(before), Transactions.of(after)
    check_outcomes(txns_before, txns_after, findings)
    check_markers(txns_before, txns_after, pair, findings)
    if pair.rules.erases:
        check_retained(txns_before, txns_after, walks, pair, findings)
    else:
        check_open(txns_before, before, pair, findings)
    check_index((before, after), (txns_before, txns_after), pair, findings)
    return cut_into_ranges(log, pair, walks, txns_before.aborted(), range_bytes)


def _conclude(
    logs: Mapping[int, LogPair], findings: Mapping[int, Findings], results: Sequence[RangeResult]
) -> dict[int, LogCertificate]:
    counts: dict[int, Counter[str]] = {log: Counter() for log in findings}
    errors: dict[int, str] = {}
    read = dict.fromkeys(findings, Reading())
    for result in results:
        if not result.joins:
            read[result.log] += result.reading
    for result in results:
        findings[result.log].join(result.findings)
        counts[result.log].update(result.counts)
        error = result.reading.difference(read[result.log]) if result.joins else result.reading.error
        if error is not None:
            # results arrive in no order: of several errors, always report the same one
            errors[result.log] = min(errors.get(result.log, error), error)
    certificates = {}
    for log, log_findings in findings.items():
        name, count = logs[log].topic_partition, counts[log]
        balance = count["records_before"] - count["missing"] - count["records_after"]
        if balance and not log_findings.count:
            log_findings.add(
                logs[log].after.log_start_offset, f"record counts do not balance: {balance} more before than after"
            )
        failed = log in errors
        certificates[log] = LogCertificate.failed(name, errors[log]) if failed else LogCertificate.of(name, log_findings, count)
    return certificates


def walk_segments(runner: TaskRunner, tasks: Sequence[WalkTask]) -> list[SegmentWalk]:
    """Walk each segment; results are in order."""
    packs = pack(tasks, lambda task: task.files.size_bytes, RANGE_BYTES)
    sizes = [sum(task.files.size_bytes for task in tasks) for tasks in packs]
    job = Job.sized("segments", f"verify: walk {counted(len(tasks), 'segment')}", sizes)
    return [walk for walks in runner.run(job, packs, _walk) for walk in walks]


def _walk(tasks: Sequence[WalkTask]) -> list[SegmentWalk]:
    return list(map(walk_segment, tasks))


def compare_ranges(
    runner: TaskRunner, tasks: Sequence[RangeTask], strict: Mapping[int, bool], erased: ErasedKeys | None = None
) -> list[RangeResult]:
    """Compare each range, and join the keys of each log, in no order; ``strict`` is by log."""
    packs = pack(tasks, lambda task: task.size_bytes, RANGE_BYTES)
    sizes = [sum(task.size_bytes for task in tasks) for tasks in packs]
    job = Job.sized("records", f"verify: compare {counted(len(tasks), 'range')} of offsets", sizes)
    reducers = max(1, runner.cores, sum(sizes) // PARTITION_BYTES)
    return runner.exchange(job, packs, partial(_compare, erased=erased), partial(_join, strict=dict(strict)), reducers)


def _compare(tasks: Sequence[RangeTask], erased: ErasedKeys | None) -> Iterator[Item]:
    for task in tasks:
        result, keys = compare_range(task, erased)
        yield (task.log, _RESULT), result
        yield from (((task.log, partition), packed) for partition, packed in keys.packed())
        yield from (((task.log, partition), result.reading) for partition in range(task.partitions))


def _join(items: Iterable[Item], strict: Mapping[int, bool]) -> Iterator[RangeResult]:
    joined: dict[Place, JoinedKeys] = {}
    readings: dict[Place, Reading] = {}
    for place, item in items:
        if isinstance(item, RangeResult):
            yield item
        elif isinstance(item, Reading):
            readings[place] = readings.get(place, Reading()) + item
        else:
            joined.setdefault(place, JoinedKeys()).add(item)
    for place, reading in readings.items():
        log, keys = place[0], joined.pop(place, JoinedKeys())
        yield RangeResult(log, *keys.conclude(strict=strict[log]), reading=reading, joins=True)
