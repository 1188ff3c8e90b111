"""Kills the job at any moment and runs it again: the final state must equal that of an undisturbed run, byte for byte.

``python -m tests.crash.kill --seed 1 --kills 200`` compacts several logs by ``jobs/compact.py`` in separate processes.
During a run up to nine Python workers, and executors if there are any, are killed with SIGKILL, which Spark recovers from. Then
the driver, its JVM, or all processes at once are killed, at a random time of the run or once it has begun to write or to swap;
in tests always at the same points. Up to five runs are killed on the same directory; the next one must finish their work.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from compaction.names import CLEANER_OFFSETS, LOCK
from compaction.output.journal import JOURNAL
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log
from tests.jvm import executor_options, spark_variables

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("none", "zstd", "lz4", "mixed", "transactions", "v1-gzip")
SEGMENTS = 24
SETTINGS = (
    "cleanup.policy=compact",
    "min.cleanable.dirty.ratio=0",
    "internal.segment.bytes=4000",
    "index.interval.bytes=100",
    "file.delete.delay.ms=0",
)
LOCAL, CLUSTER = "local[2,16]", "local-cluster[2,1,1024]"
#: Spark tolerates this many killed tasks and executors
PATIENCE = {
    "spark.task.maxFailures": "16",
    "spark.stage.maxConsecutiveAttempts": "16",
    "spark.deploy.maxExecutorRetries": "-1",
}
LAST_VICTIMS = ("driver", "driver", "jvm", "all", "all", "")
MOMENTS = ("any", "writing", "swapping", "swapping")
#: a kill loses no write, synced or not: so the file system may be one in memory
MEMORY = Path("/dev/shm")
_TIMEOUT_S = 300

Contents = dict[str, dict[str, tuple[bytes, int, int]]]


@dataclass
class Tally:
    """What was killed, when, and how the killed runs ended."""

    kills: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    reruns: int = 0

    def to_json(self) -> str:
        """One line for the output."""
        found = {"kills": self.kills.total(), "reruns": self.reruns, "by": dict(self.kills)}
        return json.dumps({**found, "exits": {str(code): count for code, count in self.exits.items()}})


def write_logs(log_dir: Path) -> None:
    """Six logs of many small segments, which make many groups to write and to swap."""
    for number, kind in enumerate(KINDS):
        write_log(log_dir / f"topic{number}-{number}", valid_log(kind, SEGMENTS).files)


def contents(log_dir: Path) -> Contents:
    """All files of a log directory but the lock; checkpoint entries in sorted order."""
    found = {path.name: look_at(path) for path in sorted(log_dir.iterdir()) if path.is_dir()}
    names = sorted(path.name for path in log_dir.iterdir() if path.is_file() and path.name != LOCK)
    entries = sorted((log_dir / CLEANER_OFFSETS).read_bytes().splitlines()) if CLEANER_OFFSETS in names else []
    return {**found, "files": dict.fromkeys(names, (b"", 0, 0)), "checkpoint": {"": (b"\n".join(entries), 0, 0)}}


def start(log_dir: Path, master: str, scratch: Path) -> subprocess.Popen[bytes]:
    """Start the job as a user does."""
    settings = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", **executor_options(), **PATIENCE}
    options = [f"--master {master}", *(f"--conf '{name}={value}'" for name, value in settings.items())]
    submit = " ".join([*options, "pyspark-shell"])
    environment = {
        **os.environ,
        **spark_variables(),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": submit,
        "SPARK_LOCAL_DIRS": str(scratch),
    }
    command = [sys.executable, str(ROOT / "jobs/compact.py"), "--log-dir", str(log_dir), "--as-of-ms", str(NOW_MS)]
    with (scratch / "out").open("ab") as out:
        return subprocess.Popen([*command, "--set", *SETTINGS], env=environment, stdout=out, stderr=out, cwd=scratch)


def finish(process: subprocess.Popen[bytes], scratch: Path) -> float:
    """Wait for a run that must succeed; returns its duration in seconds."""
    began = time.monotonic()
    code = process.wait(_TIMEOUT_S)
    if code:
        raise AssertionError(f"exit code {code}: {(scratch / 'out').read_text(errors='replace')[-3000:]}")
    return time.monotonic() - began


def family(process: subprocess.Popen[Any]) -> dict[str, list[psutil.Process]]:
    """The processes of a run by role; processes that have ended are skipped."""
    found: dict[str, list[psutil.Process]] = {role: [] for role in ("driver", "worker", "jvm", "executor", "other")}
    with suppress(psutil.NoSuchProcess):
        driver = psutil.Process(process.pid)
        found["driver"].append(driver)
        for each in driver.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                found[_role(each)].append(each)
    return found


def _role(process: psutil.Process) -> str:
    command = process.cmdline()
    if process.name() == "java":
        return "executor" if any("CoarseGrainedExecutorBackend" in word for word in command) else "jvm"
    return "worker" if command[-1:] == ["pyspark.worker"] else "other"


def begun(log_dir: Path, moment: str) -> bool:
    """Whether a run has begun to write, or to swap, judged by its files."""
    signs = {"writing": (".clean",), "swapping": (JOURNAL, ".swap", ".deleted")}[moment]
    return any(sign in each.name for path in log_dir.iterdir() if path.is_dir() for each in path.iterdir() for sign in signs)


class Kill(NamedTuple):
    """How one run is killed: ``last`` (a role, or all processes; empty for none), ``delay_s`` after the run has begun to write
    or to swap (``moment``), or has been started ("any"). Before that ``tasks``, one by one: a role, the seconds to wait before
    it, and which process of that role."""

    moment: str
    last: str
    delay_s: float = 0.0
    tasks: tuple[tuple[str, float, int], ...] = ()
    pick: int = 0
    #: whether orphaned workers may end before the next run starts
    wait: bool = True


def random_kills(rng: random.Random, run_seconds: float) -> Iterator[Kill]:
    """Random kills, without end.

    :param run_seconds: the duration of an undisturbed run
    """
    while True:
        moment = rng.choice(MOMENTS)
        delay = rng.uniform(0, run_seconds if moment == "any" else rng.choice((0.02, 0.2, 1.0)))
        pauses = [0.0, *(rng.uniform(0, 1) for _ in range(8))][: rng.randint(0, 9)]
        tasks = tuple((rng.choice(("worker", "worker", "executor")), pause, rng.randrange(16)) for pause in pauses)
        yield Kill(moment, rng.choice(LAST_VICTIMS), delay, tasks, rng.randrange(16), rng.random() < 0.5)


class Killer:
    """Kills runs on copies of ``template``, which must end as ``expected``."""

    def __init__(self, kills: Iterator[Kill], template: Path, expected: Contents) -> None:
        self._kills, self._template, self._expected = kills, template, expected
        self._code = 0
        self.tally = Tally()

    def chain(self, kills: int, scratch: Path, master: str) -> None:
        """Kill runs on one copy of the logs, at most ``kills`` and fewer if a run succeeds nevertheless, then let a run
        finish."""
        log_dir = scratch / "logs"
        shutil.copytree(self._template, log_dir)
        killed: list[str] = []
        while len(killed) < kills and (not killed or self._code):
            killed.append(self._kill(next(self._kills), log_dir, scratch, master))
        finish(start(log_dir, LOCAL, scratch), scratch)
        self.tally.reruns += 1
        if contents(log_dir) != self._expected:
            raise AssertionError(f"after {killed}: {difference(contents(log_dir), self._expected)}")

    def _kill(self, kill: Kill, log_dir: Path, scratch: Path, master: str) -> str:
        """Start one run and kill its processes."""
        moment, delay = kill.moment, kill.delay_s
        process = start(log_dir, master, scratch)
        began = time.monotonic()
        due = (lambda: time.monotonic() > began + delay) if moment == "any" else (lambda: begun(log_dir, moment))
        killed = self._kill_tasks(process, kill.tasks, master == CLUSTER, due)
        if moment != "any":
            time.sleep(delay)
        members = family(process)
        if kill.last and process.poll() is None:
            killed.append(self._kill_one(members, kill.last, moment, kill.pick))
        self._code = process.wait(_TIMEOUT_S)
        self.tally.exits[self._code] += 1
        everyone = [each for role in members.values() for each in role]
        # otherwise the orphaned workers still run when the next run starts
        _, alive = psutil.wait_procs(everyone, timeout=60 if kill.wait else 0)
        if kill.wait:
            for each in alive:
                each.kill()
        return f"{', '.join(killed)} +{delay:.3f} s"

    def _kill_tasks(
        self, process: subprocess.Popen[bytes], tasks: Sequence[tuple[str, float, int]], cluster: bool, due: Callable[[], bool]
    ) -> list[str]:
        """Kill workers and executors before the driver."""
        killed: list[str] = []
        left, last_at = list(tasks), -math.inf
        while process.poll() is None and not due():
            if left and time.monotonic() >= last_at + left[0][1]:
                victim = left[0][0] if cluster else "worker"
                members = family(process)
                if members[victim]:
                    killed.append(self._kill_one(members, victim, "any", left.pop(0)[2]))
                    last_at = time.monotonic()
            time.sleep(0.02 if left else 0.002)
        return killed

    def _kill_one(self, members: dict[str, list[psutil.Process]], victim: str, moment: str, pick: int) -> str:
        chosen = [each for role in members.values() for each in role]
        if victim != "all":
            some = members[victim] or members["driver"]
            chosen = [some[pick % len(some)]]
        for each in chosen:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.tally.kills[f"{victim} {moment}"] += 1
        return f"{victim} {moment}"


def difference(found: Contents, expected: Contents) -> str:
    """The first file that differs."""
    for directory in sorted({*found, *expected}):
        ours, theirs = found.get(directory, {}), expected.get(directory, {})
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                return f"{directory}/{name}: {str(ours.get(name))[:300]}, expected {str(theirs.get(name))[:300]}"
    return "nothing"


class Chains(NamedTuple):
    """How far a run goes: at least ``kills`` kills in at least ``least`` chains of at most ``length`` each. Every
    ``cluster_every``-th chain runs on separate executors. After ``seconds`` no more chains begin than ``least``."""

    kills: int
    least: int = 1
    length: int = 5
    cluster_every: int = 0
    seconds: float = math.inf


def run(kills: Callable[[float], Iterator[Kill]], chains: Chains) -> Tally:
    """Run chains of kills; raises at the first difference.

    :param kills: the kills, given the seconds of an undisturbed run
    """
    deadline = time.monotonic() + chains.seconds
    with tempfile.TemporaryDirectory(prefix="kills-", dir=MEMORY if MEMORY.is_dir() else None) as directory:
        place = Path(directory)
        write_logs(place / "template")
        first = place / "undisturbed"
        first.mkdir()
        shutil.copytree(place / "template", first / "logs")
        undisturbed = finish(start(first / "logs", LOCAL, first), first)
        killer = Killer(kills(undisturbed), place / "template", contents(first / "logs"))
        number = 0
        while number < chains.least or (killer.tally.kills.total() < chains.kills and time.monotonic() < deadline):
            number += 1
            scratch = place / f"chain-{number}"
            scratch.mkdir()
            killer.chain(chains.length, scratch, _master(number, chains.cluster_every))
            print(killer.tally.to_json(), flush=True)
            shutil.rmtree(scratch, ignore_errors=True)
        return killer.tally


def _master(number: int, cluster_every: int) -> str:
    return CLUSTER if cluster_every and number % cluster_every == 0 else LOCAL


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--chain", type=int, default=5)
    parser.add_argument("--cluster-every", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further chain after so long")
    options = parser.parse_args(argv)
    chains = Chains(options.kills, 1, options.chain, options.cluster_every, options.seconds)
    run(partial(random_kills, random.Random(options.seed)), chains)
    return 0


if __name__ == "__main__":
    sys.exit(main())
