"""Kills only the driver, thousands of times: the job without Spark, in forks of a process that has already loaded it.

``python -m tests.crash.kill_driver --seed 1 --kills 2000``. A fork is killed with SIGKILL at a random time, or soon
after it has begun to write or to swap; up to five kills hit the same directory. The next run must leave the bytes of an
undisturbed one, as in ``tests.crash.kill``, which makes the logs.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

from tests.crash.kill import MEMORY, MOMENTS, SETTINGS, begun, contents, difference, write_logs
from tests.crash.surroundings import run

#: a run of six logs takes about a third of a second; it is killed at most this long after it has begun to write or to swap
_SOON_S = (0.001, 0.01, 0.1)


def fork(log_dir: Path) -> int:
    """Fork a process that runs the job; returns its id."""
    with warnings.catch_warnings():
        # the child only runs plain Python
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 70
        try:
            code = run(log_dir, "--set", *SETTINGS).code
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int | None:
    """The exit code of a fork, ``None`` while it runs, negative when it was killed."""
    found, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def kill_once(log_dir: Path, rng: random.Random, run_seconds: float) -> str:
    """Start a run and kill it; returns the phase, empty if the run finished first."""
    moment = rng.choice(MOMENTS)
    delay = rng.uniform(0, run_seconds if moment == "any" else rng.choice(_SOON_S))
    child = fork(log_dir)
    while moment != "any" and not begun(log_dir, moment):
        if ended(child) is not None:
            return ""
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return moment if os.waitstatus_to_exitcode(status) < 0 else ""


def run_kills(seed: int, kills: int, seconds: float = math.inf) -> Counter[str]:
    """Kill ``kills`` runs, fewer if the time is up; returns the kills by phase. Raises at the first difference."""
    rng, done, deadline = random.Random(seed), Counter[str](), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="kills-", dir=MEMORY if MEMORY.is_dir() else None) as directory:
        place = Path(directory)
        write_logs(place / "template")
        # the first run loads everything; the second is measured
        for name in ("first", "undisturbed"):
            shutil.copytree(place / "template", place / name)
            began = time.monotonic()
            assert run(place / name, "--set", *SETTINGS).code == 0
            run_seconds = time.monotonic() - began
        expected = contents(place / "undisturbed")
        while done.total() < kills and time.monotonic() < deadline:
            log_dir = place / "logs"
            shutil.copytree(place / "template", log_dir)
            killed = [kill_once(log_dir, rng, run_seconds) for _ in range(5)]
            done.update(moment for moment in killed if moment)
            ended_with = run(log_dir, "--set", *SETTINGS)
            if ended_with.code or contents(log_dir) != expected:
                raise AssertionError(f"after {killed}: {ended_with.err}; {difference(contents(log_dir), expected)}")
            shutil.rmtree(log_dir)
    return done


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing more after so long")
    options = parser.parse_args()
    done = run_kills(options.seed, options.kills, options.seconds)
    print(f"seed {options.seed}: {done.total()} kills ({dict(done)}), nothing lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
