"""``python -m tools.benchmark.against CHECKOUT``: this version beside another one, in turns, each in a warm process of its own.

A run of one version follows a run of the other at once, so that a machine whose speed changes does so for both. Prints medians
and the least of the seconds and of the driver's processor time, and their ratios. The first run of each is not counted; its
results are compared. The other version is called by its own benchmark.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from tools.benchmark.__main__ import apart, copied
from tools.benchmark.machine import machine
from tools.benchmark.outputs import compare
from tools.benchmark.processes import ROOT
from tools.benchmark.profiles import Case, cases, prepared, say

#: reads log directories, one in a line; answers with the seconds of a run and the processor time of its driver
_SERVE = """
import os, sys, time
from importlib import import_module
from pathlib import Path
# versions before 0.9 have it among the tests
benchmark = import_module(("tools" if Path("tools").is_dir() else "tests") + ".benchmark.__main__")
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
case, sides = benchmark.cases(float(sys.argv[2]))[sys.argv[1]], benchmark.Sides(Path(sys.argv[3]), with_kafka=False)
for line in sys.stdin:
    begun = time.process_time()
    seconds = sides._ours(case, Path(line.strip()))
    print(seconds, time.process_time() - begun, file=answers, flush=True)
sides.close()
"""


class Version:
    """A process of one version; ``seconds`` and ``processor_s`` of its runs."""

    def __init__(self, name: str, checkout: Path, case: Case, scale: float, work: Path) -> None:
        self.name, self.place = name, work / name
        self.seconds: list[float] = []
        self.processor_s: list[float] = []
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, case.name, str(scale), str(work / "sides")],
            cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, pristine: Path) -> None:
        """Clean a copy in ``place``."""
        pipe, answers = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answers is not None
        print(copied(pristine, self.place), file=pipe, flush=True)
        answer = answers.readline().split()
        if not answer:
            raise SystemExit(f"{self.name}: the run failed")
        self.seconds.append(float(answer[0]))
        self.processor_s.append(float(answer[1]))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measure(case: Case, scale: float, runs: int, other: Path, root: Path) -> str:
    """One row of the table."""
    pristine, work = apart(prepared, case, root), root / "against"
    shutil.rmtree(work, ignore_errors=True)
    versions = [Version("other", other, case, scale, work), Version("this", ROOT, case, scale, work)]
    outputs = ""
    for number in range(runs + 1):
        for each in versions if number % 2 == 0 else versions[::-1]:
            each.run(pristine)
        if number == 0:
            left, right = (each.place for each in versions)
            outputs = apart(compare, left, right, compressed=case.profile.codec != 0)
        say(f"{case.name} {number}: " + ", ".join(f"{each.name} {each.seconds[-1]:.2f} s" for each in versions))
    for each in versions:
        each.close()
    shutil.rmtree(work)
    cells = [case.name, case.title]
    for figures in ([each.seconds[1:] for each in versions], [each.processor_s[1:] for each in versions]):
        for theirs, ours in (map(statistics.median, figures), map(min, figures)):
            cells.append(f"{theirs:.2f}, {ours:.2f}: {100 * (ours / theirs - 1):+.1f} %")
    return f"| {' | '.join([*cells, outputs])} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.against", description=__doc__)
    parser.add_argument("checkout", type=Path, help="of the other version; its benchmark must have these cases")
    parser.add_argument("--cases", default="a,f,j", help="comma-separated (default: %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies sizes and keys")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--work", type=Path, default=Path("build/benchmark"))
    options = parser.parse_args()
    root, known = options.work.resolve() / f"{options.scale:g}", cases(options.scale)
    rows = []
    for name in options.cases.split(","):
        rows.append(measure(known[name], options.scale, options.runs, options.checkout.resolve(), root))
        shutil.rmtree(root / name)
        (root / name).with_suffix(".json").unlink()
    print("| case | what | s, median | s, least | driver's processor s, median | least | outputs |\n|" + " --- |" * 7)
    print("\n".join(rows))
    print(f"\nOther version, this one: difference. {options.runs} runs in turns; {machine()}.")


if __name__ == "__main__":
    main()
