"""``python -m tools.mutation``: how many small faults, put into the code one at a time, the tests find.

Needs cosmic-ray and pytest-cov (``pip install cosmic-ray pytest-cov``). The operators of the first make the mutants: another
comparison, another number, ``or`` for ``and``, a loop without a turn. Of each place in the code there is one mutant, always the
same, and of these every n-th is tried. The second says which tests run a line. A mutant is put into a copy of the project, and
the tests that run its line are called until one fails: those of its package first, and the quickest of the others. What no test
has found is listed, with the line as it was and as it is.

Lines of kernels are seen by tests without the compiler alone, those of kernels; then a kernel's mutant is compiled for those of
the passes.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import unified_diff
from itertools import takewhile
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ("kernels/retention.py", "kernels/rewrite.py", "kernels/keys.py", "kernels/slot_table.py")
#: packages, or modules of one, whose code is changed
PACKAGES = ("rules", "passes", *KERNELS, "output", "recovery", "certifier", "erasure")
#: kernels are not compiled for these tests, but for the latter
_INTERPRETED = ["tests/kernels/test_retention.py"]
_COMPILED = "tests/passes", "tests/scenarios/test_drawn.py", "tests/policies", "tests/erasure"
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


class Coverage(NamedTuple):
    """The tests that run a line of a module (``""`` at import), and the seconds that each takes."""

    tests: dict[str, dict[int, set[str]]]
    seconds: dict[str, float]
    compiled: bool = True


def main() -> None:
    """Tries the mutants, and prints those that survive and a table."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument("--mutants", type=int, default=430, help="number of mutants (default: %(default)s)")
    parser.add_argument("--only", help="mutants of this package alone")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=25, help="of tests for a mutant (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/mutation.jsonl", help="results, which a next call continues")
    options = parser.parse_args()
    chosen = [mutant for mutant in sample(options.mutants) if options.only in (None, mutant.package)]
    options.out.parent.mkdir(exist_ok=True)
    known = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    results = {Mutant(*each["mutant"]): each for each in known}
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place, ThreadPoolExecutor(options.processes) as pool:
        first = copied(Path(place) / "0")
        runs = [covered(first, options.processes, ["tests"])]
        if any(mutant.package.startswith("kernels") for mutant in chosen):
            runs.append(covered(first, options.processes, _INTERPRETED, compiled=False))
        copies.put(first)
        for number in range(1, options.processes):
            copies.put(shutil.copytree(first, Path(place) / str(number), symlinks=True))

        def tried(mutant: Mutant) -> dict[str, Any]:
            copy = copies.get()
            try:
                return try_mutant(mutant, copy, runs, options.seconds)
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
    found = [mutant for package in PACKAGES for mutant in all_mutants(package)]
    step = max(1, len(found) // count)
    return found[step // 2 :: step]


def all_mutants(package: str) -> Iterator[Mutant]:
    """One mutant of each place in a package's code, but annotations."""
    from cosmic_ray.plugins import get_operator, operator_names
    from parso import parse

    names = sorted(name for name in operator_names() if name.rpartition("/")[2].startswith(_OPERATORS))
    place = ROOT / "compaction" / package
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        code, module = path.read_text("utf-8"), str(path.relative_to(ROOT))
        tree = parse(code)  # type: ignore[no-untyped-call]
        annotated, places, nodes = _annotations(code), dict[Any, list[tuple[str, int]]](), [*_walk(tree)]
        for name in names:
            number, operator = 0, get_operator(name)()
            for node in nodes:
                for start, end in operator.mutation_positions(node):
                    places.setdefault((start, end), []).append((name, number))
                    number += 1
        for (start, _), kinds in sorted(places.items()):
            if not any(first <= start <= last for first, last in annotated):
                name, occurrence = kinds[zlib.crc32(f"{module}{start}".encode()) % len(kinds)]
                yield Mutant(package, module, name, occurrence, start[0])


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
    """A copy of the project, whose tests import the copy's package. Its bytecode is valid while its source is the same."""
    unwanted = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, target, ignore=unwanted, symlinks=True)
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(target / "compaction", quiet=1, invalidation_mode=mode)
    return target


def covered(copy: Path, processes: int, tests: Sequence[str], *, compiled: bool = True) -> Coverage:
    """Runs quick tests of a copy. Those that fail without a mutant are named, and not used."""
    from coverage import CoverageData

    data, junit = copy / ".coverage", copy / "junit.xml"
    distribution = ["-n", str(processes), "--dist", "loadscope"]
    measures = ["--cov=compaction", "--cov-context=test", "--cov-report=", f"--junitxml={junit}"]
    # those start Spark, without its mark
    _pytest(copy, [*distribution, *measures, "--ignore=tests/spark", *tests], None, compiled, {"COVERAGE_FILE": str(data)})
    seconds, failed = dict[str, float](), set[str]()
    for case in ElementTree.parse(junit).iter("testcase"):  # noqa: S314
        module, _, name = case.get("classname", "").partition(".Test")
        test = "::".join([module.replace(".", "/") + ".py", *([f"Test{name}"] if name else []), case.get("name", "")])
        seconds[test] = float(case.get("time", 0))
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(test)
    for test in sorted(failed):
        print(f"{test} fails without a mutant{'' if compiled else ', without a compiler'}: not used", flush=True)
    found, modules = dict[str, dict[int, set[str]]](), dict[str, set[str]]()
    for test in seconds:
        modules.setdefault(test.partition("::")[0], set()).add(test)
    measured = CoverageData(str(data))
    measured.read()
    for path in measured.measured_files():
        lines = found[str(Path(path).relative_to(copy))] = {}
        for line, contexts in measured.contexts_by_lineno(path).items():
            tests_of_line = lines[line] = set[str]()
            for context in contexts:
                test, _, phase = context.rpartition("|")
                # the first test of a module builds what others use
                tests_of_line |= modules.get(test.partition("::")[0], set()) if phase == "setup" else {test}
            tests_of_line -= failed
    return Coverage(found, seconds, compiled)


def try_mutant(mutant: Mutant, copy: Path, runs: Sequence[Coverage], seconds: float) -> dict[str, Any]:
    """Which test found it, if any."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    path, began = copy / mutant.module, time.monotonic()
    before = path.read_text("utf-8")
    after = mutate_code(before, get_operator(mutant.operator)(), mutant.occurrence)
    path.write_text(after, "utf-8")
    by, tried = None, 0
    try:
        for tests, compiled in _calls(mutant, before, runs, seconds):
            tried += len(tests)
            if by := _found_by(copy, tests, seconds, compiled):
                break
    finally:
        path.write_text(before, "utf-8")
    lines = [*unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")][3:]
    return {"mutant": mutant, "by": by, "tests": tried, "seconds": time.monotonic() - began, "change": lines}


def _calls(mutant: Mutant, code: str, runs: Sequence[Coverage], seconds: float) -> Iterator[tuple[list[str], bool]]:
    """Tests that run the mutant's line, and whether kernels are compiled for them."""
    statement, found = _statement(code, mutant.line), False
    for run in reversed(runs):
        lines = run.tests.get(mutant.module, {})
        tests = set[str]().union(*(lines.get(line, ()) for line in statement))
        if tests == {""}:
            # it runs at import alone
            tests = set[str]().union(*lines.values())
        if tests := tests - {""}:
            found = True
            yield _nearest(tests, _home(mutant.package), run.seconds, seconds), run.compiled
    if mutant.package.startswith("kernels"):
        yield [*_COMPILED], True
    elif not found:
        # in another process, if at all
        yield [_home(mutant.package)], True


def _home(package: str) -> str:
    """The directory of a package's tests."""
    return f"tests/{package.partition('/')[0] if package in KERNELS else package}/"


def _statement(code: str, line: int) -> range:
    """The lines of the statement at a line, without its body."""
    found = range(line, line + 1)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, (ast.stmt, ast.excepthandler)) and node.lineno <= line <= (node.end_lineno or 0):
            body = getattr(node, "body", None)
            end = max(node.lineno + 1, body[0].lineno) if body else (node.end_lineno or 0) + 1
            if line < end:
                found = range(node.lineno, end)
    return found


def _nearest(tests: set[str], directory: str, seconds: dict[str, float], limit: float) -> list[str]:
    """Those of the directory, then the quickest, of ``limit`` seconds together; a module's one after the other."""
    total = 0.0

    def fits(test: str) -> bool:
        nonlocal total
        total += seconds.get(test, 1.0)
        return total <= limit

    ranked = sorted(tests, key=lambda test: (not test.startswith(directory), seconds.get(test, 1.0), test))
    chosen = [*takewhile(fits, ranked)] or ranked[:1]
    modules = {test.partition("::")[0]: number for number, test in reversed([*enumerate(chosen)])}
    return sorted(chosen, key=lambda test: modules[test.partition("::")[0]])


def _found_by(copy: Path, tests: Sequence[str], seconds: float, compiled: bool) -> str | None:
    """The first test that fails; all of them, if they do not end."""
    names = copy / "mutant-tests"
    names.write_text("\n".join(tests), "utf-8")
    try:
        done = _pytest(copy, ["-x", f"@{names}"], 60 + 3 * seconds, compiled)
    except subprocess.TimeoutExpired:
        return "time"
    if done.returncode in (0, 5):
        return None
    failed = [line.split(" ", 2)[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0] if failed else f"exit code {done.returncode}"


def _pytest(
    copy: Path, arguments: Sequence[str], seconds: float | None, compiled: bool, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    jit = {} if compiled else {"NUMBA_DISABLE_JIT": "1"}
    path = os.pathsep.join([str(copy), *filter(None, [os.environ.get("PYTHONPATH")])])
    # the first run keeps the bytecode of the tests
    unwritten = {} if more else {"PYTHONDONTWRITEBYTECODE": "1"}
    environment = {**os.environ, "PYTHONPATH": path, **unwritten, **jit, **(more or {})}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", _QUICK, *arguments]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds, check=False)


def report(results: list[dict[str, Any]]) -> None:
    """The survivors, and a row for each package."""
    survivors = [each for each in results if each["by"] is None]
    for each in survivors:
        print(f"\n{Mutant(*each['mutant'])}", *each["change"], sep="\n")
    tried, alive = (Counter(each["mutant"][0] for each in group) for group in (results, survivors))
    print("\n| package | mutants | killed | survived |\n| --- | --- | --- | --- |")
    for package in PACKAGES:
        if tried[package]:
            print(f"| `{package}` | {tried[package]} | {tried[package] - alive[package]} | {alive[package]} |")
    print(f"| all | {len(results)} | {len(results) - len(survivors)} | {len(survivors)} |")


if __name__ == "__main__":
    main()
