"""``python -m tools.benchmark.scaling``: one core and two, and one executor and two, on the same log; what a model needs.

| run | processes |
| --- | --- |
| 1 core | ``local[1]``, all processes of the run pinned to one core |
| 2 cores | ``local[2]``, pinned to two |
| 1 executor | ``local-cluster[1,2,…]``: one executor with two cores |
| 2 executors | ``local-cluster[2,1,…]``: two with one core each, which exchange the map through the network |

``spark-submit jobs/compact.py`` on copies of the log, alternating, from the page cache. Prints the medians of the seconds of
each pass and of the run (from the report, without the start of Spark), the rate of each pass per core, and the efficiency: the
time on one core divided by twice that on two. Meaningful only on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
from pathlib import Path
from typing import NamedTuple

import pyspark

from tools.benchmark.__main__ import _JOB, apart, copied
from tools.benchmark.machine import machine
from tools.benchmark.processes import SUBMIT, output_of
from tools.benchmark.profiles import cases, prepared, say

_EXECUTOR_MIB = 2048
#: run: cores, and the master
_RUNS = {
    "1 core": (1, "local[1]"),
    "2 cores": (2, "local[2]"),
    "1 executor": (2, f"local-cluster[1,2,{_EXECUTOR_MIB}]"),
    "2 executors": (2, f"local-cluster[2,1,{_EXECUTOR_MIB}]"),
}
_PASS = re.compile(r"^(pass \d): .* in ([0-9.]+) s", re.MULTILINE)


class Times(NamedTuple):
    """Seconds."""

    first_pass: float
    second_pass: float
    run: float

    @property
    def driver(self) -> float:
        """What is not a pass: planning, the swap, and the scheduling between passes."""
        return self.run - self.first_pass - self.second_pass


def timed_run(log_dir: Path, report: Path, cores: int, master: str) -> Times:
    """One run on ``cores`` cores."""
    command: list[str | Path] = ["taskset", "-c", ",".join(map(str, range(cores))), SUBMIT, "--master", master]
    command += ["--conf", f"spark.executor.memory={_EXECUTOR_MIB}m"]
    output = output_of(*command, "jobs/compact.py", "--log-dir", log_dir, "--report", report, *_JOB)
    passes = {name: float(seconds) for name, seconds in _PASS.findall(output)}
    return Times(passes["pass 1"], passes["pass 2"], json.loads(report.read_text())["totals"]["seconds"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.scaling", description="One core and two.")
    parser.add_argument("--case", default="a", help="of tools.benchmark (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies sizes and keys")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("build/benchmark"))
    options = parser.parse_args()
    root = options.work.resolve() / f"{options.scale:g}"
    pristine = apart(prepared, cases(options.scale)[options.case], root)
    size_gb = sum(file.stat().st_size for file in pristine.rglob("*.log")) / 1e9
    found: dict[str, list[Times]] = {name: [] for name in _RUNS}
    for _ in range(options.runs):
        for name, (cores, master) in _RUNS.items():
            place = copied(pristine, root / "work")
            found[name].append(timed_run(place, root / "report.json", cores, master))
            say(f"{name}: {found[name][-1]}")
            shutil.rmtree(place)
    medians = {name: Times(*map(statistics.median, zip(*times, strict=True))) for name, times in found.items()}
    print(f"{size_gb:.2f} GB\n\n| run | pass 1, s | pass 2, s | rest, s | run, s | pass 1, GB/s a core | pass 2, GB/s a core |")
    print(f"|{' --- |' * 7}")
    for name, times in medians.items():
        cores = _RUNS[name][0]
        rates = (size_gb / seconds / cores for seconds in times[:2])
        cells = [f"{each:.2f}" for each in (times.first_pass, times.second_pass, times.driver, times.run, *rates)]
        print(f"| {name} | {' | '.join(cells)} |")
    one, two = medians["1 core"], medians["2 cores"]
    passes = [sum(times[:2]) for times in (one, two)]
    print(f"\nefficiency: {one.run / 2 / two.run:.2f} of the run, {passes[0] / 2 / passes[1]:.2f} of both passes")
    print(f"2 executors / 1 executor: {medians['2 executors'].run / medians['1 executor'].run:.2f}")
    print(f"Medians of {options.runs}; {machine()}; Spark {pyspark.__version__}.")


if __name__ == "__main__":
    main()
