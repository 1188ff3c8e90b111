"""Counts the records of the segments that a run deletes by the delete policy: neither a broker nor the passes read them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from compaction.passes.scan import count_records
from compaction.passes.tasks import Slice
from compaction.run.cleaner import Limits, slices_of
from compaction.run.log_cleaning import LogCleaning
from compaction.run.passes import Passes
from compaction.storage.filesystem import FileSystem, ReadableFileSystem
from compaction.task_runner import Job, pack, size_of


def count_expired(logs: Sequence[LogCleaning], fs: FileSystem, passes: Passes, limits: Limits) -> None:
    """Sets ``expired_records`` of the logs, which all lose segments. A log with a damaged one is deleted from all the same."""
    expired = [[removal.segment for removal in log.plan.removals] for log in logs]
    sizes = limits.sizes_of([segment.size_bytes for segments in expired for segment in segments], passes.cores)
    slices = [
        part
        for number, (log, segments) in enumerate(zip(logs, expired, strict=True))
        for part in slices_of(fs, number, log.view, segments, sizes.slice_bytes)
    ]
    tasks = pack(slices, size_of, sizes.slice_bytes)
    task_bytes = [sum(map(size_of, task)) for task in tasks]
    job = Job.sized("expired", f"count the records of {len(slices)} expired slices", task_bytes)
    count = partial(_count, files=limits.files, bytes_per_second=limits.task_rate(passes.cores))
    results = passes.run(job, tasks, count)
    counts: list[int | None] = [0] * len(logs)
    for number, records in (result for task in results for result in task):
        total = counts[number]
        counts[number] = None if total is None or records is None else total + records
    for log, total in zip(logs, counts, strict=True):
        log.expired_records = total


def _count(slices: Sequence[Slice], files: ReadableFileSystem, bytes_per_second: float) -> list[tuple[int, int | None]]:
    return [(part.log, count_records(part, files, bytes_per_second)) for part in slices]
