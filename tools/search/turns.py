"""A turn of a search: seeds one after another until the time is up, and the failures that they find."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple


class Failure(NamedTuple):
    """What a search has found, the command that repeats it, and its case file if it can be replayed without that command."""

    problem: str
    command: str
    case: Path | None = None

    def __str__(self) -> str:
        lines = [f"FAILED: {self.problem.rstrip()}", f"repeat: {self.command}"]
        return "\n".join(lines if self.case is None else [*lines, f"case: {self.case}"])


class Turn:
    """``tried`` counts the seeds so far; ``cases`` is the directory for case files, ``None`` for that of the search."""

    def __init__(self, seed: int, seconds: float, cases: Path | None = None) -> None:
        self.seed, self.seconds, self.cases = seed, seconds, cases
        self.tried = 0
        self._deadline = time.monotonic() + seconds

    def left(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self._deadline - time.monotonic())

    def seeds(self, step: int = 1) -> Iterator[int]:
        """Every ``step``-th seed from the first one on, which is tried in any case; none after the time is up."""
        for seed in count(self.seed, step):
            if self.tried and not self.left():
                return
            self.tried += 1
            yield seed

    def unless_it_fails(self, command: str, work: Callable[[], object]) -> Iterator[Failure]:
        """Does work that raises what it finds; ``command`` repeats it."""
        self.tried += 1
        try:
            work()
        except Exception:
            yield Failure(traceback.format_exc(), command)


def repeat(name: str, seed: int, seconds: float = 0) -> str:
    """The command that repeats a turn, or one seed."""
    return f"python -m tools.search --turn '{name}' --seed {seed}" + (f" --seconds {seconds:.0f}" if seconds else "")
