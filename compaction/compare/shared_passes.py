"""The passes of a round whose "logs" are several policies' plans of the same logs: what they have in common is done once.

``Round`` numbers its plans and asks for passes over their slices; here slices that are the same bytes become one, plans that
build the same map become one variant, and what was found is handed back under every plan's number. See
``compaction.compare.count``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from compaction.compare.count import SharedSlice, SharedSummary, Source, Tally
from compaction.compare.measure import Measured, Repetition
from compaction.engine.protocol import CleanedParts, MapResult
from compaction.fs.filesystem import Files
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
    """One way to build a log's map, see ``compaction.compare.count``; slices and the plans that share it are numbers."""

    scan: MapContext
    slices: tuple[int, ...]
    logs: tuple[int, ...]


class Measuring(NamedTuple):
    """What pass 2 is given besides the maps: the slices, the variants, the plans to be measured by variant, and the sources."""

    slices: Sequence[SharedSlice]
    variants: Mapping[int, Variant]
    cases: Mapping[int, Sequence[tuple[int, CleanContext]]]
    sources: Mapping[int, Source]
    load_factor: float


class Engine(Protocol):
    """Runs the tasks."""

    def transactions(self, slices: Sequence[Slice], files: Files) -> list[SliceSummary]:
        """Headers only: the transaction summary of each slice."""

    def scan(
        self,
        slices: Sequence[SharedSlice],
        variants: Mapping[int, MapContext],
        sources: Mapping[int, Source],
        settings: MapSettings,
    ) -> tuple[list[SharedSummary], Any]:
        """Pass 1: a summary a slice, and the merged shards wherever the engine keeps them."""

    def repetitions(self, merged: Any) -> Mapping[int, Repetition]:
        """How often keys occur, by source."""

    def measure(self, merged: Any, work: Measuring) -> tuple[list[Measured], Mapping[int, int]]:
        """Pass 2: what each case makes of each slice, and the distinct keys of each variant's map."""

    def rounds(self, works: Sequence[tuple[Sequence[Slice], MapContext]], settings: MapSettings, most_keys: int) -> list[int]:
        """Kafka's rounds for each log, see ``count_rounds``."""


@dataclass(frozen=True)
class Described:
    """A source as pass 1 found it: ``by_segment`` counts the records of each segment, by its index in the source's view."""

    by_segment: Mapping[int, Tally]
    repetition: Repetition | None
    error: str | None


class SharedPasses:
    """Implements ``compaction.engine.protocol.Passes``; a dry run's only.

    :param sources: by number, what is to be described, and all of its slices in the order of offsets
    """

    def __init__(self, engine: Engine, sources: Mapping[int, tuple[Source, Sequence[Slice]]]) -> None:
        self._engine = engine
        self._sources = {number: source for number, (source, _) in sources.items()}
        parts = [part for _, slices in sources.values() for part in slices]
        self._parts = {_place(part): SharedSlice(number, part, ()) for number, part in enumerate(parts)}
        self._variants: dict[int, Variant] = {}
        self._settings = MapSettings(0, 1.0, HashSecret.random())
        #: by source, once ``build_offset_map`` has run
        self.described: dict[int, Described] = {}
        #: by plan, once ``clean_into_groups`` has run: the records that are not in the output
        self.gone: dict[int, Tally] = {}

    def read_transactions(self, slices: Sequence[Slice], files: Files) -> list[SliceSummary]:
        """The transaction summary of each slice; the same bytes are read once."""
        places = list(dict.fromkeys(_place(part) for part in slices))
        shared = [self._parts[place].part for place in places]
        found = dict(zip(places, self._engine.transactions(shared, files), strict=True))
        return [_as_of(part, self._parts[_place(part)].part, found[_place(part)]) for part in slices]

    def collect_dirty_keys(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
    ) -> Mapping[int, KeyFilter]:
        """None: policies differ in what is dirty."""
        return {}

    def build_offset_map(self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings) -> MapResult:
        """Pass 1 over all sources; summaries are those of ``slices``."""
        self._settings = settings
        self._variants = self._group(slices, logs)
        members: dict[int, list[int]] = {}
        for number, variant in self._variants.items():
            for each in variant.slices:
                members.setdefault(each, []).append(number)
        self._parts = {
            place: replace(each, variants=tuple(members.get(each.number, ()))) for place, each in self._parts.items()
        }
        scans = {number: variant.scan for number, variant in self._variants.items()}
        found, merged = self._engine.scan(list(self._parts.values()), scans, self._sources, settings)
        by_number = {summary.number: summary for summary in found}
        self.described = self._describe(by_number, self._engine.repetitions(merged))
        summaries = []
        for part in slices:
            shared = self._parts[_place(part)]
            summaries.append(_as_of(part, shared.part, by_number[shared.number].summary))
        return MapResult(tuple(summaries), merged)

    def clean_into_groups(
        self,
        scanned: MapResult,
        logs: Mapping[int, CleanContext],
        pieces: Sequence[OutputPart],
        load_factor: float,
        *,
        dry_run: bool,
    ) -> CleanedParts:
        """Pass 2 over the slices of ``pieces``."""
        if not dry_run:
            raise ValueError("these passes write nothing")
        cases = {
            number: [(log, logs[log]) for log in variant.logs if log in logs] for number, variant in self._variants.items()
        }
        slices = [each for each in self._parts.values() if any(cases[variant] for variant in each.variants)]
        work = Measuring(slices, self._variants, cases, self._sources, load_factor)
        measured, keys_of = self._engine.measure(scanned.merged, work)
        keys = {log: keys_of.get(number, 0) for number, variant in self._variants.items() for log in variant.logs}
        return CleanedParts(tuple(self._results(measured, pieces)), keys)

    def join_parts(self, groups: Sequence[tuple[GroupOutput, CleanContext, list[PartResult]]]) -> list[PartResult]:
        """Nothing: no parts were written."""
        return []

    def broker_rounds(self, wanted: Iterable[tuple[int, int]], keys: Mapping[int, int]) -> dict[tuple[int, int], int]:
        """How often a broker's cleaner would have to go over a plan's log with a map that takes so many keys.

        Only logs whose keys do not surely fit are read again, each map size once.

        :param wanted: pairs of a plan and the keys its broker's map takes
        :param keys: how many keys each plan's map has
        """
        rounds = dict.fromkeys(wanted, 1)
        by_number = {each.number: each.part for each in self._parts.values()}
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
        """The variants: plans of the same slices whose maps are built alike."""
        numbers: dict[int, list[int]] = {log: [] for log in logs}
        for part in slices:
            numbers[part.log].append(self._parts[_place(part)].number)
        found: dict[object, list[int]] = {}
        for log, scan in logs.items():
            found.setdefault((tuple(numbers[log]), _likeness(scan)), []).append(log)
        return {
            number: Variant(logs[alike[0]], tuple(numbers[alike[0]]), tuple(alike))
            for number, alike in enumerate(found.values())
        }

    def _describe(
        self, summaries: Mapping[int, SharedSummary], repetitions: Mapping[int, Repetition]
    ) -> dict[int, Described]:
        by_segment: dict[int, dict[int, Tally]] = {source: {} for source in self._sources}
        errors: dict[int, str] = {}
        for each in self._parts.values():
            source, summary = each.part.log, summaries[each.number]
            segments = by_segment[source]
            segments[each.part.segment_index] = segments.get(each.part.segment_index, Tally.empty()) + summary.tally
            if summary.summary.error is not None:
                errors.setdefault(source, summary.summary.error)
        return {
            source: Described(by_segment[source], repetitions.get(source), errors.get(source)) for source in self._sources
        }

    def _results(self, measured: Iterable[Measured], pieces: Sequence[OutputPart]) -> Iterable[PartResult]:
        """One result a piece, of those of its slices; what went is added up by plan."""
        by_slice = {(each.case, each.number): each for each in measured}
        for piece in pieces:
            output, stats, error = piece.output, CleanStats(), None
            for part in piece.slices:
                found = by_slice[output.log, self._parts[_place(part)].number]
                stats += found.stats
                error = error or found.error
                self.gone[output.log] = self.gone.get(output.log, Tally.empty()) + found.gone
            yield PartResult(output.log, output.group, piece.number, stats, None, error)


def _place(part: Slice) -> tuple[str, int, int]:
    return part.path, part.start, part.end


def _likeness(scan: MapContext) -> object:
    """Equal for maps that are built alike."""
    aborted = scan.aborted
    spans = b"" if aborted is None else np.stack([aborted.producer_id, aborted.first_offset, aborted.last_offset]).tobytes()
    return scan.first_dirty_offset, scan.shards, spans


def _as_of(part: Slice, shared: Slice, found: SliceSummary) -> SliceSummary:
    """What was found in a shared slice as the summary of a plan's slice, whose view may begin at a later segment."""
    rows = found.txn_rows.copy()
    rows["segment_index"] += part.segment_index - shared.segment_index
    return replace(found, log=part.log, txn_rows=rows)
