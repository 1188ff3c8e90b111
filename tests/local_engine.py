"""The shared passes without Spark: the same tasks, sequentially in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compaction.compare.count import SharedSlice, SharedSummary, Source, counts_of, scan_shared
from compaction.compare.measure import Measured, Repetition, count_rounds, measure_shared, resolve_counts
from compaction.compare.shared_passes import MeasureInputs
from compaction.engine.sizing import Sizes, pack
from compaction.fs.filesystem import ReadableFileSystem
from compaction.passes.build_map import SUMMARY
from compaction.passes.merge import resolve_shard, split_by_part
from compaction.passes.tasks import MapContext, MapSettings, Packed, Slice, SliceSummary
from compaction.passes.txn_headers import scan_transactions


class LocalEngine:
    """See ``compaction.compare.shared_passes.Engine``."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        return [scan_transactions(each, files) for each in slices]

    def scan(
        self,
        slices: Sequence[SharedSlice],
        variants: Mapping[int, MapContext],
        sources: Mapping[int, Source],
        settings: MapSettings,
    ) -> tuple[list[SharedSummary], Any]:
        summaries: list[SharedSummary] = []
        merged: dict[tuple[int, int], list[Any]] = {}
        for task in pack(slices, lambda each: each.slice.size_bytes, self._sizes.scan_bytes):
            for key, values in scan_shared(task, variants, sources, settings):
                if key[1] == SUMMARY:
                    summaries += values  # type: ignore[arg-type]
                else:
                    merged.setdefault(key, []).extend(values)
        return summaries, merged

    def repetitions(self, merged: Any) -> Mapping[int, Repetition]:
        found: dict[int, Repetition] = {}
        for (number, _), packed in merged.items():
            if number < 0:
                source, repetition = counts_of(number), resolve_counts(packed)
                found[source] = found[source] + repetition if source in found else repetition
        return found

    def measure(self, merged: Any, work: MeasureInputs) -> tuple[list[Measured], Mapping[int, int]]:
        slice_of = {each.number: each.slice for each in work.slices}
        survivors: dict[tuple[int, int], list[Packed]] = {}
        keys: dict[int, int] = {}
        for (number, _), packed in merged.items():
            if number >= 0 and work.cases.get(number):
                variant = work.variants[number]
                firsts = np.array([slice_of[each].first_offset for each in variant.slices], np.int64)
                found, count = resolve_shard(packed, variant.scan.first_dirty_offset, work.load_factor)
                keys[number] = keys.get(number, 0) + count
                for at, of_slice in split_by_part(found, firsts):
                    survivors.setdefault((number, variant.slices[at]), []).append(of_slice)
        return list(measure_shared(work.slices, work.cases, survivors, work.sources)), keys

    def rounds(self, works: Sequence[tuple[Sequence[Slice], MapContext]], settings: MapSettings, most_keys: int) -> list[int]:
        return [count_rounds(*work, settings, most_keys) for work in works]
