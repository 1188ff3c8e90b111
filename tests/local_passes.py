"""The tasks of all passes without Spark: one after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from compaction.passes.merge import resolve_into_parts
from compaction.passes.tasks import SUMMARY, Key
from compaction.run.passes import CleanedParts, CleanInputs, MapInputs, MapResult, clean_task
from compaction.task_runner import Item, Job, reducer_of

T = TypeVar("T")
R = TypeVar("R")


class LocalPasses:
    """See ``compaction.run.passes.Passes``."""

    def __init__(self, cores: int = 2) -> None:
        self.cores = cores

    def run(self, job: Job, tasks: Sequence[T], work: Callable[[T], R]) -> list[R]:
        return [work(task) for task in tasks]

    def exchange(
        self,
        job: Job,
        tasks: Sequence[T],
        emit: Callable[[T], Iterable[Item]],
        join: Callable[[Iterable[Item]], Iterable[R]],
        reducers: int,
    ) -> list[R]:
        items: list[list[Item]] = [[] for _ in range(reducers)]
        for each in (item for task in tasks for item in emit(task)):
            items[reducer_of(each[0], reducers)].append(each)
        return [result for each in items for result in join(each)]

    def build_offset_map(self, job: Job, inputs: MapInputs, task_entries: int) -> MapResult:
        summaries: list[Any] = []
        merged: dict[Key, list[Any]] = {}
        for task in inputs.tasks:
            for key, values in inputs.scan(task, inputs.known, inputs.settings):
                if key[1] == SUMMARY:
                    summaries += values
                else:
                    merged.setdefault(key, []).extend(values)
        return MapResult(summaries, merged)

    def collect_shards(self, job: Job, merged: Any, work: Callable[[Key, list[Any]], Iterable[R]]) -> list[R]:
        return [result for key, packed in merged.items() for result in work(key, packed)]

    def clean_into_groups(self, job: Job, merged: Any, inputs: CleanInputs[R]) -> CleanedParts[R]:
        survivors: dict[tuple[int, Hashable], list[Any]] = {}
        for key, found in resolve_into_parts(merged.items(), inputs.maps, inputs.load_factor):
            survivors.setdefault(key, []).extend(found)
        parts = [part for task in inputs.tasks for part in task]
        return clean_task(inputs.clean, inputs.known, parts, survivors.items(), 1)
