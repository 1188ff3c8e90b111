"""The command of ``make search``: all searches in turns, with fresh seeds, until the time is up.

``python -m tools.search --minutes 60``. Each turn is a process of its own; its seed is printed before it starts. ``--only
NAME`` selects searches whose names begin so. What fails is printed with the command that repeats it; what can be replayed in
memory is reduced and written as a case file, which a test replays from then on. ``--turn NAME --seed N`` repeats one seed,
``--replay CASE`` a case.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.damage.fuzz import bounds_checked
from tests.memory import use_memory
from tools.search.in_memory import replay
from tools.search.searches import SEARCHES, Search
from tools.search.turns import Turn, repeat

#: a turn takes its part of the time, within these bounds; what it has begun, it ends
LEAST_S, MOST_S = 5.0, 60.0
#: a turn that has not ended after so long hangs: to reduce a random log takes some minutes
HANGS_S = 3600.0


def take_turn(search: Search, seed: int, seconds: float) -> int:
    """Searches in this process; returns 1 if it finds anything."""
    turn, failures = Turn(seed, seconds), 0
    logging.disable(logging.WARNING)
    try:
        for failure in search.run(turn):
            failures += 1
            print(failure, flush=True)
    finally:
        logging.disable(logging.NOTSET)
    print(f"{search.name}: {turn.tried} tried, {failures} failed", flush=True)
    return int(failures > 0)


def report(problems: Sequence[str]) -> int:
    """Prints what is wrong with a case; returns 1 if anything is."""
    print("\n".join(problems) or "nothing found")
    return int(bool(problems))


def search_in_turns(searches: Sequence[Search], seconds: float, chance: random.Random) -> Counter[str]:
    """Turns of separate processes until the time is up; returns the failed turns by search."""
    failed, deadline = Counter[str](), time.monotonic() + seconds
    a_turn = min(MOST_S, max(LEAST_S, seconds / len(searches)))
    while True:
        for search in searches:
            if time.monotonic() >= deadline:
                return failed
            seed = chance.randrange(10**9)
            print(f"{search.name}: seed {seed}", flush=True)
            if process_of(search, seed, a_turn):
                failed[search.name] += 1
                print(f"the whole turn again: {repeat(search.name, seed, a_turn)}", flush=True)


def process_of(search: Search, seed: int, seconds: float) -> int:
    """One turn in a process of its own; returns its exit code, 1 if it hangs."""
    command = [sys.executable, "-m", "tools.search", "--turn", search.name, "--seed", str(seed), "--seconds", f"{seconds:.0f}"]
    environment = bounds_checked() if search.bounds_checks else dict(os.environ)
    try:
        return subprocess.run(command, env=environment, timeout=HANGS_S, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"FAILED: {search.name} hangs", flush=True)
        return 1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.search", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="searches whose names begin so")
    parser.add_argument("--turn", choices=[search.name for search in SEARCHES], metavar="NAME", help="a single turn")
    parser.add_argument("--seed", type=int, help="of a turn, or of all turns; fresh if not given")
    parser.add_argument("--seconds", type=float, default=0.0, help="of a single turn; one seed if not given")
    parser.add_argument("--replay", type=Path, metavar="CASE", help="a case file")
    options = parser.parse_args(argv)
    use_memory()
    if options.replay:
        return report(replay(options.replay))
    seed = secrets.randbelow(10**9) if options.seed is None else options.seed
    by_name = {search.name: search for search in SEARCHES}
    if options.turn and by_name[options.turn].bounds_checks and os.environ.get("NUMBA_BOUNDSCHECK") != "1":
        return process_of(by_name[options.turn], seed, options.seconds)
    if options.turn:
        return take_turn(by_name[options.turn], seed, options.seconds)
    chosen = [search for search in SEARCHES if search.name.startswith(tuple(options.only) or "")]
    print(f"{len(chosen)} searches in turns for {options.minutes:g} minutes, seed {seed}", flush=True)
    failed = search_in_turns(chosen, options.minutes * 60, random.Random(seed))
    print("nothing found" if not failed else f"found: {', '.join(f'{name} ({count})' for name, count in failed.items())}")
    return int(failed.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
