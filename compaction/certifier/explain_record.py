"""Explains the fate of one record, for ``verify --why``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from compaction.certifier.certificate import LogCertificate
from compaction.certifier.certify import walk_logs
from compaction.certifier.find_pairs import LogPair, VerifyRequest, find_pairs
from compaction.certifier.reader import Chunk, read_chunks
from compaction.certifier.records import RangeTask, RecordKinds, cut_into_ranges, last_of_key
from compaction.certifier.transactions import Transactions
from compaction.engine import Engine, Job
from compaction.files.filesystem import base_name
from compaction.screen.amounts import counted

_RANGE_BYTES = 16 << 20


def explain(start: Callable[[], Engine], request: VerifyRequest, offset: int) -> list[str]:
    """The fate of one record of the only requested log, as lines of text.

    :param start: starts the task runner
    :raises UsageError: there is no such log
    """
    pair = find_pairs(request)[0]
    return pair.lines() if isinstance(pair, LogCertificate) else [explain_record(start(), pair, offset)]


def explain_record(runner: Engine, pair: LogPair, offset: int) -> str:
    """The fate of the record of ``before`` at ``offset``.

    :raises CorruptLogError: its batch cannot be read
    """
    name = f"{pair.topic_partition}:{offset}"
    log = walk_logs(runner, {0: pair})[0]
    broken = next((walk for walk in log.before if walk.error is not None and walk.next_offset <= offset), None)
    if broken is not None:
        return f"{name} cannot be judged: {broken.error}"
    tasks = list(cut_into_ranges(0, log, Transactions.of(log.before).aborted(), _RANGE_BYTES))
    task = next((range_task for range_task in tasks if range_task.first_offset <= offset < range_task.end_offset), tasks[-1])
    source, result = _find(task, offset, in_after=False), _find(task, offset, in_after=True)
    if source is None:
        offsets = f"offsets {pair.before.log_start_offset} to {log.end_offset} (exclusive)"
        return f"{name}: there is no record at this offset; before cleaning the log had {offsets}"
    if result is not None:
        return f"{name} was retained: it is in {base_name(result[0].path)}"
    return f"{name} {_reason(runner, tasks, task, *source)}"


def _find(task: RangeTask, offset: int, *, in_after: bool) -> tuple[Chunk, int] | None:
    """The record at ``offset``: a chunk, and its row there."""
    for chunk in read_chunks(task.after if in_after else task.before, task.first_offset, task.end_offset):
        rows = np.flatnonzero(chunk.records["offset"] == offset)
        if len(rows):
            return chunk, int(rows[0])
    return None


def _reason(runner: Engine, tasks: list[RangeTask], task: RangeTask, chunk: Chunk, row: int) -> str:
    record, kinds = chunk.records[row], RecordKinds.of(chunk, task)
    offset, batch = int(record["offset"]), chunk.rows[record["batch"]]
    reasons = (
        (offset < task.before_start, f"is missing: it was below the log start, offset {task.before_start}"),
        (offset < task.after_start, f"expired: its segment was deleted, the log now starts at offset {task.after_start}"),
        (offset >= task.cleaned_to, f"is LOST: it is missing, but cleaning ended at offset {task.cleaned_to}"),
        (kinds.control[row], "was a transaction marker without data, or verify names it as a violation"),
        (kinds.aborted[row], f"was aborted: producer {batch['producer_id']} ended its transaction with an ABORT marker"),
        (kinds.invalid[row], "was dropped as invalid: it has no key"),
    )
    for holds, reason in reasons:
        if holds:
            return reason
    key = chunk.data[record["key_at"] : record["key_at"] + record["key_size"]].tobytes()
    return _reason_by_key(runner, tasks, key, offset, droppable=bool(kinds.droppable[row]))


def _reason_by_key(runner: Engine, tasks: list[RangeTask], key: bytes, offset: int, *, droppable: bool) -> str:
    candidates = [task for task in tasks if task.end_offset > offset and task.first_offset < task.cleaned_to]
    last = max(last_of(runner, candidates, key), default=-1)
    if last > offset:
        task = next(range_task for range_task in tasks if range_task.first_offset <= last < range_task.end_offset)
        retained = _find(task, last, in_after=True) is not None
        consequence = "which was retained" if retained else f"which is missing too: see --why for offset {last}"
        return f"was superseded by offset {last} of the same key, {consequence}"
    if droppable:
        return "was a tombstone past its delete horizon"
    return "is LOST: it is the last record of its key, and nothing explains why it is missing"


def last_of(runner: Engine, tasks: Sequence[RangeTask], key: bytes) -> list[int]:
    """``last_of_key`` of each range."""
    sizes = [task.size_bytes for task in tasks]
    job = Job.sized("records of the key", f"verify: look up one key in {counted(len(tasks), 'range')} of offsets", sizes)
    return runner.run(job, tasks, partial(last_of_key, key=key))
