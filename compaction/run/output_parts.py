"""Divides groups of segments into output parts for tasks, and joins the parts into one output segment per group.

A group is one part if a task can hold all of its survivor entries; otherwise several tasks write it, and it is joined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compaction.output.swap import SwapGroup
from compaction.passes.clean_into import Unjoined
from compaction.passes.tasks import CleanContext, GroupOutput, OutputPart, PartResult, Slice
from compaction.run.log_cleaning import LogCleaning
from compaction.run.sizing import Sizes, max_records
from compaction.task_runner import pack

#: the result of each output segment, by the numbers of its log and its group
Outputs = Mapping[tuple[int, int], PartResult]


def output_parts(log: LogCleaning, sizes: Sizes) -> None:
    """Sets the parts of a log; an empty group is one empty part."""
    plan = log.compaction
    base_of = [segment.base_offset for segment in plan.view.segments]
    by_base: dict[int, list[Slice]] = {}
    for part in log.slices:
        by_base.setdefault(base_of[part.segment_index], []).append(part)
    log.parts = []
    for number, group in enumerate(plan.groups):
        slices = [part for segment in group.segments for part in by_base[segment.base_offset]]
        mtime_ms = group.mtime_ns // 1_000_000
        output = GroupOutput(log.number, number, group.base_offset, mtime_ms, log.txn_index[number], slices[0].path)
        single = max_records(group.segments) <= sizes.single_part_records
        packs = [slices] if single else pack(slices, lambda part: part.size_bytes, sizes.slice_bytes)
        log.parts += [
            OutputPart(output, len(log.parts) + index, tuple(own), own[0].first_offset, len(packs) == 1)
            for index, own in enumerate(packs)
        ]


def output_segments(
    logs: Sequence[LogCleaning],
    contexts: Mapping[int, CleanContext],
    results: Sequence[PartResult],
    join: Callable[[Sequence[Unjoined]], Sequence[PartResult]],
) -> Outputs:
    """Joins the parts that were written; returns the result of each output segment. A log fails if one of its parts does."""
    by_number = {log.number: log for log in logs}
    result_of = {(result.log, result.number): result for result in results}
    _note_errors(by_number, results)
    segments: dict[tuple[int, int], PartResult] = {}
    unjoined: dict[tuple[int, int], Unjoined] = {}
    for log in logs:
        for part in log.parts if log.error is None else ():
            key, result = (log.number, part.output.group), result_of[log.number, part.number]
            if part.complete or result.suffix is None:
                segments[key] = result
            else:
                unjoined.setdefault(key, (part.output, contexts[log.number], []))[2].append(result)
    joined = join(list(unjoined.values()))
    _note_errors(by_number, joined)
    segments.update({(result.log, result.group): result for result in joined})
    return segments


def swap_groups(log: LogCleaning, outputs: Outputs) -> tuple[SwapGroup, ...]:
    """The output segments of a log among ``outputs``, and the segments that they replace. Segments that would not change are
    not replaced."""
    return tuple(
        SwapGroup(
            group.base_offset,
            tuple(segment.base_offset for segment in group.segments),
            outputs[log.number, number].suffix or "",
            group.mtime_ns // 1_000_000,
            outputs[log.number, number].written,
        )
        for number, group in enumerate(log.compaction.groups)
        if (log.number, number) in outputs and not outputs[log.number, number].unchanged
    )


def unchanged(log: LogCleaning, outputs: Outputs) -> frozenset[int]:
    """The base offsets of the segments that none of ``outputs`` replaces, as it would be the same."""
    return frozenset(
        group.base_offset
        for number, group in enumerate(log.compaction.groups)
        if (log.number, number) in outputs and outputs[log.number, number].unchanged
    )


def _note_errors(logs: Mapping[int, LogCleaning], results: Sequence[PartResult]) -> None:
    for result in results:
        log = logs[result.log]
        if log.error is None:
            log.error = result.error
