"""``python -m tests.mutation``: how many small faults, put into the code one at a time, the tests find.

Needs cosmic-ray (``pip install cosmic-ray``), whose operators make the mutants: another comparison, another number, ``or`` for
``and``, a loop without a turn. Of each place in the code there is one mutant, always the same, and of these every n-th is
tried. A mutant is put into a copy of the project, and the tests nearest to its package run until the first failure, then others
that go through it. What no test has found is listed, with the line as it was and as it is.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: packages, or modules of one, and the tests that go through them: the nearest ones, then others
TESTS = {
    "cleaning": (("cleaning", "passes"), ("run", "oracle", "conformance")),
    "passes": (("passes",), ("run", "compare", "commands/test_compact.py")),
    "kernels/rewriting": (("kernels/rewriting",), ("passes", "compare")),
    "kernels/keys": (("kernels/keys",), ("passes", "compare", "simulation/test_arrivals.py")),
    "output": (("output", "trust"), ("run", "commands/test_compact_safety.py", "crash")),
    "recovery": (("recovery", "trust"), ("run", "commands/test_compact.py", "conformance")),
    "certifier": (("certifier",), ("commands/test_verify.py", "run")),
    "erasure": (("erasure",), ("commands/test_erase.py",)),
}
#: with these, ``make test`` has no Spark and no Kafka
_QUICK = "not (spark or kafka or crash or slow or notebook or airflow or browser or cluster or s3 or gs)"
_OPERATORS = ("ReplaceComparison", "ReplaceBinary", "ReplaceUnary", "ReplaceTrue", "ReplaceFalse", "ReplaceAnd", "ReplaceOr",
              "ReplaceBreak", "ReplaceContinue", "NumberReplacer", "AddNot", "ZeroIteration")  # fmt: skip


class Mutant(NamedTuple):
    """``occurrence`` of cosmic-ray's ``operator`` in a module of ``package``, at a line."""

    package: str
    module: str
    operator: str
    occurrence: int
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.operator.rpartition('/')[2]} #{self.occurrence}"


def main() -> None:
    """Tries the mutants, and prints those that survive and a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--mutants", type=int, default=450, help="number of mutants (default: %(default)s)")
    parser.add_argument("--only", help="mutants of this package alone")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=120, help="time limit of one call of the tests: a loop without end")
    parser.add_argument("--out", type=Path, default=ROOT / "build/mutation.jsonl", help="results, which a next call continues")
    options = parser.parse_args()
    chosen = [mutant for mutant in sample(options.mutants) if options.only in (None, mutant.package)]
    options.out.parent.mkdir(exist_ok=True)
    known = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    results = {Mutant(*each["mutant"]): each for each in known}
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, ThreadPoolExecutor(options.processes) as pool:
        for number in range(options.processes):
            copies.put(copied(Path(place) / str(number)))

        packages = sorted({mutant.package for mutant in chosen})
        broken = [f"{tests} ({name})" for name in packages if (tests := found_by(name, Path(place) / "0", options.seconds))]
        if broken:
            parser.error(f"{', '.join(broken)}: fail without a mutant, or take more than {options.seconds:.0f} s")

        def tried(mutant: Mutant) -> dict[str, Any]:
            copy = copies.get()
            try:
                return try_mutant(mutant, copy, options.seconds)
            finally:
                copies.put(copy)

        for result in pool.map(tried, [mutant for mutant in chosen if mutant not in results]):
            mutant = Mutant(*result["mutant"])
            results[mutant] = result
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{mutant}: {result['by'] or 'SURVIVED'}, {result['seconds']:.0f} s", flush=True)
    report([results[mutant] for mutant in chosen])


def sample(count: int) -> list[Mutant]:
    """About ``count`` of all mutants, the same at each call."""
    found = [mutant for package in TESTS for mutant in all_mutants(package)]
    step = max(1, len(found) // count)
    return found[step // 2 :: step]


def all_mutants(package: str) -> Iterator[Mutant]:
    """One mutant of each place in a package's code, but annotations."""
    from cosmic_ray.plugins import get_operator, operator_names
    from parso import parse

    names = sorted(name for name in operator_names() if name.rpartition("/")[2].startswith(_OPERATORS))
    for path in sorted((ROOT / "compaction" / package).rglob("*.py")):
        code, module = path.read_text("utf-8"), str(path.relative_to(ROOT))
        tree = parse(code)  # type: ignore[no-untyped-call]
        annotated, places = _annotations(code), dict[Any, list[tuple[str, int]]]()
        for name in names:
            number = 0
            for node in _walk(tree):
                for start, end in get_operator(name)().mutation_positions(node):
                    places.setdefault((start, end), []).append((name, number))
                    number += 1
        for (start, _), kinds in sorted(places.items()):
            if not any(first <= start <= last for first, last in annotated):
                operator, occurrence = kinds[zlib.crc32(f"{module}{start}".encode()) % len(kinds)]
                yield Mutant(package, module, operator, occurrence, start[0])


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in getattr(node, "children", ()):
        yield from _walk(child)


def _annotations(code: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations and aliases of types are: they have no effect at run time."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            found.append(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(node.returns)
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)) for node in found if node is not None
    ]


def copied(target: Path) -> Path:
    """A copy of the project, whose tests import the copy's package."""
    unwanted = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", "docs")
    shutil.copytree(ROOT, target, ignore=unwanted, symlinks=True)
    return target


def try_mutant(mutant: Mutant, copy: Path, seconds: float) -> dict[str, Any]:
    """Which tests found it, if any."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    path, began = copy / mutant.module, time.monotonic()
    before = path.read_text("utf-8")
    after = mutate_code(before, get_operator(mutant.operator)(), mutant.occurrence)
    path.write_text(after, "utf-8")
    try:
        by = found_by(mutant.package, copy, seconds, path.stem)
    finally:
        path.write_text(before, "utf-8")
    lines = [*unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")][3:]
    return {"mutant": mutant, "by": by, "seconds": time.monotonic() - began, "change": lines}


def found_by(package: str, copy: Path, seconds: float, module: str = "?") -> str | None:
    """The tests of a package that fail, or do not end; those named as the module begin."""
    for number, tests in enumerate(TESTS[package]):
        # a changed kernel is compiled again by each process; without a compiler its loops are Python's
        jit = {"NUMBA_DISABLE_JIT": "1"} if package.startswith("kernels") and number == 0 else {}
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", **jit}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", _QUICK]
        own = [str(path) for each in tests for path in sorted((copy / "tests" / each).rglob(f"test_{module}*.py"))]
        paths = [*own, *(f"tests/{each}" for each in tests)]
        try:
            done = subprocess.run(
                [*command, *paths], cwd=copy, env=environment, capture_output=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{' '.join(tests)} (time)"
        if done.returncode not in (0, 5):
            return " ".join(tests)
    return None


def report(results: list[dict[str, Any]]) -> None:
    """The survivors, and a row for each package."""
    survivors = [each for each in results if each["by"] is None]
    for each in survivors:
        print(f"\n{Mutant(*each['mutant'])}", *each["change"], sep="\n")
    tried, alive = (Counter(each["mutant"][0] for each in group) for group in (results, survivors))
    print("\n| package | mutants | killed | survived |\n| --- | --- | --- | --- |")
    for package in TESTS:
        if tried[package]:
            print(f"| `{package}` | {tried[package]} | {tried[package] - alive[package]} | {alive[package]} |")
    print(f"| all | {len(results)} | {len(results) - len(survivors)} | {len(survivors)} |")


if __name__ == "__main__":
    main()
