"""Kills the job at any moment and runs it again: the final state must equal that of an undisturbed run, byte for byte.

``python -m tests.crash.kill --seed 1 --kills 200`` compacts several logs by ``jobs/compact.py`` in separate processes.
During a run up to nine Python workers, and executors if there are any, are killed with SIGKILL, which Spark recovers from. Then
the driver, its JVM, or all processes at once are killed, at a random time of the run or once it has begun to write or to swap;
in tests always at the same points. Up to five runs are killed on the same directory; the next one must finish their work.

``--driver`` kills only the driver, thousands of times: the job without Spark, in forks of a process that has already loaded it,
at a random time, or soon after it has begun to write or to swap. With ``--fixed`` a fork is killed before certain of its
changes, the same ones every time. With ``--waves`` the runs that are killed, and the next one, clean each of the six logs in a
wave of its own; the next run must not clean again what finished waves have cleaned.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import psutil

from compaction.names import CLEANER_OFFSETS, LOCK
from compaction.output.journal import JOURNAL
from compaction.run import waves
from tests.crash.surroundings import StoppingFiles, cleaned_topics, forked, kill_this_process, run, run_in_order
from tests.damage.valid_logs import NOW_MS, look_at, valid_log, write_log
from tests.jvm import executor_options, spark_variables
from tests.memory import scratch
from tests.trust.checks import difference

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
PATIENCE = {"spark.task.maxFailures": "16", "spark.stage.maxConsecutiveAttempts": "16", "spark.deploy.maxExecutorRetries": "-1"}
LAST_VICTIMS = ("driver", "driver", "jvm", "all", "all", "")
MOMENTS = ("any", "writing", "swapping", "swapping")
#: a run of six logs in a fork takes about a third of a second; it is killed at most this long after a moment
_SOON_S = (0.001, 0.01, 0.1)
#: directories with fixed kills, and the changes before which the runs that follow the first killed one are killed
_FIXED, _THEN = 20, (0, 2, 9, 40)
_TIMEOUT_S = 300


def contents(log_dir: Path) -> dict[str, object]:
    """All files of a log directory but the lock: of logs as they are, others by name; checkpoint entries in sorted order."""
    found: dict[str, object] = {}
    for path in log_dir.iterdir():
        if path.is_dir():
            found[path.name] = "a directory"
            found.update({f"{path.name}/{name}": state for name, state in look_at(path).items()})
        elif path.name == CLEANER_OFFSETS:
            found[path.name] = sorted(path.read_bytes().splitlines())
        elif path.name != LOCK:
            found[path.name] = "a file"
    return found


def begun(log_dir: Path, moment: str) -> bool:
    """Whether a run has begun to write, or to swap, judged by its files."""
    signs = {"writing": (".clean",), "swapping": (JOURNAL, ".swap", ".deleted")}[moment]
    return any(sign in each.name for path in log_dir.iterdir() if path.is_dir() for each in path.iterdir() for sign in signs)


class Chains(NamedTuple):
    """How many directories are used: at least ``least``, and more until ``kills`` kills or ``seconds``."""

    kills: float
    least: int = 1
    seconds: float = math.inf


def kill_chains(runs: OnSpark | InForks, chains: Chains) -> Counter[str]:
    """Kill runs, each chain on one directory, until one of it finishes nevertheless; the directory above is for other files.
    Returns the kills by process and moment. Raises at the first difference."""
    done, deadline = Counter[str](), time.monotonic() + chains.seconds
    # a kill loses no write, synced or not: so the file system may be one in memory
    with scratch() as place:
        # many small segments, which make many groups to write and to swap
        for index, kind in enumerate(KINDS):
            write_log(place / f"template/topic{index}-{index}", valid_log(kind, SEGMENTS).files)
        shutil.copytree(place / "template", place / "undisturbed/logs")
        runs.measure(place / "undisturbed/logs")
        expected, number = contents(place / "undisturbed/logs"), 0
        while number < chains.least or (done.total() < chains.kills and time.monotonic() < deadline):
            number += 1
            log_dir = place / f"chain-{number}" / "logs"
            shutil.copytree(place / "template", log_dir)
            killed = list(runs.chain(number, log_dir))
            if problem := runs.finish(log_dir) or difference(expected, contents(log_dir)):
                raise AssertionError(f"after {killed}: {problem}")
            done.update(each for victims in killed for each in victims)
            # of what was killed, orphans may still write
            shutil.rmtree(log_dir.parent, ignore_errors=True)
    return done


# on Spark


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


def start(log_dir: Path, master: str) -> subprocess.Popen[bytes]:
    """Start the job as a user does."""
    settings = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", **executor_options(), **PATIENCE}
    options = [f"--master {master}", *(f"--conf '{name}={value}'" for name, value in settings.items())]
    environment = {
        **os.environ,
        **spark_variables(),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": " ".join([*options, "pyspark-shell"]),
        "SPARK_LOCAL_DIRS": str(log_dir.parent),
    }
    command = [sys.executable, str(ROOT / "jobs/compact.py"), "--log-dir", str(log_dir), "--as-of-ms", str(NOW_MS)]
    with (log_dir.parent / "out").open("ab") as out:
        return subprocess.Popen([*command, "--set", *SETTINGS], env=environment, stdout=out, stderr=out, cwd=log_dir.parent)


class OnSpark:
    """Processes of the job, their JVMs and workers. ``kills`` makes kills of the seconds of an undisturbed run; every
    ``cluster_every``-th chain, of at most ``length``, runs on separate executors."""

    def __init__(self, kills: Callable[[float], Iterator[Kill]], length: int = 5, cluster_every: int = 0) -> None:
        self._draw, self._length, self._cluster_every = kills, length, cluster_every

    def measure(self, log_dir: Path) -> None:
        began = time.monotonic()
        assert not (problem := self.finish(log_dir)), problem
        self._kills = self._draw(time.monotonic() - began)

    def finish(self, log_dir: Path) -> str:
        code = start(log_dir, LOCAL).wait(_TIMEOUT_S)
        return f"exit code {code}: {(log_dir.parent / 'out').read_text(errors='replace')[-3000:]}" if code else ""

    def chain(self, number: int, log_dir: Path) -> Iterator[list[str]]:
        master = CLUSTER if self._cluster_every and number % self._cluster_every == 0 else LOCAL
        for kill in islice(self._kills, self._length):
            killed, code = self._kill(kill, log_dir, master)
            print(f"{kill.moment} +{kill.delay_s:.3f} s: {', '.join(killed)} killed, exit code {code}", flush=True)
            yield killed
            if code == 0:
                return

    def _kill(self, kill: Kill, log_dir: Path, master: str) -> tuple[list[str], int]:
        """Start one run and kill its processes."""
        process, moment = start(log_dir, master), kill.moment
        due_at = time.monotonic() + kill.delay_s
        due = (lambda: time.monotonic() > due_at) if moment == "any" else (lambda: begun(log_dir, moment))
        killed = self._kill_tasks(process, kill.tasks, master == CLUSTER, due)
        if moment != "any":
            time.sleep(kill.delay_s)
        members = family(process)
        if kill.last and process.poll() is None:
            killed.append(self._kill_one(members, kill.last, moment, kill.pick))
        code = process.wait(_TIMEOUT_S)
        everyone = [each for role in members.values() for each in role]
        # otherwise the orphaned workers still run when the next run starts
        _, alive = psutil.wait_procs(everyone, timeout=60 if kill.wait else 0)
        if kill.wait:
            for each in alive:
                each.kill()
        return killed, code

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
        return f"{victim} {moment}"


# in forks


class InForks:
    """The job without Spark, without a JVM and without workers.

    :param rng: chooses when runs are killed; without it they are killed before fixed changes
    :param in_waves: each log is cleaned in a wave of its own
    """

    def __init__(self, rng: random.Random | None, *, in_waves: bool = False) -> None:
        self._rng, self._most_segments = rng, 1 if in_waves else 1 << 16

    def measure(self, log_dir: Path) -> None:
        # the first run loads everything; the second is measured
        first, files = log_dir.with_name("first"), StoppingFiles(None)
        shutil.copytree(log_dir, first)
        assert run_in_order(first, files, "--set", *SETTINGS).code == 0
        began = time.monotonic()
        assert run(log_dir, "--set", *SETTINGS).code == 0
        self._seconds, self._changes = time.monotonic() - began, len(files.changes)

    def finish(self, log_dir: Path) -> str:
        before, report = cleaned_topics(log_dir), log_dir.with_name("report.json")
        with self._waves():
            ended = run(log_dir, "--report", str(report), "--set", *SETTINGS)
        if ended.code:
            return f"exit code {ended.code}: {ended.err}"
        again = before & {log["topic"] for log in json.loads(report.read_text())["logs"] if log["status"] == "cleaned"}
        return f"{again} were cleaned again" if again else ""

    def chain(self, number: int, log_dir: Path) -> Iterator[list[str]]:
        for change in ((2 * number - 1) * self._changes // (2 * _FIXED), *_THEN):
            with self._waves():
                killed = self._kill_before(log_dir, change) if self._rng is None else self._kill_at(log_dir, self._rng)
            if not killed:
                return
            yield [killed]

    def _waves(self) -> Any:
        return patch.object(waves, "_MOST_SEGMENTS", self._most_segments)

    def _kill_at(self, log_dir: Path, rng: random.Random) -> str:
        """Start a run and kill it at a random time; returns its phase, empty if the run finished first."""
        moment = rng.choice(MOMENTS)
        delay = rng.uniform(0, self._seconds if moment == "any" else rng.choice(_SOON_S))
        child = forked(lambda: run(log_dir, "--set", *SETTINGS).code)
        while moment != "any" and not begun(log_dir, moment):
            if os.waitpid(child, os.WNOHANG)[0]:
                return ""
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        return f"driver {moment}" if _was_killed(child) else ""

    def _kill_before(self, log_dir: Path, change: int) -> str:
        """Start a run that is killed before this change."""
        child = forked(lambda: run_in_order(log_dir, StoppingFiles(change, kill_this_process), "--set", *SETTINGS).code)
        return "driver fixed" if _was_killed(child) else ""


def _was_killed(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further chain after so long")
    parser.add_argument("--chain", type=int, default=5, help="kills on one directory, on Spark")
    parser.add_argument("--cluster-every", type=int, default=4, help="each such chain has separate executors")
    parser.add_argument("--driver", action="store_true", help="kill only the driver, without Spark")
    parser.add_argument("--fixed", action="store_true", help="kill the driver at fixed points, without a seed")
    parser.add_argument("--waves", action="store_true", help="let the driver clean each log in a wave of its own")
    options = parser.parse_args()
    rng, chains = random.Random(options.seed), Chains(options.kills, 1, options.seconds)
    runs: OnSpark | InForks = OnSpark(partial(random_kills, rng), options.chain, options.cluster_every)
    if options.driver:
        runs = InForks(None if options.fixed else rng, in_waves=options.waves)
    done = kill_chains(runs, Chains(0, _FIXED) if options.fixed else chains)
    print(f"{'fixed' if options.fixed else f'seed {options.seed}'}: {done.total()} kills ({dict(done)}), nothing lost")


if __name__ == "__main__":
    main()
