"""The tree's own rules: small packages, one name for one thing, and a test for every module."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_MODULES = 12
MODULES = sorted(
    path
    for package in ("compaction", "jobs")
    for path in (ROOT / package).rglob("*.py")
    if not path.name.startswith("__")
)
PACKAGES = sorted({path.parent for path in (ROOT / "compaction").rglob("__init__.py")})
#: how a module's docstring names the tests that cover it when none has its name
TESTED_BY = re.compile(r"Tested by ((?:``tests/[\w/.]+``(?:, | and )?)+)")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("package", PACKAGES, ids=relative)
def test_a_package_has_at_most_a_dozen_modules(package: Path) -> None:
    assert len([path for path in MODULES if path.parent == package]) <= MOST_MODULES


def test_no_module_name_stands_twice_nor_is_a_packages() -> None:
    names = Counter([path.stem for path in MODULES] + [path.name for path in PACKAGES])
    names.update(["jobs"])
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("package", PACKAGES, ids=relative)
def test_a_package_says_what_it_is_for(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
    assert docstring and docstring.endswith(".")


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_a_module_has_a_test_of_its_name_or_says_where_it_is_tested(module: Path) -> None:
    parts = module.relative_to(ROOT).parts
    folder = ROOT.joinpath("tests", *(parts[1:-1] if parts[0] == "compaction" else parts[:-1]))
    if (folder / f"test_{module.stem.lstrip('_')}.py").exists():
        return
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    told = TESTED_BY.search(" ".join(docstring.split()))
    assert told, f"no {relative(folder)}/test_{module.stem}.py, and no docstring that says where {relative(module)} is tested"
    for path in re.findall(r"``(tests/[^`]+)``", told[1]):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("module", [path for path in MODULES if path.parent.name == "spark"], ids=relative)
def test_a_module_of_the_spark_package_imports_pyspark(module: Path) -> None:
    """What needs no Spark belongs below, where tests can run it without."""
    nodes = list(ast.walk(ast.parse(module.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    assert any(name.partition(".")[0] == "pyspark" for name in names)


@pytest.mark.parametrize("module", [path for path in MODULES if path.parent.name == "jobs"], ids=relative)
def test_an_application_imports_the_others_relatively(module: Path) -> None:
    """In a wheel they are in ``compaction.jobs``."""
    assert re.findall(r"^\s*(?:from|import) jobs\b.*", module.read_text(), re.MULTILINE) == []
