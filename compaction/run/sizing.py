"""How work is divided among tasks: sizes of slices, output parts and map shards, and the tasks that process them.

None of this changes the result of a run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from compaction.engine import Place
from compaction.kernels.tables import ENTRY_BYTES
from compaction.passes.tasks import Slice
from compaction.rules.log_view import Segment
from compaction.rules.plan import LogPlan

_MIN_SLICE_BYTES = 16 << 20
_MAX_SLICE_BYTES = 128 << 20
_SLICES_PER_CORE = 8
#: a task of pass 1 reads adjacent slices: the more it reads, the fewer duplicate keys are shuffled
_MAX_SCAN_BYTES = 4 << 30
#: each group is one output part if the cores are used for at least this fraction of the time then
_MIN_UTILIZATION = 0.8
#: survivor entries of an output part that fit into a worker's memory in any case
_SINGLE_PART_RECORDS = 12 << 20
#: map entries of a shard, which a reduce task holds in memory
_SHARD_BYTES = 32 << 20
#: full shards that a task merges
_SHARDS_PER_TASK = 3
#: from this size of the clean section on, key lookups saved outweigh an extra pass over the dirty section
_KEY_FILTER_MIN_CLEAN_BYTES = 256 << 20


@dataclass(frozen=True)
class Sizes:
    """The sizes of one run's work.

    :ivar slice_bytes: size of a slice, and bytes that a task of pass 2 reads
    :ivar scan_bytes: bytes that a task of pass 1 reads
    :ivar shard_entries: most map entries of a shard
    :ivar single_part_records: a group with at most this many records is one output part
    :ivar key_filter_min_clean_bytes: size of a clean section from which the dirty keys are collected before it is read
    """

    slice_bytes: int
    scan_bytes: int
    shard_entries: int
    single_part_records: int = 0
    key_filter_min_clean_bytes: int = 0

    @property
    def smallest(self) -> Sizes:
        """The sizes of a run over any of its logs alone: with these, outputs are written in the most parts."""
        return replace(self, slice_bytes=min(self.slice_bytes, _MIN_SLICE_BYTES), single_part_records=0)


def sizes(group_bytes: Sequence[int], cores: int, dedupe_buffer_bytes: int, load_factor: float) -> Sizes:
    """The sizes for a run over groups of ``group_bytes`` on ``cores``. A shard fits into the dedupe buffer."""
    total_bytes = sum(group_bytes)
    slice_bytes = min(_MAX_SLICE_BYTES, max(_MIN_SLICE_BYTES, total_bytes // (cores * _SLICES_PER_CORE)))
    scan_tasks = cores * max(1, -(-total_bytes // (cores * _MAX_SCAN_BYTES)))
    scan_bytes = max(_MIN_SLICE_BYTES, -(-total_bytes // scan_tasks))
    entries = min(_SHARD_BYTES, int(dedupe_buffer_bytes * load_factor)) // ENTRY_BYTES
    single_part_records = _SINGLE_PART_RECORDS if core_utilization(group_bytes, cores) >= _MIN_UTILIZATION else 0
    return Sizes(slice_bytes, scan_bytes, max(1, entries), single_part_records, _KEY_FILTER_MIN_CLEAN_BYTES)


def core_utilization(task_bytes: Sequence[int], cores: int) -> float:
    """The fraction of the time of ``cores`` that tasks of these sizes use until the last one ends, the largest first."""
    ends = [0] * cores
    for size in sorted(task_bytes, reverse=True):
        heapq.heapreplace(ends, ends[0] + size)
    return sum(task_bytes) / (cores * max(ends)) if max(ends) else 1.0


def max_records(segments: Sequence[Segment]) -> int:
    """An upper bound of the records in the segments: each record has its own offset and takes at least a byte."""
    return sum(min(segment.next_offset - segment.base_offset, segment.size_bytes) for segment in segments)


def shards(plan: LogPlan, entries: int) -> int:
    """The number of shards of a log's map, each of at most ``entries``."""
    return max(1, -(-max_records(plan.segments) // entries))


def max_records_by_log(slices: Iterable[Slice]) -> Counter[int]:
    """An upper bound of the records in the slices of each log."""
    records: Counter[int] = Counter()
    for part in slices:
        records[part.log] += min(part.end_offset - part.first_offset, part.size_bytes)
    return records


@dataclass(frozen=True)
class ShardPlaces:
    """The tasks that merge the shards of maps, the fullest map first: task ``(first + i) % parts`` gets shard ``i``.

    :ivar parts: the number of tasks
    :ivar first: of each map its first task
    """

    parts: int
    first: Mapping[int, int]

    def __call__(self, place: Place) -> int:
        number, shard = place
        return int((self.first[number] + shard) % self.parts)

    @classmethod
    def of(cls, maps: Mapping[int, tuple[int, int]], shard_entries: int, at_least: int) -> ShardPlaces:
        """Each task gets about ``_SHARDS_PER_TASK`` full shards, or less.

        :param maps: of each map the number of shards, and an upper bound of the entries in all of them
        :param at_least: number of tasks if there are that many shards
        """
        shards = sum(count for count, _ in maps.values())
        entries = sum(bound for _, bound in maps.values())
        tasks = max(1, min(shards, max(at_least, -(-entries // (_SHARDS_PER_TASK * shard_entries)))))
        first, assigned = {}, 0
        for number, (count, _) in sorted(maps.items(), key=lambda item: item[1][1] / item[1][0], reverse=True):
            first[number] = assigned
            assigned += count
        return cls(tasks, first)
