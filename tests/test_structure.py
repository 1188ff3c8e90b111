"""The tree's own rules: small packages, one name for one thing, and a test for every module."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_MODULES = 12
MODULES = sorted(
    path
    for path in (ROOT / "compaction").rglob("*.py")
    if not path.name.startswith("__")
)
PACKAGES = sorted({path.parent for path in (ROOT / "compaction").rglob("__init__.py")})
#: how a module's docstring names the tests that cover it when none has its name
TESTED_BY = re.compile(r"Tested by ((?:``tests/[\w/.]+``(?:, | and )?)+)")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def docstring(path: Path) -> str:
    return " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())


def test_a_package_has_at_most_a_dozen_modules_and_says_what_it_is_for() -> None:
    sizes = Counter(path.parent for path in MODULES)
    assert [relative(package) for package in PACKAGES if sizes[package] > MOST_MODULES] == []
    assert [relative(package) for package in PACKAGES if not docstring(package / "__init__.py").endswith(".")] == []


def test_no_module_name_stands_twice_nor_is_a_packages() -> None:
    names = Counter([path.stem for path in MODULES] + [path.name for path in PACKAGES])
    names.update(["jobs"])
    assert [name for name, count in names.items() if count > 1] == []


def test_a_module_has_a_test_of_its_name_or_says_where_it_is_tested() -> None:
    untested = []
    for module in MODULES:
        parts = module.relative_to(ROOT).parts
        folder = ROOT.joinpath("tests", *parts[1:-1])
        if (folder / f"test_{module.stem}.py").exists():
            continue
        told = TESTED_BY.search(docstring(module))
        if not told or not all((ROOT / path).exists() for path in re.findall(r"``(tests/[^`]+)``", told[1])):
            untested.append(relative(module))
    assert untested == []


def test_a_module_of_the_spark_package_imports_pyspark() -> None:
    """What needs no Spark belongs below, where tests can run it without."""
    strangers = []
    for module in (path for path in MODULES if path.parent.name == "spark"):
        nodes = list(ast.walk(ast.parse(module.read_text())))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        if not any(name.partition(".")[0] == "pyspark" for name in names):
            strangers.append(relative(module))
    assert strangers == []
