"""A driver and its workers import the installed PySpark, not the zip file of the same modules, and nothing from the working
directory."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.startup.import_path import drop_archives, module_command, use_installed_spark

ROOT = Path(__file__).resolve().parents[2]
#: of this package, of the standard library, and what Python imports by itself
PLANTED = ("compaction", "numpy", "runpy", "json", "sitecustomize", "usercustomize")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An installed Spark."""
    worker = tmp_path / "site" / "pyspark" / "worker.py"
    worker.parent.mkdir(parents=True)
    worker.touch()
    return worker.parent


def set_path(monkeypatch: pytest.MonkeyPatch, home: Path, *more: str) -> list[str]:
    found = [str(home / "python/lib/pyspark.zip"), str(home / "python/lib/py4j-src.zip"), "/user/own.zip", *more]
    monkeypatch.setattr(sys, "path", found)
    return found


def test_a_driver_drops_the_zips_of_its_spark_and_keeps_those_of_the_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_path(monkeypatch, home, str(home.parent))
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setitem(sys.path_importer_cache, str(home / "python/lib/pyspark.zip"), None)
    use_installed_spark()
    assert sys.path == ["/user/own.zip", str(home.parent)]
    assert str(home / "python/lib/pyspark.zip") not in sys.path_importer_cache


@pytest.mark.parametrize("installed", [True, False])
def test_a_driver_of_another_spark_keeps_its_zips(
    home: Path, tmp_path: Path, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "spark"
    other.mkdir()
    before = list(set_path(monkeypatch, other, *([str(home.parent)] if installed else [])))
    monkeypatch.setenv("SPARK_HOME", str(other))
    use_installed_spark()
    assert sys.path == before


def test_a_worker_drops_all_archives_if_pyspark_is_installed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_path(monkeypatch, home, "/spark/jars/some.jar", str(home.parent))
    drop_archives()
    assert sys.path == [str(home.parent)]


def test_a_worker_without_an_installed_pyspark_keeps_them(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = list(set_path(monkeypatch, home))
    drop_archives()
    assert sys.path == before


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A directory with modules that leave a file where they are imported."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'a').write({name!r})")
    return tmp_path


def test_a_module_is_run_from_any_directory_without_importing_what_is_planted_there(planted: Path) -> None:
    command = module_command("compaction", "--version")
    done = subprocess.run(command, cwd=planted, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "kafka-log-compaction"), done.stderr
    assert not (planted / "run").exists()


def test_python_itself_imports_what_is_planted(planted: Path) -> None:
    """Otherwise the test above shows nothing."""
    subprocess.run([sys.executable, "-m", "compaction"], cwd=planted, capture_output=True, check=False)
    assert (planted / "run").read_text() == "compaction"


def lists(package: str) -> Iterator[tuple[Path, list[str]]]:
    """The constants in each list of the modules of a package."""
    for file in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.List | ast.Tuple):
                yield file, [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]


@pytest.mark.parametrize("package", ["compaction", "jobs"])
def test_no_process_is_started_with_a_module_by_name(package: str) -> None:
    assert [file for file, words in lists(package) if "-m" in words] == []
