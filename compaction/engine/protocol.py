"""The passes that ``engine.cleaner`` needs; ``compaction.spark.pipeline`` runs them as Spark jobs.

Tested by ``tests/passes/test_rounds.py`` and ``tests/passes/test_single_task.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from compaction.fs.filesystem import ReadableFileSystem
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

#: in place of the number of an output part: the number of keys of a shard
KEYS = -1


@dataclass(frozen=True)
class MapResult:
    """The result of pass 1: a summary per slice, and the merged map shards, in a form that only the passes know."""

    summaries: tuple[SliceSummary, ...]
    merged: Any


@dataclass(frozen=True)
class CleanedParts:
    """The result of pass 2: one result per output part, and the number of distinct keys in each log's map."""

    results: tuple[PartResult, ...]
    keys: Mapping[int, int]


class Passes(Protocol):
    """The passes over all logs of a run."""

    def read_transactions(self, slices: Sequence[Slice], files: ReadableFileSystem) -> list[SliceSummary]:
        """Reads batch headers: the transaction summary of each slice."""

    def collect_dirty_keys(
        self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings, filters: Mapping[int, KeyFilter]
    ) -> Mapping[int, KeyFilter]:
        """The keys of the dirty records in ``slices``, by log; may be empty.

        :param filters: empty filters of the right sizes
        """

    def build_offset_map(self, slices: Sequence[Slice], logs: Mapping[int, MapContext], settings: MapSettings) -> MapResult:
        """Pass 1 over ``slices``, which are in the order of logs and offsets."""

    def clean_into_groups(
        self,
        mapped: MapResult,
        logs: Mapping[int, CleanContext],
        parts: Sequence[OutputPart],
        load_factor: float,
        *,
        dry_run: bool,
    ) -> CleanedParts:
        """Pass 2 over ``parts``, which are in the order of logs and offsets."""

    def join_parts(self, groups: Sequence[tuple[GroupOutput, CleanContext, list[PartResult]]]) -> list[PartResult]:
        """Joins the parts of groups with several parts."""
