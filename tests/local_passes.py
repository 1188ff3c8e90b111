"""Runs tasks without Spark: one after the other, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from compaction.engine import Emit, Inputs, Job, Place, Places, Source

R = TypeVar("R")


@dataclass
class Shuffled:
    """See ``compaction.engine.Shuffle``."""

    results: list[Any]
    #: the values of each place, by part
    values: list[dict[Place, list[Any]]] = field(default_factory=list)

    @property
    def parts(self) -> int:
        return len(self.values)

    def close(self) -> None: ...


class LocalPasses:
    """See ``compaction.engine.Engine``."""

    def __init__(self, cores: int = 2) -> None:
        self.cores = cores

    def run(self, job: Job, source: Inputs, work: Callable[..., R]) -> list[R]:
        source = Source.over(source)
        items = [None] * len(source) if source.items is None else [found.items() for found in source.items.values]  # type: ignore[attr-defined]
        function = source.of(work)
        tasks = [None] * len(source) if source.tasks is None else source.tasks
        return [function(task, part, source.known) for task, part in zip(tasks, items, strict=True)]

    def shuffle(self, job: Job, source: Inputs, emit: Emit, places: Places, *, merges: bool = False) -> Shuffled:
        shuffled = Shuffled([], [{} for _ in range(places.parts)])
        for emitted in self.run(job, source, lambda *inputs: list(emit(*inputs))):
            for to, value in emitted:
                if to is None:
                    shuffled.results.append(value)
                else:
                    shuffled.values[places(to)].setdefault(to, []).append(value)
        return shuffled
