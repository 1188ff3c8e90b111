"""The passes of a run whose "logs" are several policies' plans for the same logs. Common work is done once.

``Cleaner`` numbers its plans and runs passes over their slices. Here slices of the same bytes are merged, plans that build the
same map share a variant (see ``compaction.policies.measure``), and results are returned under each plan's number. Nothing is
written: both kinds of pass 2 measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from compaction.engine import Engine, Job, pack, size_of
from compaction.errors import LogError
from compaction.files.filesystem import ReadableFileSystem
from compaction.kernels.keys import KeyFilter
from compaction.passes.merge import CleanedParts, MapParts
from compaction.passes.tasks import (
    CleanContext,
    CleanStats,
    MapContext,
    MapSettings,
    OutputPart,
    PartResult,
    Slice,
    SliceId,
    SliceSummary,
)
from compaction.policies.measure import (
    MeasureContext,
    Measured,
    Repetition,
    SharedSummary,
    Source,
    Tally,
    count_rounds,
    counts_of,
    measure_shared,
    resolve_counts,
    scan_shared,
)
from compaction.rules.plan import LogPlan
from compaction.run.offset_maps import OffsetMaps
from compaction.run.sizing import Sizes


class Variant(NamedTuple):
    """One way to build a log's map: its slices, and the numbers of the plans that share it."""

    scan: MapContext
    slices: tuple[Slice, ...]
    logs: tuple[int, ...]


@dataclass(frozen=True)
class LogCounts:
    """A source's description from pass 1; ``by_segment``: record counts by index of the segment in the source's view."""

    by_segment: Mapping[int, Tally]
    repetition: Repetition | None
    error: str | None


class SharedMaps(OffsetMaps):
    """The passes of comparisons.

    :param sources: by number, the logs to describe, each with all of its slices in the order of offsets
    """

    #: of pass 1
    _settings: MapSettings

    def __init__(
        self,
        engine: Engine,
        sizes: Sizes,
        now_ms: int,
        refuse: Callable[[LogPlan, int, int], str | None],
        sources: Mapping[int, tuple[Source, Sequence[Slice]]],
    ) -> None:
        super().__init__(engine, sizes, now_ms, refuse)
        self._sources = {number: source for number, (source, _) in sources.items()}
        self._slices = {_byte_range(part): part for _, slices in sources.values() for part in slices}
        self._variants: dict[int, Variant] = {}
        #: by source, once ``build_offset_map`` has run
        self.described: dict[int, LogCounts] = {}
        #: by plan, once ``clean_into_groups`` has run: counts of the dropped records
        self.dropped: dict[int, Tally] = {}

    def read_transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        """The transaction summary of each slice; equal byte ranges are read once."""
        ranges = list(dict.fromkeys(_byte_range(slice_) for slice_ in slices))
        summaries = super().read_transactions([self._slices[byte_range] for byte_range in ranges], files)
        by_range = dict(zip(ranges, summaries, strict=True))
        return [_for_plan(part, self._shared(part), by_range[_byte_range(part)]) for part in slices]

    def collect_dirty_keys(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
    ) -> Sequence[SliceSummary]:
        """No filters: the policies' dirty sections differ."""
        return ()

    def build_offset_map(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings
    ) -> Sequence[SliceSummary]:
        """Pass 1 over all sources; the result has the summaries of ``slices``."""
        self._settings = settings
        self._variants = self._group(slices, logs)
        members: dict[SliceId, list[int]] = {part.id: [counts_of(part.log)] for part in self._slices.values()}
        for number, variant in self._variants.items():
            for slice_ in variant.slices:
                members[slice_.id].append(number)
        self._slices = {key: replace(slice_, maps=tuple(members[slice_.id])) for key, slice_ in self._slices.items()}
        scans = {number: variant.scan for number, variant in self._variants.items()}
        shards = {number: scan.shards for number, scan in scans.items()}
        shards |= {counts_of(number): source.shards for number, source in self._sources.items()}
        bounds = {number: (count, count * self._sizes.shard_entries) for number, count in shards.items()}
        tasks = pack(list(self._slices.values()), size_of, self._sizes.scan_bytes)
        description = f"pass 1: scan {len(self._slices)} slices for {len(scans)} maps"
        known = (scans, self._sources)
        shared_summaries = self.scan_into_maps(
            description, tasks, scan_shared, known, settings, bounds, lambda shared: shared.summary
        )
        by_id = {summary.summary.slice_id: summary for summary in shared_summaries}
        self._slices = {
            key: replace(part, fingerprint=by_id[part.id].summary.fingerprint) for key, part in self._slices.items()
        }
        self.described = self._describe(by_id)
        return [_for_plan(slice_, self._shared(slice_), by_id[self._shared(slice_).id].summary) for slice_ in slices]

    def clean(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart], *, writes: bool) -> CleanedParts[PartResult]:
        """Pass 2 over the slices of ``parts``; nothing is written in any case."""
        cases = {
            number: contexts
            for number, variant in self._variants.items()
            if (contexts := [(log, logs[log]) for log in variant.logs if log in logs])
        }
        slices = [part for part in self._slices.values() if any(number in cases for number in part.maps)]
        maps = {
            number: MapParts.of(self._variants[number].scan.first_dirty_offset, self._variants[number].slices)
            for number in cases
        }
        tasks = pack(slices, size_of, self._sizes.slice_bytes)
        job = Job.reading("pass 2", f"pass 2: measure {len(slices)} slices", tasks)
        cleaned = self.resolve_into(job, tasks, maps, measure_shared, MeasureContext(cases, self._sources))
        keys = {log: cleaned.keys.get(number, 0) for number, variant in self._variants.items() for log in variant.logs}
        return CleanedParts(list(self._results(cleaned.results, parts)), keys)

    def broker_rounds(
        self, plans_with_map_size: Iterable[tuple[int, int]], keys: Mapping[int, int]
    ) -> dict[tuple[int, int], int]:
        """The number of rounds that a broker's cleaner needs for a plan's log. Logs whose keys may not fit the broker's map are
        read again, once per map size.

        :param plans_with_map_size: pairs of a plan and the number of keys that its broker's map holds
        :param keys: the number of keys in each plan's map
        """
        rounds = dict.fromkeys(plans_with_map_size, 1)
        for most_keys in sorted({most_keys for log, most_keys in rounds if keys.get(log, 0) >= most_keys}):
            variants = [
                variant
                for variant in self._variants.values()
                if any((log, most_keys) in rounds and keys.get(log, 0) >= most_keys for log in variant.logs)
            ]
            works = [(variant.slices, variant.scan) for variant in variants]
            job = Job.reading("rounds", f"count a broker's rounds over {len(works)} logs", [slices for slices, _ in works])
            count = partial(count_rounds, settings=self._settings, most_keys=most_keys)
            for variant, round_count in zip(variants, self._engine.run(job, works, count), strict=True):
                rounds.update({(log, most_keys): round_count for log in variant.logs if (log, most_keys) in rounds})
        return rounds

    def _group(self, slices: Sequence[Slice], logs: Mapping[int, MapContext]) -> dict[int, Variant]:
        read: dict[int, list[Slice]] = {log: [] for log in logs}
        for part in slices:
            read[part.log].append(self._shared(part))
        plans_by_map: dict[object, list[int]] = {}
        for log, scan in logs.items():
            plans_by_map.setdefault((tuple(slice_.id for slice_ in read[log]), _map_identity(scan)), []).append(log)
        return {
            number: Variant(logs[plans[0]], tuple(read[plans[0]]), tuple(plans))
            for number, plans in enumerate(plans_by_map.values())
        }

    def _shared(self, slice_: Slice) -> Slice:
        return self._slices[_byte_range(slice_)]

    def _describe(self, summaries: Mapping[SliceId | None, SharedSummary]) -> dict[int, LogCounts]:
        repetitions: dict[int, Repetition] = {}
        by_segment: dict[int, dict[int, Tally]] = {source: {} for source in self._sources}
        errors: dict[int, str] = {}
        for number, repetition in self.collect_shards("count how often keys occur", resolve_counts):
            if isinstance(repetition, LogError):
                errors.setdefault(counts_of(number), str(repetition))
            else:
                repetitions[number] = repetitions[number] + repetition if number in repetitions else repetition
        for part in self._slices.values():
            source, summary = part.log, summaries[part.id]
            segments, segment = by_segment[source], part.segment_index
            segments[segment] = segments[segment] + summary.tally if segment in segments else summary.tally
            if summary.summary.error is not None:
                errors.setdefault(source, summary.summary.error)
        return {
            source: LogCounts(by_segment[source], repetitions.get(counts_of(source)), errors.get(source))
            for source in self._sources
        }

    def _results(self, measured: Iterable[Measured], parts: Sequence[OutputPart]) -> Iterable[PartResult]:
        """One result per output part; adds the dropped records of its slices to ``dropped``."""
        by_slice = {(result.case, result.slice_id): result for result in measured}
        for part in parts:
            output, stats, error = part.output, CleanStats(), None
            for slice_ in part.slices:
                result = by_slice[output.log, self._shared(slice_).id]
                stats += result.stats
                error = error or result.error
                self.dropped[output.log] = self.dropped.get(output.log, Tally.empty()) + result.dropped
            yield PartResult(output.log, output.group, part.number, stats, None, error)


def _byte_range(slice_: Slice) -> tuple[str, int, int]:
    return slice_.path, slice_.start, slice_.end


def _map_identity(scan: MapContext) -> object:
    aborted = scan.aborted
    ranges = b"" if aborted is None else np.stack([aborted.producer_id, aborted.first_offset, aborted.last_offset]).tobytes()
    return scan.first_dirty_offset, scan.shards, ranges


def _for_plan(slice_: Slice, shared: Slice, summary: SliceSummary) -> SliceSummary:
    rows = summary.txn_rows.copy()
    rows["segment_index"] += slice_.segment_index - shared.segment_index
    return replace(summary, log=slice_.log, slice_id=slice_.id, txn_rows=rows)
