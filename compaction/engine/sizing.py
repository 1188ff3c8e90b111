"""Deals work to tasks: how large slices, pieces and shards are, and which task has which. The outcome of a run does not
depend on it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from compaction.cleaning.log_view import Segment
from compaction.cleaning.plan import LogPlan
from compaction.kernels.reading.tables import ENTRY_BYTES
from compaction.passes.tasks import Slice

T = TypeVar("T")

_MIN_SLICE_BYTES = 16 << 20
_MAX_SLICE_BYTES = 128 << 20
_SLICES_PER_CORE = 8
#: a scan task takes neighbouring slices together: the more it reads, the fewer keys it hands on twice
_MAX_SCAN_BYTES = 4 << 30
#: whole groups are written without joining parts, where that keeps the cores busy for this share of the time at least
_BUSY = 0.8
#: marks of a piece that a worker's memory surely takes
_WHOLE_RECORDS = 12 << 20
#: packed entries of a shard: what a reduce task holds, and its map's size
_SHARD_BYTES = 32 << 20
#: what a pass over a small dirty section costs beforehand, its clean section gives back from this size on
_ASKED_BYTES = 256 << 20
#: no record takes less of an uncompressed batch
_MIN_RECORD_BYTES = 7


@dataclass(frozen=True)
class Sizes:
    """The sizes of one run's work.

    ``slice_bytes``: bytes of a slice, and of what a task of pass 2 reads; ``scan_bytes``: what a task of pass 1 reads;
    ``shard_entries``: map entries a shard is meant for at most; ``whole_records``: a group of at most so many records is not
    cut into pieces; ``asked_bytes``: from so many bytes of a clean section on it pays to know the dirty keys before it is read.
    """

    slice_bytes: int
    scan_bytes: int
    shard_entries: int
    whole_records: int = 0
    asked_bytes: int = 0


def sizes(group_bytes: Sequence[int], cores: int, dedupe_buffer_bytes: int, load_factor: float) -> Sizes:
    """Sizes for a run over groups of so many bytes each on ``cores``; a shard never needs more than the dedupe buffer."""
    total_bytes = sum(group_bytes)
    slice_bytes = min(_MAX_SLICE_BYTES, max(_MIN_SLICE_BYTES, total_bytes // (cores * _SLICES_PER_CORE)))
    scan_tasks = cores * max(1, -(-total_bytes // (cores * _MAX_SCAN_BYTES)))
    scan_bytes = max(_MIN_SLICE_BYTES, -(-total_bytes // scan_tasks))
    entries = min(_SHARD_BYTES, int(dedupe_buffer_bytes * load_factor)) // ENTRY_BYTES
    whole_records = _WHOLE_RECORDS if busy(group_bytes, cores) >= _BUSY else 0
    return Sizes(slice_bytes, scan_bytes, max(1, entries), whole_records, _ASKED_BYTES)


def busy(task_bytes: Sequence[int], cores: int) -> float:
    """The share of the time of ``cores`` that tasks of these sizes use, the largest first, until the last one ends."""
    ends = [0] * cores
    for size in sorted(task_bytes, reverse=True):
        heapq.heapreplace(ends, ends[0] + size)
    return sum(task_bytes) / (cores * max(ends)) if max(ends) else 1.0


def record_bound(segments: Sequence[Segment]) -> int:
    """At most how many records the segments hold: each has an offset of its own."""
    return sum(min(segment.next_offset - segment.base_offset, segment.size_bytes) for segment in segments)


def shards(plan: LogPlan, entries: int) -> int:
    """How many shards a log's map has."""
    return max(1, -(-record_bound(plan.segments) // entries))


def most_records(slices: Iterable[Slice]) -> Counter[int]:
    """At most how many records the slices of each log hold."""
    records: Counter[int] = Counter()
    for part in slices:
        records[part.log] += min(part.end_offset - part.first_offset, part.size_bytes)
    return records


def deal_shards(logs: Mapping[int, tuple[int, int]], task_entries: int, at_least: int) -> tuple[int, dict[int, int]]:
    """Deals the shards of all logs to tasks: how many tasks, and for each log where it begins. Shard ``i`` of a log is for task
    ``(beginning + i) % tasks``.

    The fullest shards go first, so that tasks have like shares; one has little more than ``task_entries``.

    :param logs: the number of shards, and at most how many entries there are for all of them together
    :param at_least: tasks, as long as each gets a shard
    """
    shards = sum(count for count, _ in logs.values())
    entries = sum(bound for _, bound in logs.values())
    tasks = max(1, min(shards, max(at_least, -(-entries // task_entries))))
    begin, dealt = {}, 0
    for log, (count, _) in sorted(logs.items(), key=lambda item: item[1][1] / item[1][0], reverse=True):
        begin[log] = dealt
        dealt += count
    return tasks, begin


def pack(items: Sequence[T], size_of: Callable[[T], int], target_bytes: int) -> list[list[T]]:
    """Neighbouring items together until ``target_bytes`` are reached; an item is never split."""
    packs: list[list[T]] = []
    filled = target_bytes
    for item in items:
        if filled >= target_bytes:
            packs.append([])
            filled = 0
        packs[-1].append(item)
        filled += size_of(item)
    return packs
