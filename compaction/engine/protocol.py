"""What a round asks of whoever runs the passes; ``compaction.spark.pipeline`` runs them as Spark jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from compaction.fs.filesystem import Files
from compaction.kernels.keys.key_filter import KeyFilter
from compaction.passes.tasks import (
    CleanContext,
    GroupOutput,
    MapContext,
    MapSettings,
    OutputPart,
    PartResult,
    Slice,
    SliceSummary,
)

#: the piece number under which a shard reports how many keys it held
KEYS = -1


@dataclass(frozen=True)
class MapResult:
    """What pass 1 gives: a summary a slice, and the merged shards of the maps wherever the passes keep them."""

    summaries: tuple[SliceSummary, ...]
    merged: Any


@dataclass(frozen=True)
class CleanedParts:
    """What pass 2 gives: one result a piece, and the number of distinct keys of each log's map."""

    results: tuple[PartResult, ...]
    keys: Mapping[int, int]


class Passes(Protocol):
    """The passes over all logs of a run."""

    def read_transactions(self, slices: Sequence[Slice], files: Files) -> list[SliceSummary]:
        """Headers only: the transaction summary of each slice."""

    def collect_dirty_keys(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
    ) -> Mapping[int, KeyFilter]:
        """The keys of the dirty records in ``slices``, by log; none where these passes have no use for them.

        :param filters: empty ones
        """

    def build_offset_map(self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings) -> MapResult:
        """Pass 1 over ``slices``, in the order of logs and offsets."""

    def clean_into_groups(
        self,
        scanned: MapResult,
        logs: Mapping[int, CleanContext],
        pieces: Sequence[OutputPart],
        load_factor: float,
        *,
        dry_run: bool,
    ) -> CleanedParts:
        """Pass 2 over ``pieces``, in the order of logs and offsets."""

    def join_parts(self, groups: Sequence[tuple[GroupOutput, CleanContext, list[PartResult]]]) -> list[PartResult]:
        """Join the parts of groups that several tasks wrote."""
