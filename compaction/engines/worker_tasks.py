"""What a worker process does: a task of one of the passes, whose results for other tasks it puts into its spool."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from compaction.engines.exchange import Piece, load_shared, put
from compaction.passes.merge import resolve_into_parts
from compaction.passes.tasks import SUMMARY, Key
from compaction.run.passes import CleanedParts, CleanInputs, MapInputs, clean_task
from compaction.task_runner import Item

T = TypeVar("T")
R = TypeVar("R")

#: by key, where its values are
Placed = list[tuple[Any, Piece]]


def call(number: int, work: Piece, task: Any) -> Any:
    """Runs a task of job ``number``, whose ``work`` the driver has put where all workers read it."""
    return load_shared(number, work)(task)


def emitted(emit: Callable[[T], Iterable[Item]], task: T) -> Placed:
    return [(place, put(value)) for place, value in emit(task)]


def joined(join: Callable[[Iterable[Item]], Iterable[R]], placed: Placed) -> list[R]:
    return list(join((place, piece.load()) for place, piece in placed))


class Scan:
    """A task of pass 1: its summaries, and where its entries are."""

    def __init__(self, inputs: MapInputs) -> None:
        self._scan, self._known, self._settings = inputs.scan, inputs.known, inputs.settings

    def __call__(self, task: Sequence[Any]) -> tuple[list[Any], Placed]:
        summaries: list[Any] = []
        placed: Placed = []
        for key, values in self._scan(task, self._known, self._settings):
            if key[1] == SUMMARY:
                summaries += values
            else:
                placed.append((key, put(values)))
        return summaries, placed


def _merged(placed: Placed) -> Iterator[tuple[Key, list[Any]]]:
    """The values of each key, one key in memory at a time."""
    pieces: dict[Key, list[Piece]] = {}
    for key, piece in placed:
        pieces.setdefault(key, []).append(piece)
    for key, found in pieces.items():
        yield key, [value for piece in found for value in piece.load()]


class EachShard:
    """Does some work for each shard of pass 1."""

    def __init__(self, work: Callable[[Key, list[Any]], Iterable[Any]]) -> None:
        self._work = work

    def __call__(self, shards: Placed) -> list[Any]:
        return [result for key, packed in _merged(shards) for result in self._work(key, packed)]


class Resolve:
    """Between the passes: where the survivor entries of some shards are."""

    def __init__(self, inputs: CleanInputs[Any]) -> None:
        self._maps, self._load_factor = inputs.maps, inputs.load_factor

    def __call__(self, shards: Placed) -> list[tuple[tuple[int, Hashable], Piece]]:
        return [(key, put(found)) for key, found in resolve_into_parts(_merged(shards), self._maps, self._load_factor)]


class Clean:
    """A task of pass 2."""

    def __init__(self, inputs: CleanInputs[Any]) -> None:
        self._clean, self._known, self._threads = inputs.clean, inputs.known, inputs.threads

    def __call__(self, task: tuple[Sequence[Any], Placed]) -> CleanedParts[Any]:
        parts, items = task
        return clean_task(self._clean, self._known, parts, _merged(items), self._threads)
