"""Which class-data archive is used: that of this Java and Spark, in a place that nobody else may write to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from compaction.startup import archive
from compaction.startup.archive import Versions

STRANGER = 54321
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Versions:
    """A Java and a Spark, chosen by the environment, and an empty cache."""
    java, spark = tmp_path / "jdk/bin/java", tmp_path / "spark"
    for file in (java, tmp_path / "jdk/lib/modules", spark / "jars/core.jar"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("content")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("SPARK_HOME", str(spark))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    versions = archive.versions()
    assert versions == Versions(java, spark)
    return versions


def made(found: Versions) -> Path:
    """An archive for these versions."""
    file = archive.archive_file(found)
    assert file is not None

    def train(environment: Mapping[str, str]) -> None:
        options = environment["SPARK_SUBMIT_OPTS"]
        Path(options.partition("-XX:ArchiveClassesAtExit=")[2].partition('"')[0]).write_text("classes")

    archive.make_archive(file, train)
    return file


def test_it_is_used_once_it_is_made(found: Versions, tmp_path: Path) -> None:
    assert archive.usable_archive() is None
    file = made(found)
    assert archive.usable_archive() == file
    assert file.parent == tmp_path / "cache"
    assert file.stat().st_mode & 0o777 == 0o600
    assert archive.jvm_options(file) == f'"-XX:SharedArchiveFile={file}" -Xlog:cds*=off'


@pytest.mark.parametrize("changed", ["spark/jars/core.jar", "spark/jars/another.jar", "jdk/lib/modules"])
def test_it_fits_only_the_java_and_the_jars_it_was_made_with(found: Versions, tmp_path: Path, changed: str) -> None:
    file = made(found)
    (tmp_path / changed).write_text("other content")
    assert archive.usable_archive() is None
    wanted = archive.archive_file(found)
    assert wanted is not None
    assert wanted != file
    assert found.explain(wanted).startswith("another Java" if "modules" in changed else "other jars")


def test_a_missing_one_is_not_made_yet(found: Versions) -> None:
    file = archive.archive_file(found)
    assert file is not None
    assert found.explain(file) == "not made yet"


def test_one_that_others_can_write_is_not_used(found: Versions) -> None:
    made(found).chmod(0o666)
    assert archive.usable_archive() is None


@ROOT_ONLY
def test_one_of_another_user_is_not_used(found: Versions) -> None:
    os.chown(made(found), STRANGER, STRANGER)
    assert archive.usable_archive() is None


def test_one_in_a_directory_that_others_can_write_is_not_used(
    found: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(found).parent.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert archive.usable_archive() is None


def test_a_link_is_not_used(found: Versions, tmp_path: Path) -> None:
    file = made(found)
    file.rename(tmp_path / "elsewhere.jsa")
    file.symlink_to(tmp_path / "elsewhere.jsa")
    assert archive.usable_archive() is None


def test_without_a_cache_there_is_none(found: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    made(found)
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.devnull)
    assert archive.archive_file(found) is None
    assert archive.usable_archive() is None


@pytest.mark.parametrize("missing", ["jdk/bin/java", "jdk/lib/modules", "spark/jars/core.jar"])
def test_without_a_known_java_and_spark_there_is_none(found: Versions, tmp_path: Path, missing: str) -> None:
    (tmp_path / missing).unlink()
    if missing.startswith("spark"):
        (tmp_path / missing).parent.rmdir()
    assert archive.versions() is None
    assert archive.usable_archive() is None


def test_a_failed_training_leaves_nothing(found: Versions) -> None:
    file = archive.archive_file(found)
    assert file is not None

    def train(_: Mapping[str, str]) -> None:
        raise OSError("no Java")

    with pytest.raises(OSError, match="no Java"):
        archive.make_archive(file, train)
    assert [each.name for each in file.parent.iterdir()] == [file.with_suffix(".lock").name]


def test_a_process_that_waited_for_another_does_not_make_it_again(found: Versions) -> None:
    file = made(found)

    def train(_: Mapping[str, str]) -> None:
        raise AssertionError

    archive.make_archive(file, train)


def test_the_archives_of_older_versions_are_removed(found: Versions, tmp_path: Path) -> None:
    files = []
    for version in range(3):
        (tmp_path / "spark/jars/core.jar").write_text("x" * version)
        files.append(made(found))
        os.utime(files[-1], (version, version))
    assert [file.exists() for file in files] == [False, True, True]
