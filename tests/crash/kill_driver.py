"""Kills only the driver, thousands of times: the job without Spark, in forks of a process that has already loaded it.

``python -m tests.crash.kill_driver --seed 1 --kills 2000``. A fork is killed with SIGKILL at a random time, or soon
after it has begun to write or to swap; ``--fixed`` has it killed before certain of its changes, the same ones every time. Up to
five kills hit the same directory. The next run must leave the bytes of an undisturbed one, as in ``tests.crash.kill``, which
makes the logs. With ``--waves`` the runs that are killed, and the next one, clean each of the six logs in a wave of its own;
the next run must not clean again what finished waves have cleaned.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from compaction.formats.checkpoints import parse_offset_checkpoint
from compaction.names import CLEANER_OFFSETS
from compaction.run import waves
from tests.crash.kill import MEMORY, MOMENTS, SETTINGS, begun, contents, difference, write_logs
from tests.crash.stops import StoppingFiles, kill_this_process, run_in_order
from tests.crash.surroundings import forked, run

#: a run of six logs takes about a third of a second; it is killed at most this long after it has begun to write or to swap
_SOON_S = (0.001, 0.01, 0.1)
#: directories with fixed kills, and the changes before which the runs that follow the first killed one are killed
_FIXED, _THEN = 20, (0, 2, 9, 40)

#: starts a run on the directory and kills it; returns the phase, empty if the run finished first
Kill = Callable[[Path], str]


class Undisturbed(NamedTuple):
    """A run that is not killed: its duration, and the number of its changes if it swaps the logs sequentially."""

    seconds: float
    changes: int


def ended(child: int) -> int | None:
    """The exit code of a fork, ``None`` while it runs, negative when it was killed."""
    found, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def kill_once(log_dir: Path, rng: random.Random, run_seconds: float) -> str:
    """Start a run and kill it at a random time."""
    moment = rng.choice(MOMENTS)
    delay = rng.uniform(0, run_seconds if moment == "any" else rng.choice(_SOON_S))
    child = forked(lambda: run(log_dir, "--set", *SETTINGS).code)
    while moment != "any" and not begun(log_dir, moment):
        if ended(child) is not None:
            return ""
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return moment if os.waitstatus_to_exitcode(status) < 0 else ""


def kill_before(log_dir: Path, change: int) -> str:
    """Start a run that is killed before this change."""
    child = forked(lambda: run_in_order(log_dir, StoppingFiles(change, kill_this_process), "--set", *SETTINGS).code)
    _, status = os.waitpid(child, 0)
    return "fixed" if os.waitstatus_to_exitcode(status) < 0 else ""


def random_kills(rng: random.Random, undisturbed: Undisturbed) -> Iterator[Sequence[Kill]]:
    """Five random kills for each directory, without end."""
    while True:
        yield [partial(kill_once, rng=rng, run_seconds=undisturbed.seconds)] * 5


def fixed_kills(undisturbed: Undisturbed) -> Iterator[Sequence[Kill]]:
    """The first kills of the directories are spread over a run."""
    for number in range(_FIXED):
        first = (2 * number + 1) * undisturbed.changes // (2 * _FIXED)
        yield [partial(kill_before, change=change) for change in (first, *_THEN)]


def run_kills(
    chains: Callable[[Undisturbed], Iterable[Sequence[Kill]]], most: float, seconds: float, *, in_waves: bool = False
) -> Counter[str]:
    """Kill runs, chain by chain, each chain on one directory; returns the kills by phase. Raises at the first difference.

    :param most: no further chain begins after so many kills
    :param seconds: nor after so long
    :param in_waves: each log is cleaned in a wave of its own
    """
    done, deadline = Counter[str](), time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="kills-", dir=MEMORY if MEMORY.is_dir() else None) as directory:
        place = Path(directory)
        write_logs(place / "template")
        undisturbed = _undisturbed(place)
        expected, log_dir, report = contents(place / "undisturbed"), place / "logs", place / "report.json"
        for chain in chains(undisturbed):
            shutil.copytree(place / "template", log_dir)
            with patch.object(waves, "_MOST_SEGMENTS", 1 if in_waves else 1 << 16):
                killed = [kill(log_dir) for kill in chain]
                done.update(moment for moment in killed if moment)
                before = finished(log_dir)
                ended_with = run(log_dir, "--report", str(report), "--set", *SETTINGS)
            if ended_with.code or contents(log_dir) != expected:
                raise AssertionError(f"after {killed}: {ended_with.err}; {difference(contents(log_dir), expected)}")
            logs = json.loads(report.read_text())["logs"]
            if again := before & {log["topic"] for log in logs if log["status"] == "cleaned"}:
                raise AssertionError(f"after {killed}: {again} were cleaned again")
            shutil.rmtree(log_dir)
            if done.total() >= most or time.monotonic() >= deadline:
                break
    return done


def finished(log_dir: Path) -> set[str]:
    """The topics whose cleaner checkpoint is that of a finished swap."""
    file = log_dir / CLEANER_OFFSETS
    offsets = parse_offset_checkpoint(file.read_text(), str(file)) if file.exists() else {}
    return {name.topic for name in offsets}


def _undisturbed(place: Path) -> Undisturbed:
    # the first run loads everything; the second is measured
    for name in ("first", "undisturbed"):
        shutil.copytree(place / "template", place / name)
    files = StoppingFiles(None)
    assert run_in_order(place / "first", files, "--set", *SETTINGS).code == 0
    began = time.monotonic()
    assert run(place / "undisturbed", "--set", *SETTINGS).code == 0
    return Undisturbed(time.monotonic() - began, len(files.changes))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing more after so long")
    parser.add_argument("--fixed", action="store_true", help="kill at fixed points, without a seed")
    parser.add_argument("--waves", action="store_true", help="clean each log in a wave of its own")
    options = parser.parse_args(argv)
    chains = fixed_kills if options.fixed else partial(random_kills, random.Random(options.seed))
    done = run_kills(chains, options.kills, options.seconds, in_waves=options.waves)
    print(f"{'fixed' if options.fixed else f'seed {options.seed}'}: {done.total()} kills ({dict(done)}), nothing lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
