"""``python -m tools.benchmark.many_logs``: the driver with 30,000 logs of 200,000 small segments in one log directory.

Prints the seconds, the peak memory of the driver and of the largest worker, and the open files of complete processes, for each
command. No log has anything to clean, except in the run named so. ``RLIMIT_NOFILE`` is lowered to ``--open-files``.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.log.logs import NOW_MS
from tests.log.many_logs import write_many_logs
from tools.benchmark.machine import machine
from tools.benchmark.processes import ROOT, SUBMIT

_EVERY_S = 0.05
_DAY_MS = 86_400_000
_CONSOLE = (sys.executable, "-m", "compaction")


@dataclass
class Process:
    """A complete run: its seconds, and of the driver and of its largest child the peak memory and the most open files."""

    seconds: float = 0.0
    driver_mib: float = 0.0
    driver_files: int = 0
    child_mib: float = 0.0
    child_files: int = 0


def timed(command: Sequence[str | Path], open_files: int) -> Process:
    """Runs a command.

    :raises SystemExit: it failed
    """
    measured, ended = Process(), threading.Event()
    started = time.monotonic()
    # Spark's scripts use the first python on the path
    path = os.pathsep.join((str(SUBMIT.parent), os.environ["PATH"]))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    process = subprocess.Popen(
        list(map(str, command)), cwd=ROOT, env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, min(limit[1], open_files))),  # noqa: PLW1509
    )  # fmt: skip
    sampler = threading.Thread(target=_sample, args=(process.pid, measured, ended), daemon=True)
    sampler.start()
    _, errors = process.communicate()
    measured.seconds = time.monotonic() - started
    ended.set()
    sampler.join()
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}: {errors[-2000:]}")
    return measured


def _sample(pid: int, measured: Process, ended: threading.Event) -> None:
    while not ended.wait(_EVERY_S):
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            for each in [root, *root.children(recursive=True)]:
                with suppress(psutil.Error):
                    mib, files = each.memory_info().rss / (1 << 20), each.num_fds()
                    if each.pid == pid:
                        measured.driver_mib = max(measured.driver_mib, mib)
                        measured.driver_files = max(measured.driver_files, files)
                    else:
                        measured.child_mib = max(measured.child_mib, mib)
                        measured.child_files = max(measured.child_files, files)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.many_logs", description=__doc__)
    parser.add_argument("--logs", type=int, default=30_000)
    parser.add_argument("--segments", type=int, default=200_000)
    parser.add_argument("--dirty", type=int, default=300, help="logs that have never been cleaned, in one of the runs")
    parser.add_argument("--open-files", type=int, default=1024, help="RLIMIT_NOFILE (default: %(default)s)")
    parser.add_argument("--work", type=Path, default=Path("/dev/shm"), help="where the logs go meanwhile")  # noqa: S108
    parser.add_argument("--runs", default="", help="comma-separated, of the first column (default: all)")
    parser.add_argument("--spark", action="store_true", help="also by spark-submit")
    options = parser.parse_args()
    now_ms = str(NOW_MS + _DAY_MS)
    with tempfile.TemporaryDirectory(prefix="many-logs-", dir=options.work) as work:
        log_dir = Path(work) / "logs"
        begun = time.monotonic()
        write_many_logs(log_dir, options.logs, options.segments, dirty=options.dirty)
        print(f"{options.segments} segments in {options.logs} logs, written in {time.monotonic() - begun:.0f} s")
        common: list[str | Path] = ["--log-dir", log_dir, "--as-of-ms", now_ms, "--set", "cleanup.policy=compact"]
        local: list[str | Path] = [*_CONSOLE, "compact", "--engine", "local", *common]
        runs: dict[str, Sequence[str | Path]] = {
            "doctor": [*_CONSOLE, "doctor", "--log-dir", log_dir],
            "compact --topic": [*local, "--topic", "topic-00001"],
            "dry-run": [*_CONSOLE, "dry-run", "--engine", "local", *common],
            "expire": [*_CONSOLE, "expire", "--engine", "local", *common[:4], "--set", "cleanup.policy=delete"],
            f"compact {options.dirty} dirty": local,
            "compact none dirty": local,
        }
        if options.spark:
            runs["compact by spark-submit"] = [SUBMIT, "jobs/compact.py", *common]
        print("| run | s | driver, MiB | driver, open files | worker, MiB | worker, open files |\n|" + " --- |" * 6)
        for name, command in runs.items():
            if options.runs and name not in options.runs.split(","):
                continue
            run = timed(command, options.open_files)
            cells = f"{run.driver_mib:.0f} | {run.driver_files} | {run.child_mib:.0f} | {run.child_files}"
            print(f"| {name} | {run.seconds:.1f} | {cells} |", flush=True)
    print(f"\nRLIMIT_NOFILE {options.open_files}; {machine()}.")


if __name__ == "__main__":
    main()
