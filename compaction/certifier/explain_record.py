"""What became of one record: one or two lines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compaction.certifier.certify import walk_both_sides
from compaction.certifier.checks.log_checks import log_end
from compaction.certifier.checks.log_pair import LogPair, RangeTask
from compaction.certifier.checks.offset_ranges import slices
from compaction.certifier.checks.read_chunks import Chunk, read_chunks
from compaction.certifier.checks.record_checks import RecordKinds
from compaction.certifier.checks.txn_checks import Transactions
from compaction.certifier.task_runner import TaskRunner

_SLICE_BYTES = 16 << 20


class FoundRecord(NamedTuple):
    """A record in a chunk."""

    chunk: Chunk
    row: int

    @property
    def segment(self) -> str:
        """The name of its segment's file."""
        return self.chunk.path.rpartition("/")[2]


def explain(engine: TaskRunner, pair: LogPair, offset: int) -> list[str]:
    """What became of the record of ``before`` at ``offset``.

    :raises CorruptLogError: the batch that holds it cannot be read
    """
    name = f"{pair.topic_partition}:{offset}"
    before, after = walk_both_sides(engine, pair)
    broken = next((walk for walk in before if walk.error is not None and walk.next_offset <= offset), None)
    if broken is not None:
        return [f"{name} cannot be judged: {broken.error}"]
    works = list(slices(0, pair, before, after, Transactions.of(before).aborted(), 1, _SLICE_BYTES))
    work = next((each for each in works if each.first_offset <= offset < each.end_offset), works[-1])
    source, result = _find(work, offset, in_after=False), _find(work, offset, in_after=True)
    if source is None:
        where = f"before, the log has offsets {pair.before.log_start_offset} to {log_end(before)} (exclusive)"
        return [f"{name}: no record is at this offset; {where}"]
    if result is not None:
        return [f"{name} was retained: it is in {result.segment}"]
    return [f"{name} {line}" for line in _reasons(engine, works, work, source, offset)]


def _find(work: RangeTask, offset: int, *, in_after: bool) -> FoundRecord | None:
    for chunk in read_chunks(work.after if in_after else work.before, work.first_offset, work.end_offset):
        rows = np.flatnonzero(chunk.records["offset"] == offset)
        if len(rows):
            return FoundRecord(chunk, int(rows[0]))
    return None


def _reasons(engine: TaskRunner, works: list[RangeTask], work: RangeTask, source: FoundRecord, offset: int) -> list[str]:
    kinds, row, batch = (
        RecordKinds.of(source.chunk, work),
        source.row,
        source.chunk.rows[source.chunk.records["batch"][source.row]],
    )
    known = (
        (offset < work.before_start, f"is missing: it is below the log start, offset {work.before_start}"),
        (offset < work.after_start, f"expired: its segment was deleted, the log starts at offset {work.after_start} now"),
        (offset >= work.cleaned_to, f"is LOST: it is missing, but cleaning ended at offset {work.cleaned_to}"),
        (kinds.control[row], "was a transaction marker; its transaction is gone, or see the violations of verify"),
        (kinds.aborted[row], f"was aborted: producer {batch['producer_id']} ended its transaction with an ABORT marker"),
        (kinds.invalid[row], "was dropped as invalid: it has no key"),
    )
    for holds, line in known:
        if holds:
            return [line]
    return [_successor(engine, works, source, offset, droppable=bool(kinds.droppable[row]))]


def _successor(engine: TaskRunner, works: list[RangeTask], source: FoundRecord, offset: int, *, droppable: bool) -> str:
    record = source.chunk.records[source.row]
    key = source.chunk.data[record["key_at"] : record["key_at"] + record["key_size"]].tobytes()
    later = [work for work in works if work.end_offset > offset and work.first_offset < work.cleaned_to]
    last = max(engine.last_of(later, key), default=-1)
    if last > offset:
        work = next(each for each in works if each.first_offset <= last < each.end_offset)
        left = "which was retained" if _find(work, last, in_after=True) is not None else "which is missing itself: ask for it"
        return f"was superseded by offset {last} of the same key, {left}"
    if droppable:
        return "was a tombstone past its delete horizon"
    return "is LOST: it is the last record of its key, and no reason explains that it is missing"
