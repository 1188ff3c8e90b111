"""The tasks of a verification: walk segments, compare ranges of offsets, join the keys of each log, search other files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from compaction.certifier.checks.erased_keys import ErasedKeys
from compaction.certifier.checks.key_tables import JoinedKeys
from compaction.certifier.checks.offset_ranges import PARTITION_BYTES, RANGE_BYTES, RangeTask
from compaction.certifier.checks.record_checks import RangeResult, compare_range, last_of_key
from compaction.certifier.checks.segment_walk import SegmentWalk, WalkTask, walk_segment
from compaction.certifier.find_remains import Remains, remains_in, size_in
from compaction.screen.amounts import counted
from compaction.task_runner import Item, Job, Place, TaskRunner, pack

#: the part of a log under which results travel
_RESULT = -1


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


def _join(items: Iterable[Item], strict: Mapping[int, bool]) -> Iterator[RangeResult]:
    joined: dict[Place, JoinedKeys] = {}
    for place, item in items:
        if isinstance(item, RangeResult):
            yield item
        else:
            joined.setdefault(place, JoinedKeys()).add(item)
    for (log, _), keys in joined.items():
        yield RangeResult(log, *keys.conclude(strict=strict[log]))


def search_files(runner: TaskRunner, files: Sequence[tuple[str, str]], erased: ErasedKeys) -> list[Remains]:
    """``remains_in`` each of ``files``: a log directory, and a path in it."""
    sizes = {file: size_in(*file) for file in files}
    packs = pack(files, sizes.__getitem__, RANGE_BYTES)
    job = Job.sized(
        "other files",
        f"verify: look for keys in {counted(len(files), 'other file')}",
        [sum(sizes[file] for file in files_of_task) for files_of_task in packs],
    )
    return [remains for task_remains in runner.run(job, packs, partial(_search, erased=erased)) for remains in task_remains]


def _search(files: Sequence[tuple[str, str]], erased: ErasedKeys) -> list[Remains]:
    return [remains_in(*file, erased) for file in files]


def last_of(runner: TaskRunner, tasks: Sequence[RangeTask], key: bytes) -> list[int]:
    """``last_of_key`` of each range."""
    sizes = [task.size_bytes for task in tasks]
    job = Job.sized("records of the key", f"verify: look up one key in {counted(len(tasks), 'range')} of offsets", sizes)
    return runner.run(job, tasks, partial(last_of_key, key=key))
