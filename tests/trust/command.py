"""What the commands of this package share: they look at many cases, of seeds or of a list."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def parser_of_seeds(description: str | None, runs: int) -> argparse.ArgumentParser:
    """With the options of ``seeds_of``."""
    parser = parser_of(description)
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each further run takes the next one")
    return parser


def seeds_of(options: argparse.Namespace) -> range:
    return range(options.seed, options.seed + options.runs)


def look_at_all(cases: Iterable[T], look: Callable[[T], tuple[Iterable[str], Iterable[str]]]) -> int:
    """Prints what is wrong with the cases, and how often each outcome was; returns the exit code.

    :param look: the outcomes of a case, and what is wrong with it
    """
    counts, tried, wrong, began = Counter[str](), 0, 0, time.monotonic()
    for tried, case in enumerate(cases, 1):  # noqa: B007 - their number
        outcomes, problems = look(case)
        counts.update(outcomes)
        for problem in problems:
            wrong += 1
            print(problem, flush=True)
    for outcome, count in sorted(counts.items()):
        print(f"{count:8}  {outcome}")
    print(f"{tried} runs, {wrong} violations, {time.monotonic() - began:.0f} s")
    return int(wrong > 0)
