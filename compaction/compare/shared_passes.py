"""The passes of a round whose "logs" are several policies' plans for the same logs. Common work is done once.

``Round`` numbers its plans and runs passes over their slices. Here slices of the same bytes are merged, plans that build the
same map share a variant (see ``compaction.compare.count``), and results are returned under each plan's number.

Tested by ``tests/compare/test_compare_policies.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from compaction.compare.count import SharedSlice, SharedSummary, Source, Tally
from compaction.compare.measure import Measured, Repetition
from compaction.engine.protocol import CleanedParts, MapResult
from compaction.fs.filesystem import ReadableFileSystem
from compaction.kernels.keys.key_filter import KeyFilter
from compaction.kernels.reading.siphash import HashSecret
from compaction.passes.tasks import (
    CleanContext,
    CleanStats,
    GroupOutput,
    MapContext,
    MapSettings,
    OutputPart,
    PartResult,
    Slice,
    SliceSummary,
)


class Variant(NamedTuple):
    """One way to build a log's map: numbers of its slices, and of the plans that share it."""

    scan: MapContext
    slices: tuple[int, ...]
    logs: tuple[int, ...]


class MeasureInputs(NamedTuple):
    """Input of pass 2 besides the maps; ``cases``: the plans to be measured, by variant."""

    slices: Sequence[SharedSlice]
    variants: Mapping[int, Variant]
    cases: Mapping[int, Sequence[tuple[int, CleanContext]]]
    sources: Mapping[int, Source]
    load_factor: float


class Engine(Protocol):
    """Runs the tasks."""

    def transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        """The transaction summary of each slice, from headers only."""

    def scan(
        self,
        slices: Sequence[SharedSlice],
        variants: Mapping[int, MapContext],
        sources: Mapping[int, Source],
        settings: MapSettings,
    ) -> tuple[list[SharedSummary], Any]:
        """Pass 1: one summary per slice, and the merged shards in the engine's own form."""

    def repetitions(self, merged: Any) -> Mapping[int, Repetition]:
        """How often keys occur, by source."""

    def measure(self, merged: Any, work: MeasureInputs) -> tuple[list[Measured], Mapping[int, int]]:
        """Pass 2: the measurement of each slice in each case, and the number of keys in each variant's map."""

    def rounds(self, works: Sequence[tuple[Sequence[Slice], MapContext]], settings: MapSettings, most_keys: int) -> list[int]:
        """The number of Kafka's rounds for each log, see ``count_rounds``."""


@dataclass(frozen=True)
class LogCounts:
    """A source's description from pass 1; ``by_segment``: record counts by index of the segment in the source's view."""

    by_segment: Mapping[int, Tally]
    repetition: Repetition | None
    error: str | None


class SharedPasses:
    """Implements ``compaction.engine.protocol.Passes`` for dry runs.

    :param sources: by number, the logs to describe, each with all of its slices in the order of offsets
    """

    def __init__(self, engine: Engine, sources: Mapping[int, tuple[Source, Sequence[Slice]]]) -> None:
        self._engine = engine
        self._sources = {number: source for number, (source, _) in sources.items()}
        of_sources = [each for _, slices in sources.values() for each in slices]
        self._slices = {_byte_range(each): SharedSlice(number, each, ()) for number, each in enumerate(of_sources)}
        self._variants: dict[int, Variant] = {}
        self._settings = MapSettings(0, 1.0, HashSecret.random())
        #: by source, once ``build_offset_map`` has run
        self.described: dict[int, LogCounts] = {}
        #: by plan, once ``clean_into_groups`` has run: counts of the dropped records
        self.dropped: dict[int, Tally] = {}

    def read_transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        """The transaction summary of each slice; equal byte ranges are read once."""
        ranges = list(dict.fromkeys(_byte_range(each) for each in slices))
        shared = [self._slices[each].slice for each in ranges]
        found = dict(zip(ranges, self._engine.transactions(shared, files), strict=True))
        return [_for_plan(each, self._shared(each).slice, found[_byte_range(each)]) for each in slices]

    def collect_dirty_keys(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
    ) -> Mapping[int, KeyFilter]:
        """None: the policies' dirty sections differ."""
        return {}

    def build_offset_map(self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings) -> MapResult:
        """Pass 1 over all sources; the result has the summaries of ``slices``."""
        self._settings = settings
        self._variants = self._group(slices, logs)
        members: dict[int, list[int]] = {}
        for number, variant in self._variants.items():
            for each in variant.slices:
                members.setdefault(each, []).append(number)
        self._slices = {
            key: replace(each, variants=tuple(members.get(each.number, ()))) for key, each in self._slices.items()
        }
        scans = {number: variant.scan for number, variant in self._variants.items()}
        found, merged = self._engine.scan(list(self._slices.values()), scans, self._sources, settings)
        by_number = {summary.number: summary for summary in found}
        self.described = self._describe(by_number, self._engine.repetitions(merged))
        pairs = [(each, self._shared(each)) for each in slices]
        summaries = [_for_plan(each, shared.slice, by_number[shared.number].summary) for each, shared in pairs]
        return MapResult(tuple(summaries), merged)

    def clean_into_groups(
        self,
        scanned: MapResult,
        logs: Mapping[int, CleanContext],
        parts: Sequence[OutputPart],
        load_factor: float,
        *,
        dry_run: bool,
    ) -> CleanedParts:
        """Pass 2 over the slices of ``parts``."""
        if not dry_run:
            raise ValueError("these passes write nothing")
        cases = {
            number: [(log, logs[log]) for log in variant.logs if log in logs] for number, variant in self._variants.items()
        }
        slices = [each for each in self._slices.values() if any(cases[variant] for variant in each.variants)]
        work = MeasureInputs(slices, self._variants, cases, self._sources, load_factor)
        measured, keys_of = self._engine.measure(scanned.merged, work)
        keys = {log: keys_of.get(number, 0) for number, variant in self._variants.items() for log in variant.logs}
        return CleanedParts(tuple(self._results(measured, parts)), keys)

    def join_parts(self, groups: Sequence[tuple[GroupOutput, CleanContext, list[PartResult]]]) -> list[PartResult]:
        """Nothing: no parts were written."""
        return []

    def broker_rounds(self, wanted: Iterable[tuple[int, int]], keys: Mapping[int, int]) -> dict[tuple[int, int], int]:
        """The number of rounds that a broker's cleaner needs for a plan's log. Logs whose keys may not fit the broker's map are
        read again, once per map size.

        :param wanted: pairs of a plan and the number of keys that its broker's map holds
        :param keys: the number of keys in each plan's map
        """
        rounds = dict.fromkeys(wanted, 1)
        by_number = {each.number: each.slice for each in self._slices.values()}
        for most in sorted({most for log, most in rounds if keys.get(log, 0) >= most}):
            variants = [
                variant
                for variant in self._variants.values()
                if any((log, most) in rounds and keys.get(log, 0) >= most for log in variant.logs)
            ]
            works = [([by_number[number] for number in variant.slices], variant.scan) for variant in variants]
            for variant, count in zip(variants, self._engine.rounds(works, self._settings, most), strict=True):
                rounds.update({(log, most): count for log in variant.logs if (log, most) in rounds})
        return rounds

    def _group(self, slices: Sequence[Slice], logs: Mapping[int, MapContext]) -> dict[int, Variant]:
        """The variants: groups of plans that build the same map from the same slices."""
        numbers: dict[int, list[int]] = {log: [] for log in logs}
        for each in slices:
            numbers[each.log].append(self._shared(each).number)
        found: dict[object, list[int]] = {}
        for log, scan in logs.items():
            found.setdefault((tuple(numbers[log]), _map_identity(scan)), []).append(log)
        return {
            number: Variant(logs[plans[0]], tuple(numbers[plans[0]]), tuple(plans))
            for number, plans in enumerate(found.values())
        }

    def _shared(self, slice_: Slice) -> SharedSlice:
        return self._slices[_byte_range(slice_)]

    def _describe(
        self, summaries: Mapping[int, SharedSummary], repetitions: Mapping[int, Repetition]
    ) -> dict[int, LogCounts]:
        by_segment: dict[int, dict[int, Tally]] = {source: {} for source in self._sources}
        errors: dict[int, str] = {}
        for each in self._slices.values():
            source, summary = each.slice.log, summaries[each.number]
            segments = by_segment[source]
            segments[each.slice.segment_index] = segments.get(each.slice.segment_index, Tally.empty()) + summary.tally
            if summary.summary.error is not None:
                errors.setdefault(source, summary.summary.error)
        return {
            source: LogCounts(by_segment[source], repetitions.get(source), errors.get(source)) for source in self._sources
        }

    def _results(self, measured: Iterable[Measured], parts: Sequence[OutputPart]) -> Iterable[PartResult]:
        """One result per output part; adds the dropped records of its slices to ``dropped``."""
        by_slice = {(each.case, each.number): each for each in measured}
        for part in parts:
            output, stats, error = part.output, CleanStats(), None
            for each in part.slices:
                found = by_slice[output.log, self._shared(each).number]
                stats += found.stats
                error = error or found.error
                self.dropped[output.log] = self.dropped.get(output.log, Tally.empty()) + found.dropped
            yield PartResult(output.log, output.group, part.number, stats, None, error)


def _byte_range(slice_: Slice) -> tuple[str, int, int]:
    return slice_.path, slice_.start, slice_.end


def _map_identity(scan: MapContext) -> object:
    """Equal for contexts that build the same map from the same slices."""
    aborted = scan.aborted
    ranges = b"" if aborted is None else np.stack([aborted.producer_id, aborted.first_offset, aborted.last_offset]).tobytes()
    return scan.first_dirty_offset, scan.shards, ranges


def _for_plan(slice_: Slice, shared: Slice, found: SliceSummary) -> SliceSummary:
    """A shared slice's summary as that of a plan's slice, whose view may begin at a later segment."""
    rows = found.txn_rows.copy()
    rows["segment_index"] += slice_.segment_index - shared.segment_index
    return replace(found, log=slice_.log, slice_id=slice_.id, txn_rows=rows)
