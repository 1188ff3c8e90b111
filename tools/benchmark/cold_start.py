"""``python -m tools.benchmark.cold_start``: what starting costs, in complete processes that alternate.

| kind | process |
| --- | --- |
| empty job | ``spark-submit`` of a job with one empty task, with Spark's defaults |
| 10 MB | ``spark-submit jobs/compact.py`` on a log of 10 MB |
| console | ``kafka-log-compaction compact`` on the same log |
| nothing | the same on an empty directory |
| first | the console command on that log when nothing is compiled |
| later | the same, after that run |

Prints the medians of wall time and of the CPU time of all processes of a run, in seconds, and ratios. Meaningful only on an
idle machine, in an environment of ``make install``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.benchmark.generate import Profile, write_log
from tools.benchmark.processes import SUBMIT, Spent, adopt_orphans, timed

_CONSOLE = (sys.executable, "-m", "jobs")
_OPTIONS = ("--as-of-ms", "1798761600000", "--set", "cleanup.policy=compact", "--set", "min.cleanable.dirty.ratio=0")
_EMPTY_JOB = "from pyspark import SparkContext\nsc = SparkContext()\nsc.parallelize([1], 1).count()\nsc.stop()\n"


def kinds(work: Path) -> dict[str, Callable[[], Spent]]:
    """What to time, in this order in each round."""
    (work / "job.py").write_text(_EMPTY_JOB)
    (work / "empty").mkdir()
    write_log(work / "log" / "bench-0", Profile(total_bytes=10 << 20, keys=10_000))

    def log_dir() -> str:
        shutil.rmtree(work / "copy", ignore_errors=True)
        return str(shutil.copytree(work / "log", work / "copy"))

    def first() -> Spent:
        shutil.rmtree(work / "cache", ignore_errors=True)
        return timed(*_CONSOLE, "compact", "--log-dir", log_dir(), *_OPTIONS, environment=cold)

    def later() -> Spent:
        return timed(*_CONSOLE, "compact", "--log-dir", log_dir(), *_OPTIONS, environment=cold)

    cold = {"NUMBA_CACHE_DIR": str(work / "cache")}
    return {
        "empty job": lambda: timed(SUBMIT, work / "job.py", environment={"SPARK_CONF_DIR": str(work / "none")}),
        "10 MB": lambda: timed(SUBMIT, "jobs/compact.py", "--log-dir", log_dir(), *_OPTIONS),
        "console": lambda: timed(*_CONSOLE, "compact", "--log-dir", log_dir(), *_OPTIONS),
        "nothing": lambda: timed(*_CONSOLE, "compact", "--log-dir", work / "empty", "--allow-empty"),
        "first": first,
        "later": later,
    }


def main() -> None:
    """Print the medians and the ratios."""
    parser = argparse.ArgumentParser(description="Time the start of a run.")
    parser.add_argument("--runs", type=int, default=3, help="of each kind (default: 3)")
    parser.add_argument("--kinds", default="", help="comma-separated (default: all)")
    options = parser.parse_args()
    adopt_orphans()
    with tempfile.TemporaryDirectory() as work:
        chosen = {name: run for name, run in kinds(Path(work)).items() if not options.kinds or name in options.kinds.split(",")}
        seconds: dict[str, list[Spent]] = {name: [] for name in chosen}
        for _ in range(options.runs):
            for name, run in chosen.items():
                spent = run()
                seconds[name].append(spent)
                print(f"{name}: {spent.wall_s:.2f} s, CPU {spent.cpu_s:.2f} s", file=sys.stderr, flush=True)
    medians = {name: [statistics.median(values) for values in zip(*found, strict=True)] for name, found in seconds.items()}
    for name, (wall_s, cpu_s, _) in medians.items():
        print(f"{name:<10} {wall_s:6.2f} s, CPU {cpu_s:6.2f} s")
    for above, below in (("10 MB", "empty job"), ("console", "empty job"), ("first", "later")):
        if above in medians and below in medians:
            print(f"{above} / {below}: {medians[above][0] / medians[below][0]:.2f}")
    print(f"on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
