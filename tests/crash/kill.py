"""Kills the job at random moments and runs it again: the final state must equal that of an undisturbed run, byte for byte.

``python -m tests.crash.kill --seed 1 --kills 200`` compacts several logs by ``jobs/compact.py`` in separate processes.
During a run up to nine Python workers, and executors if there are any, are killed with SIGKILL, which Spark recovers from. Then
the driver, its JVM, or all processes at once are killed, at a random time of the run or once it has begun to write or to swap.
Up to five runs are killed on the same directory; the next one must finish their work.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from compaction.names import CLEANER_OFFSETS, LOCK
from compaction.output.journal import JOURNAL
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log

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
PATIENCE = ("spark.task.maxFailures=16", "spark.stage.maxConsecutiveAttempts=16", "spark.deploy.maxExecutorRetries=-1")
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

    def to_json(self, seed: int) -> str:
        """One line for the output."""
        found = {"seed": seed, "kills": sum(self.kills.values()), "reruns": self.reruns, "by": dict(self.kills)}
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
    java = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    # workers must start as fast as they are killed
    daemon = "spark.python.daemon.module=compaction.spark.daemon"
    executors = ("spark.executor.memory=512m", f"spark.executor.extraJavaOptions={java}")
    settings = (daemon, "spark.ui.enabled=false", *executors, *PATIENCE)
    options = [f"--master {master} --driver-java-options '{java}'", *(f"--conf '{setting}'" for setting in settings)]
    submit = " ".join([*options, "pyspark-shell"])
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": submit,
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_CONF_DIR": str(scratch),
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


def family(process: subprocess.Popen[bytes]) -> dict[str, list[psutil.Process]]:
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


class Killer:
    """Rounds of kills with random choices from a seed.

    :param run_seconds: the duration of an undisturbed run
    """

    def __init__(self, seed: int, template: Path, expected: Contents, run_seconds: float) -> None:
        self._rng = random.Random(seed)
        self._template, self._expected, self._run_seconds = template, expected, run_seconds
        self._code = 0
        self.tally = Tally()

    def chain(self, kills: int, scratch: Path, master: str) -> None:
        """Kill runs on one copy of the logs, at most ``kills`` and fewer if a run succeeds nevertheless, then let a run
        finish."""
        log_dir = scratch / "logs"
        shutil.copytree(self._template, log_dir)
        killed: list[str] = []
        while len(killed) < kills and (not killed or self._code):
            killed.append(self._kill(log_dir, scratch, master))
        finish(start(log_dir, LOCAL, scratch), scratch)
        self.tally.reruns += 1
        if contents(log_dir) != self._expected:
            raise AssertionError(f"after {killed}: {difference(contents(log_dir), self._expected)}")

    def _kill(self, log_dir: Path, scratch: Path, master: str) -> str:
        """Start one run and kill its processes."""
        moment, last, wait = self._rng.choice(MOMENTS), self._rng.choice(LAST_VICTIMS), self._rng.random() < 0.5
        delay = self._rng.uniform(0, self._run_seconds if moment == "any" else self._rng.choice((0.02, 0.2, 1.0)))
        process = start(log_dir, master, scratch)
        began = time.monotonic()
        due = (lambda: time.monotonic() > began + delay) if moment == "any" else (lambda: begun(log_dir, moment))
        killed = self._kill_tasks(process, "executor" if master == CLUSTER else "worker", due)
        if moment != "any":
            time.sleep(delay)
        members = family(process)
        if last and process.poll() is None:
            killed.append(self._kill_one(members, last, moment))
        self._code = process.wait(_TIMEOUT_S)
        self.tally.exits[self._code] += 1
        everyone = [each for role in members.values() for each in role]
        # half of the time the orphaned workers still run when the next run starts
        _, alive = psutil.wait_procs(everyone, timeout=60 if wait else 0)
        if wait:
            for each in alive:
                each.kill()
        return f"{', '.join(killed)} +{delay:.3f} s"

    def _kill_tasks(self, process: subprocess.Popen[bytes], other: str, due: Callable[[], bool]) -> list[str]:
        """Kill up to nine workers and executors before the driver."""
        killed: list[str] = []
        left = self._rng.randint(0, 9)
        next_at = 0.0
        while process.poll() is None and not due():
            if left and time.monotonic() >= next_at:
                victim = self._rng.choice(("worker", "worker", other))
                members = family(process)
                if members[victim]:
                    killed.append(self._kill_one(members, victim, "any"))
                    left -= 1
                    next_at = time.monotonic() + self._rng.uniform(0, 1)
            time.sleep(0.02 if left else 0.002)
        return killed

    def _kill_one(self, members: dict[str, list[psutil.Process]], victim: str, moment: str) -> str:
        chosen = [each for role in members.values() for each in role]
        if victim != "all":
            chosen = [self._rng.choice(members[victim] or members["driver"])]
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


def run(
    seed: int, kills: int, chain: int = 5, cluster_every: int = 0, seconds: float = math.inf, *, chains: int = 1
) -> Tally:
    """Run at least ``kills`` kills in at least ``chains`` chains; raises at the first difference.

    :param cluster_every: every n-th chain runs on separate executors
    :param seconds: no chain starts later than this, even after fewer kills
    """
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="kills-", dir=MEMORY if MEMORY.is_dir() else None) as directory:
        place = Path(directory)
        write_logs(place / "template")
        first = place / "undisturbed"
        first.mkdir()
        shutil.copytree(place / "template", first / "logs")
        undisturbed = finish(start(first / "logs", LOCAL, first), first)
        killer = Killer(seed, place / "template", contents(first / "logs"), undisturbed)
        number = 0
        while (sum(killer.tally.kills.values()) < kills or number < chains) and time.monotonic() < deadline:
            number += 1
            scratch = place / f"chain-{number}"
            scratch.mkdir()
            master = CLUSTER if cluster_every and number % cluster_every == 0 else LOCAL
            killer.chain(chain, scratch, master)
            print(killer.tally.to_json(seed), flush=True)
            shutil.rmtree(scratch, ignore_errors=True)
        return killer.tally


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--chain", type=int, default=5)
    parser.add_argument("--cluster-every", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further chain after so long")
    options = parser.parse_args()
    run(options.seed, options.kills, options.chain, options.cluster_every, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
