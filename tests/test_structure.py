"""Rules of the tree that neither ruff nor import-linter checks."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_each_package_has_a_docstring() -> None:
    packages = {path: ast.get_docstring(ast.parse(path.read_text())) for path in (ROOT / "compaction").rglob("__init__.py")}
    assert [str(path) for path, docstring in packages.items() if not docstring] == []


def test_a_module_of_the_spark_package_imports_pyspark() -> None:
    """What needs no Spark belongs below, where tests can run it without."""
    strangers = []
    for module in (ROOT / "compaction" / "spark").glob("[!_]*.py"):
        nodes = list(ast.walk(ast.parse(module.read_text())))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        if not any(name.partition(".")[0] == "pyspark" for name in names):
            strangers.append(module.name)
    assert strangers == []
