"""The tasks of worker processes: each is called with its input, and with the spool of its process for its results for other
tasks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from compaction.engines.spool import Piece, Spool
from compaction.passes.merge import resolve_into_parts
from compaction.passes.tasks import SUMMARY, Key
from compaction.run.passes import CleanedParts, CleanInputs, MapInputs, clean_task
from compaction.task_runner import Item

T = TypeVar("T")
R = TypeVar("R")

#: keys with the positions of their values
Placed = list[tuple[Any, Piece]]


def alone(work: Callable[[T], R], task: T, _: Spool) -> R:
    """A task without results for others."""
    return work(task)


def emitted(emit: Callable[[T], Iterable[Item]], task: T, spool: Spool) -> Placed:
    return [(key, spool.put(value)) for key, value in emit(task)]


def joined(join: Callable[[Iterable[Item]], Iterable[R]], placed: Placed, _: Spool) -> list[R]:
    return list(join((key, piece.load()) for key, piece in placed))


class Scan:
    """A task of pass 1: returns its summaries, and the positions of its entries."""

    def __init__(self, inputs: MapInputs) -> None:
        self._scan, self._contexts, self._settings = inputs.scan, inputs.known, inputs.settings

    def __call__(self, task: Sequence[Any], spool: Spool) -> tuple[list[Any], Placed]:
        summaries: list[Any] = []
        placed: Placed = []
        for key, values in self._scan(task, self._contexts, self._settings):
            if key[1] == SUMMARY:
                summaries += values
            else:
                placed.append((key, spool.put(values)))
        return summaries, placed


def _merged(placed: Placed) -> Iterator[tuple[Key, list[Any]]]:
    """The values of each key, one key in memory at a time."""
    pieces: dict[Key, list[Piece]] = {}
    for key, piece in placed:
        pieces.setdefault(key, []).append(piece)
    for key, key_pieces in pieces.items():
        yield key, [value for piece in key_pieces for value in piece.load()]


class ShardWork:
    """Runs ``work`` for each shard of pass 1."""

    def __init__(self, work: Callable[[Key, list[Any]], Iterable[Any]]) -> None:
        self._work = work

    def __call__(self, shards: Placed, _: Spool) -> list[Any]:
        return [result for key, packed in _merged(shards) for result in self._work(key, packed)]


class Resolve:
    """Resolves shards between the passes: returns the positions of their survivor entries."""

    def __init__(self, inputs: CleanInputs[Any]) -> None:
        self._maps, self._load_factor = inputs.maps, inputs.load_factor

    def __call__(self, shards: Placed, spool: Spool) -> list[tuple[tuple[int, Hashable], Piece]]:
        resolved = resolve_into_parts(_merged(shards), self._maps, self._load_factor)
        return [(key, spool.put(entries)) for key, entries in resolved]


class Clean:
    """A task of pass 2."""

    def __init__(self, inputs: CleanInputs[Any]) -> None:
        self._clean, self._contexts, self._threads = inputs.clean, inputs.known, inputs.threads

    def __call__(self, task: tuple[Sequence[Any], Placed], _: Spool) -> CleanedParts[Any]:
        parts, items = task
        return clean_task(self._clean, self._contexts, parts, _merged(items), self._threads)
