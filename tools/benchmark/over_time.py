"""``python -m tools.benchmark.over_time``: policies through time beside a dry run of one policy, of the same log.

Complete processes of the console command, alternating, in the page cache. Prints the medians, their ratio, and what each
further policy takes.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from pathlib import Path

from tools.benchmark.__main__ import apart, warm
from tools.benchmark.kafka_cleaner import NOW_MS
from tools.benchmark.machine import machine
from tools.benchmark.processes import SUBMIT, adopt_orphans, timed
from tools.benchmark.profiles import cases, prepared, say

#: policies in addition to the first one
_MORE = [f"cleanup.policy=compact,segment.bytes={64 + number}MiB,min.compaction.lag.ms={number}h" for number in range(1, 21)]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.over_time", description=__doc__)
    parser.add_argument("--case", default="a", help="of python -m tools.benchmark (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies sizes and keys")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("build/benchmark"))
    options = parser.parse_args()
    root = options.work.resolve() / f"{options.scale:g}"
    log_dir = apart(prepared, cases(options.scale)[options.case], root)
    adopt_orphans()
    kinds = {"dry run": (), "over time": ("--over-time",), "21 policies": ("--over-time", "--policy", *_MORE)}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    warm(log_dir)
    for _ in range(options.runs + 1):
        for kind, words in kinds.items():
            times[kind].append(seconds(log_dir, *words))
    dry, one, many = (statistics.median(times[kind][1:]) for kind in kinds)
    each_ms = 1000 * (many - one) / len(_MORE)
    say(f"dry run {dry:.2f} s, over time {one:.2f} s, ratio {one / dry:.2f}; a further policy {each_ms:.0f} ms")
    say(f"{times}\n{machine()}")
    shutil.rmtree(log_dir)
    log_dir.with_suffix(".json").unlink()


def seconds(log_dir: Path, *words: str) -> float:
    """The time of a call."""
    call = (SUBMIT.with_name("kafka-log-compaction"), "dry-run", "--engine", "local", "--log-dir", log_dir)
    settings = ("--set", "cleanup.policy=compact", "--as-of-ms", str(NOW_MS))
    return timed(*call, *settings, *words, *(("--policy", "configured") if "--policy" in words else ())).wall_s


if __name__ == "__main__":
    main()
