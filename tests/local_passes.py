"""The passes without Spark: the same tasks, one after the other, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compaction.engine.protocol import CleanedParts, MapResult
from compaction.engine.sizing import Sizes, pack
from compaction.fs.filesystem import ReadableFileSystem
from compaction.kernels.keys.key_filter import KeyFilter
from compaction.passes.build_map import SUMMARY, collect_keys, flag_single_task_logs, scan_slices
from compaction.passes.clean_into import clean_part, join_parts
from compaction.passes.merge import resolve_shard, split_by_part
from compaction.passes.tasks import (
    CleanContext,
    GroupOutput,
    MapContext,
    MapSettings,
    OutputPart,
    Packed,
    PartResult,
    Slice,
    SliceSummary,
)
from compaction.passes.txn_headers import scan_transactions


class LocalPasses:
    """See ``compaction.engine.protocol.Passes``."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def read_transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        return [scan_transactions(each, files) for each in slices]

    def collect_dirty_keys(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
    ) -> Mapping[int, KeyFilter]:
        for log, keys in collect_keys(slices, logs, settings, filters):
            filters[log].join(keys)
        return filters

    def build_offset_map(self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings) -> MapResult:
        summaries: list[SliceSummary] = []
        merged: dict[tuple[int, int], list[Any]] = {}
        tasks = pack(slices, lambda each: each.size_bytes, self._sizes.scan_bytes)
        known = flag_single_task_logs(logs, tasks)
        for task in tasks:
            for (log, shard), values in scan_slices(task, known, settings):
                if shard == SUMMARY:
                    summaries += values  # type: ignore[arg-type]
                else:
                    merged.setdefault((log, shard), []).extend(values)
        return MapResult(tuple(summaries), merged)

    def clean_into_groups(
        self,
        mapped: MapResult,
        logs: Mapping[int, CleanContext],
        parts: Sequence[OutputPart],
        load_factor: float,
        *,
        dry_run: bool,
    ) -> CleanedParts:
        firsts = {log: np.array([p.first_offset for p in parts if p.output.log == log], np.int64) for log in logs}
        survivors: dict[tuple[int, int], list[Packed]] = {}
        keys: dict[int, int] = {}
        for (log, _), packed in mapped.merged.items():
            if log in logs:
                found, count = resolve_shard(packed, logs[log].first_dirty_offset, load_factor)
                keys[log] = keys.get(log, 0) + count
                for number, of_part in split_by_part(found, firsts[log]):
                    survivors.setdefault((log, number), []).append(of_part)
        results = [
            clean_part(part, logs[part.output.log], survivors.get((part.output.log, part.number), []), dry_run=dry_run)
            for part in parts
        ]
        return CleanedParts(tuple(results), keys)

    def join_parts(self, groups: Sequence[tuple[GroupOutput, CleanContext, list[PartResult]]]) -> list[PartResult]:
        return [join_parts(*group) for group in groups]
