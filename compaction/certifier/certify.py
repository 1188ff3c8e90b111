"""Certifies logs: walk all segments, compare all ranges of offsets, join the keys, conclude. Explains the fate of one record.

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
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.certifier.certificate import LogCertificate, VerifyReport
from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.find_pairs import LogPair, VerifyRequest, find_pairs
from compaction.certifier.kept_files import check_directories, check_logs
from compaction.certifier.key_tables import KeyTables, keys_of
from compaction.certifier.reader import Chunk, read_chunks
from compaction.certifier.records import (
    ABORTED,
    BELOW_START,
    EXPIRED,
    INVALID,
    KEYED,
    LATE,
    MARKER,
    PARTITION_BYTES,
    RANGE_BYTES,
    RangeResult,
    RangeTask,
    compare_range,
    cut_into_ranges,
    droppable,
    fates_of,
)
from compaction.certifier.segments import WalkedLog, WalkTask, check_segments, walk_segment
from compaction.certifier.transactions import aborted_data, check_transactions, resolve
from compaction.engine import Engine, Item, Job, Place, Reading, exchange, pack
from compaction.files.filesystem import base_name
from compaction.screen.amounts import counted
from compaction.screen.steps import step

T = TypeVar("T")
R = TypeVar("R")

#: the part of a log under which results travel
_RESULT = -1
#: bytes of the ranges in which one record is looked up
_EXPLAINED_BYTES = 16 << 20


def certify(start: Callable[[], Engine], request: VerifyRequest) -> VerifyReport:
    """Certify the requested logs.

    :param start: starts the task runner
    :raises UsageError: a partition that the request names does not exist
    """
    pairs = find_pairs(request)
    return certify_pairs(start(), pairs, request.now_ms)


def certify_pairs(
    runner: Engine,
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
    logs = walk_logs(runner, {number: pair for number, pair in enumerate(pairs) if isinstance(pair, LogPair)})
    check_logs(logs.values())
    tasks: list[RangeTask] = []
    for number, log in logs.items():
        log.error = next((walk.fault.what for walk in log.before if walk.fault is not None), log.error)
        if log.error is None:
            check_segments(log)
            tasks += cut_into_ranges(number, log, check_transactions(log), range_bytes)
    _add_up(logs, compare_ranges(runner, tasks, {number: log.pair.rules.strict for number, log in logs.items()}, erased))
    in_order = (logs[number].certificate() if isinstance(pair, LogPair) else pair for number, pair in enumerate(pairs))
    versions = Counter(log.pair.rules.kafka_version for log in logs.values())
    directories = check_directories(log.pair for log in logs.values())
    return VerifyReport(now_ms, tuple(in_order), time.monotonic() - started, versions, directories=directories)


def walk_logs(runner: Engine, pairs: Mapping[int, LogPair]) -> dict[int, WalkedLog]:
    logs = {number: WalkedLog(pair, [], []) for number, pair in pairs.items()}
    tasks = [task for number, pair in pairs.items() for task in _walk_tasks(number, pair)]
    description = f"verify: walk {counted(len(tasks), 'segment')}"
    for walk in run_packed(runner, "segments", description, tasks, lambda task: task.files.size_bytes, walk_segment):
        log = logs[walk.task.log]
        (log.after if walk.task.is_after else log.before).append(walk)
    return logs


def _walk_tasks(log: int, pair: LogPair) -> Iterator[WalkTask]:
    sources = {segment.base_offset: segment for segment in pair.before.segments}
    erases = pair.rules.erases
    # below the log start the cleaner takes aborted data for committed, and an erasure keeps all transactions
    start = 0 if erases else pair.after.log_start_offset
    for segment in pair.before.segments:
        yield WalkTask(log, segment, is_after=False, producers=erases, txns_from=start)
    for segment in pair.after.segments:
        yield WalkTask(log, segment, True, sources.get(segment.base_offset), producers=erases, txns_from=start)


def _add_up(logs: Mapping[int, WalkedLog], results: Sequence[RangeResult]) -> None:
    read = dict.fromkeys(logs, Reading())
    for result in results:
        if not result.joins:
            read[result.log] += result.reading
    for result in results:
        log = logs[result.log]
        log.findings.join(result.findings)
        log.counts.update(result.counts)
        error = result.reading.difference(read[result.log]) if result.joins else result.reading.error
        if error is not None:
            # results arrive in no order: of several errors, always report the same one
            log.error = min(log.error or error, error)


def run_packed(
    runner: Engine, name: str, description: str, items: Sequence[T], size_of: Callable[[T], int], work: Callable[[T], R]
) -> list[R]:
    """The results of ``work`` for each item, in order; each task gets items of about ``RANGE_BYTES``."""
    packs = pack(items, size_of, RANGE_BYTES)
    job = Job.sized(name, description, [sum(map(size_of, of_task)) for of_task in packs])
    return [result for results in runner.run(job, packs, partial(_each, work)) for result in results]


def _each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return list(map(work, items))


def compare_ranges(
    runner: Engine, tasks: Sequence[RangeTask], strict: Mapping[int, bool], erased: ErasedKeys | None = None
) -> list[RangeResult]:
    """Compare each range, and join the keys of each log, in no order; ``strict`` is by log."""
    packs = pack(tasks, lambda task: task.size_bytes, RANGE_BYTES)
    sizes = [sum(task.size_bytes for task in tasks) for tasks in packs]
    job = Job.sized("records", f"verify: compare {counted(len(tasks), 'range')} of offsets", sizes)
    reducers = max(1, runner.cores, sum(sizes) // PARTITION_BYTES)
    return exchange(runner, job, packs, partial(_compare, erased=erased), partial(_join, strict=dict(strict)), reducers)


def _compare(tasks: Sequence[RangeTask], erased: ErasedKeys | None) -> Iterator[Item]:
    for task in tasks:
        result, keys = compare_range(task, erased)
        yield (task.log, _RESULT), result
        yield from (((task.log, partition), packed) for partition, packed in keys.packed())
        yield from (((task.log, partition), result.reading) for partition in range(task.partitions))


def _join(items: Iterable[Item], strict: Mapping[int, bool]) -> Iterator[RangeResult]:
    joined: dict[Place, KeyTables] = {}
    readings: dict[Place, Reading] = {}
    for place, item in items:
        if isinstance(item, RangeResult):
            yield item
        elif isinstance(item, Reading):
            readings[place] = readings.get(place, Reading()) + item
        else:
            joined.setdefault(place, KeyTables()).add_packed(item)
    for place, reading in readings.items():
        log, keys = place[0], joined.pop(place, KeyTables())
        yield RangeResult(log, *keys.conclude(strict=strict[log]), reading=reading, joins=True)


def explain(start: Callable[[], Engine], request: VerifyRequest, offset: int) -> list[str]:
    """The fate of the record at ``offset`` of the only requested log before cleaning, as lines of text.

    :param start: starts the task runner
    :raises UsageError: there is no such log
    :raises CorruptLogError: its batch cannot be read
    """
    pair = find_pairs(request)[0]
    if isinstance(pair, LogCertificate):
        return pair.lines()
    runner, name = start(), f"{pair.topic_partition}:{offset}"
    log = walk_logs(runner, {0: pair})[0]
    fault = next((walk.fault for walk in log.before if walk.fault is not None and walk.next_offset <= offset), None)
    if fault is not None:
        return [f"{name} cannot be judged: {fault.what}"]
    tasks = list(cut_into_ranges(0, log, aborted_data(resolve(log.before)), _EXPLAINED_BYTES))
    task = next((range_task for range_task in tasks if range_task.first_offset <= offset < range_task.end_offset), tasks[-1])
    source, result = _find(task, offset, in_after=False), _find(task, offset, in_after=True)
    if source is None:
        offsets = f"offsets {pair.before.log_start_offset} to {log.end_offset} (exclusive)"
        return [f"{name}: there is no record at this offset; before cleaning the log had {offsets}"]
    if result is not None:
        return [f"{name} was retained: it is in {base_name(result[0].path)}"]
    return [f"{name} {_reason(runner, tasks, task, *source)}"]


def _find(task: RangeTask, offset: int, *, in_after: bool) -> tuple[Chunk, int] | None:
    """The record at ``offset``: a chunk, and its row there."""
    for chunk in read_chunks(task.after if in_after else task.before, task.first_offset, task.end_offset):
        rows = np.flatnonzero(chunk.records["offset"] == offset)
        if len(rows):
            return chunk, int(rows[0])
    return None


def _reason(runner: Engine, tasks: list[RangeTask], task: RangeTask, chunk: Chunk, row: int) -> str:
    record = chunk.records[row]
    offset, producer = int(record["offset"]), chunk.rows[record["batch"]]["producer_id"]
    reasons = {
        BELOW_START: f"is missing: it was below the log start, offset {task.before_start}",
        EXPIRED: f"expired: its segment was deleted, the log now starts at offset {task.after_start}",
        LATE: f"is LOST: it is missing, but cleaning ended at offset {task.cleaned_to}",
        MARKER: "was a transaction marker without data, or verify names it as a violation",
        ABORTED: f"was aborted: producer {producer} ended its transaction with an ABORT marker",
        INVALID: "was dropped as invalid: it has no key",
    }
    fate = int(fates_of(chunk, task)[row])
    if fate != KEYED:
        return reasons[fate]
    key = chunk.data[record["key_at"] : record["key_at"] + record["key_size"]].tobytes()
    candidates = [task for task in tasks if task.end_offset > offset and task.first_offset < task.cleaned_to]
    sizes = [task.size_bytes for task in candidates]
    job = Job.sized("records of the key", f"verify: look up one key in {counted(len(sizes), 'range')} of offsets", sizes)
    last = max(runner.run(job, candidates, partial(_last_of_key, key=key)), default=-1)
    if last > offset:
        task = next(range_task for range_task in tasks if range_task.first_offset <= last < range_task.end_offset)
        retained = _find(task, last, in_after=True) is not None
        consequence = "which was retained" if retained else f"which is missing too: see --why for offset {last}"
        return f"was superseded by offset {last} of the same key, {consequence}"
    if droppable(chunk, task)[row]:
        return "was a tombstone past its delete horizon"
    return "is LOST: it is the last record of its key, and nothing explains why it is missing"


def _last_of_key(task: RangeTask, key: bytes) -> int:
    """The offset of the range's last record with this key, -1 if there is none."""
    last = -1
    for chunk in read_chunks(task.before, task.first_offset, task.end_offset):
        records = chunk.records[(fates_of(chunk, task) == KEYED) & (chunk.records["key_size"] == len(key))]
        equal = pc.equal(keys_of(chunk, records), pa.scalar(key, pa.binary()))
        last = max([last, *records["offset"][equal.to_numpy(zero_copy_only=False)].tolist()])
    return last
