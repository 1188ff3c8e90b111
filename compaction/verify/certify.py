"""Certifies logs: walk every segment, compare every range of offsets, join the keys, conclude.

What is proved for each log:

1. every record of ``after`` is that of ``before`` at its offset, but for what a rewrite may change (``batch_checks``);
2. every record that is missing has a reason (``compare``, ``key_tables``): superseded by a later record of the same key below
   the cleaner checkpoint that is not aborted, a tombstone past its horizon, aborted, a marker, without a key (Kafka: invalid),
   below the log start, or expired;
3. ends, checkpoints, indexes, transactions and the active segment agree (``log_checks``, ``index_checks``, ``txn_outcomes``).
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from compaction.verify.certificate import LEFT, REASONS, LogCertificate, Status, VerifyReport
from compaction.verify.compare import SliceResult, compare_slice
from compaction.verify.key_tables import JoinedKeys
from compaction.verify.log_checks import check_log
from compaction.verify.model import MAX_OFFSET, AbortedRanges, Findings, LogPair, SegmentFiles, SliceWork, Stretch
from compaction.verify.txn_outcomes import Transactions, check_index, check_markers, check_outcomes
from compaction.verify.walk import Walk, WalkTask, walk_segment

#: both sides of a range of offsets have about so many bytes
SLICE_BYTES = 64 << 20
#: keys of so many bytes of a log are joined by one task
PART_BYTES = 96 << 20

__all__ = ["LEFT", "REASONS", "Engine", "LocalEngine", "certify_pairs", "walk_pair", "work_on"]


class Engine(Protocol):
    """Does the work of many tasks. ``parts``: into how many parts the keys of one log are split at most."""

    parts: int

    def walk(self, tasks: Sequence[WalkTask]) -> list[Walk]:
        """Each segment walked, in order."""

    def compare(self, works: Sequence[SliceWork], strict: Mapping[int, bool]) -> list[SliceResult]:
        """Each range compared, and the keys of each log joined; ``strict`` by log."""


class LocalEngine:
    """Everything in this process."""

    parts = 1

    def walk(self, tasks: Sequence[WalkTask]) -> list[Walk]:
        return list(map(walk_segment, tasks))

    def compare(self, works: Sequence[SliceWork], strict: Mapping[int, bool]) -> list[SliceResult]:
        results, joined = [], {log: JoinedKeys() for log in strict}
        for work in works:
            result, keys = compare_slice(work)
            results.append(result)
            for _, packed in keys.packed():
                joined[work.log].add(packed)
        return results + [SliceResult(log, *keys.conclude(strict=strict[log])) for log, keys in joined.items()]


def certify_pairs(
    engine: Engine, pairs: Sequence[LogPair | LogCertificate], now_ms: int, slice_bytes: int = SLICE_BYTES
) -> VerifyReport:
    """The certificates of all logs, in order; what could not be paired is passed on."""
    started = time.monotonic()
    logs = {log: pair for log, pair in enumerate(pairs) if isinstance(pair, LogPair)}
    tasks = [task for log, pair in logs.items() for task in _walk_tasks(log, pair)]
    walks: dict[tuple[int, bool], list[Walk]] = {}
    for walk in engine.walk(tasks):
        walks.setdefault((walk.task.log, walk.task.is_after), []).append(walk)
    certificates: dict[int, LogCertificate] = {}
    findings: dict[int, Findings] = {}
    works: list[SliceWork] = []
    for log, pair in logs.items():
        before, after = walks[log, False], walks[log, True]
        error = next((walk.error for walk in before if walk.error is not None), None)
        if error is not None:
            certificates[log] = LogCertificate.failed(pair.topic_partition, error)
            continue
        findings[log] = Findings()
        works += work_on(log, pair, before, after, findings[log], engine.parts, slice_bytes)
    results = engine.compare(works, {log: logs[log].rules.strict for log in findings})
    certificates |= _conclude(logs, findings, results)
    outcome = (certificates[log] if isinstance(pair, LogPair) else pair for log, pair in enumerate(pairs))
    return VerifyReport(now_ms, tuple(outcome), time.monotonic() - started)


def _walk_tasks(log: int, pair: LogPair) -> Iterator[WalkTask]:
    twins = {each.base_offset: each for each in pair.before.segments}
    yield from (WalkTask(log, each, is_after=False) for each in pair.before.segments)
    yield from (WalkTask(log, each, True, twins.get(each.base_offset)) for each in pair.after.segments)


def walk_pair(engine: Engine, pair: LogPair) -> tuple[list[Walk], list[Walk]]:
    """The segments of one log's sides."""
    walks = engine.walk(list(_walk_tasks(0, pair)))
    return [walk for walk in walks if not walk.task.is_after], [walk for walk in walks if walk.task.is_after]


def _conclude(
    logs: Mapping[int, LogPair], findings: Mapping[int, Findings], results: Sequence[SliceResult]
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
        certificates[log] = LogCertificate.of(name, found, count)
        if log in errors and certificates[log].status is Status.HOLDS:
            certificates[log] = LogCertificate.failed(name, errors[log])
    return certificates


def work_on(
    log: int, pair: LogPair, before: list[Walk], after: list[Walk], findings: Findings, parts: int, slice_bytes: int
) -> Iterator[SliceWork]:
    """Check what the walks tell, and cut the log into ranges of offsets."""
    check_log(pair, before, after, findings)
    was, is_ = Transactions.of(before), Transactions.of(after)
    check_outcomes(was, is_, findings)
    check_markers(was, is_, pair, findings)
    check_index(before, after, is_, pair, findings)
    return slices(log, pair, before, after, was.aborted(), parts, slice_bytes)


def slices(
    log: int, pair: LogPair, before: list[Walk], after: list[Walk], aborted: AbortedRanges, parts: int, slice_bytes: int
) -> Iterator[SliceWork]:
    """The ranges of a log: together they hold every offset."""
    stretches = [piece for walk in before for piece in _cut(walk)]
    packs: list[list[tuple[int, Stretch]]] = []
    filled = slice_bytes
    for offset, stretch in stretches:
        if filled >= slice_bytes:
            packs.append([])
            filled = 0
        packs[-1].append((offset, stretch))
        filled += stretch.end - stretch.start
    packs = packs or [[]]
    starts = [0, *(pack[0][0] for pack in packs[1:]), MAX_OFFSET]
    size = sum(walk.size_bytes for walk in before)
    cleaned_to = pair.after.log_start_offset if pair.after.cleaned_to is None else pair.after.cleaned_to
    horizon_ms, seed = _legacy_horizon_ms(pair), secrets.randbits(64)
    for pack, first, end in zip(packs, starts, starts[1:], strict=False):
        yield SliceWork(
            log=log,
            first_offset=first,
            end_offset=end,
            before=tuple(stretch for _, stretch in pack),
            after=tuple(_within(after, first, end)),
            aborted=aborted.within(first, end),
            rules=pair.rules,
            before_start=pair.before.log_start_offset,
            after_start=pair.after.log_start_offset,
            cleaned_to=cleaned_to,
            legacy_horizon_ms=horizon_ms,
            parts=max(1, min(parts, size // PART_BYTES)),
            seed=seed,
        )


def _cut(walk: Walk) -> Iterator[tuple[int, Stretch]]:
    """The pieces of a segment, each with the offset that it begins at."""
    ends = [position for position, _ in walk.cuts[1:]] + [walk.size_bytes]
    for (position, offset), end in zip(walk.cuts, ends, strict=False):
        yield offset, _stretch(walk.task.files, position, end)


def _within(walks: list[Walk], first_offset: int, end_offset: int) -> Iterator[Stretch]:
    """The pieces that may hold batches with last offsets in a range."""
    for walk in walks:
        if walk.next_offset <= first_offset or walk.task.files.base_offset >= end_offset or not walk.cuts:
            continue
        start = max(position for position, offset in walk.cuts if offset <= first_offset or position == walk.cuts[0][0])
        end = min((position for position, offset in walk.cuts if offset >= end_offset), default=walk.size_bytes)
        if start < end:
            yield _stretch(walk.task.files, start, end)


def _stretch(files: SegmentFiles, start: int, end: int) -> Stretch:
    return Stretch(files.path(), start, end, files.mtime_ms)


def _legacy_horizon_ms(pair: LogPair) -> int:
    """The time of modification up to which segments lose their tombstones of magic 0 and 1: that of the last clean segment less
    ``delete.retention.ms``. Where the first dirty offset is not known, all below the checkpoint counts as clean."""
    known = pair.before.cleaned_to is not None and not pair.rules.several_rounds
    first_dirty = pair.before.cleaned_to if known else pair.after.cleaned_to
    start = pair.before.log_start_offset
    first_dirty = start if first_dirty is None or first_dirty < start else first_dirty
    clean = [each.mtime_ms for each in pair.before.segments if each.base_offset < first_dirty]
    return clean[-1] - pair.rules.delete_retention_ms if clean else 0
