"""A driver and its workers import the installed PySpark, not the zip file of the same modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from compaction.startup.import_path import drop_archives, use_installed_spark


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
