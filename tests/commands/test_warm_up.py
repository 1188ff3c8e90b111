"""``warm-up`` makes kernels and an archive that the JVM uses, shows them, and changes nothing of the user's."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from compaction.commands import warm_up
from compaction.errors import CompactionError
from compaction.startup import archive, spark_env
from compaction.startup.archive import Versions
from compaction.startup.spark_env import State
from tests.golden import unpack_sample

ROOT = Path(__file__).resolve().parents[2]
FROM_ARCHIVE = "shared objects file (top)"


def run(place: Path, *command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with its own cache and its own Spark."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "NUMBA"))}
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    own = {"SPARK_HOME": str(place / "spark"), "NUMBA_CACHE_DIR": str(place / "cache")}
    return subprocess.run(
        list(map(str, command)),
        env={**kept, **python, **own, **more}, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Spark with the programs of the installed one."""
    made = tmp_path_factory.mktemp("warm-up")
    (made / "spark").mkdir()
    for part in ("bin", "jars", "python"):
        (made / "spark" / part).symlink_to(Path(pyspark.__file__).parent / part)
    return made


def test_nothing_is_made_before_it_is_asked_for(place: Path) -> None:
    done = run(place, sys.executable, "-m", "jobs", "warm-up", "--status")
    assert (done.returncode, done.stderr) == (1, "")
    assert "missing: scan, first_pass" in done.stdout
    assert "not made yet" in done.stdout
    assert "not written: run warm-up --spark-submit" in done.stdout
    assert not list((place / "cache").glob("*.jsa"))
    assert not (place / "spark/conf").exists()


def compact(place: Path, logs: Path) -> tuple[str, str]:
    """What ``spark-submit`` says, and the classes that its JVM loaded."""
    done = run(
        place, place / "spark/bin/spark-submit", "jobs/compact.py", "--log-dir", unpack_sample(logs), "--include-active",
        SPARK_SUBMIT_OPTS=f"-Xlog:class+load:file={logs / 'classes.txt'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, (logs / "classes.txt").read_text()


@pytest.mark.spark
@pytest.mark.slow
def test_spark_submit_uses_the_archive_and_falls_back_silently(place: Path, tmp_path: Path) -> None:
    done = run(place, sys.executable, "-m", "jobs", "warm-up", "--spark-submit")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all compiled" in done.stdout
    assert "; fits" in done.stdout
    assert done.stdout.rstrip().endswith("spark-env.sh: written")
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
    text, classes = compact(place, tmp_path / "first")
    assert classes.count(FROM_ARCHIVE) > 5_000
    assert "archive" not in text
    # settings of the user apply; the JVM has files on its class path then
    defaults = place / "spark/conf/spark-defaults.conf"
    defaults.write_text("spark.driver.extraJavaOptions -Dasked=1\n")
    text, classes = compact(place, tmp_path / "second")
    assert FROM_ARCHIVE not in classes
    assert "archive" not in text
    defaults.unlink()
    # an archive of another Java
    (file,) = (place / "cache").glob("*.jsa")
    file.write_bytes(random.Random(1).randbytes(4096))
    text, classes = compact(place, tmp_path / "third")
    assert FROM_ARCHIVE not in classes
    assert "archive" not in text


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Versions:
    """A Java and a Spark whose archive cannot be made, and an empty cache."""
    spark_submit = tmp_path / "spark/bin/spark-submit"
    for file in (tmp_path / "jdk/bin/java", tmp_path / "jdk/lib/modules", tmp_path / "spark/jars/a.jar", spark_submit):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\necho no memory >&2; exit 1\n")
        file.chmod(0o755)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(warm_up, "_compile_kernels", lambda: None)
    found = archive.versions()
    assert found is not None
    return found


def test_a_failed_training_is_one_line(versions: Versions, capsys: pytest.CaptureFixture[str]) -> None:
    assert warm_up.main([]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the class-data archive could not be made")
    assert "no memory" in line
    assert archive.usable_archive() is None


def test_a_spark_that_cannot_be_written_is_one_line(
    versions: Versions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(archive, "make_archive", lambda file, train: None)
    (versions.spark_home / "conf").write_text("a file")
    assert warm_up.main(["--spark-submit"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(versions.spark_home / "conf") in line


def test_what_was_written_for_another_version_is_replaced(versions: Versions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "make_archive", lambda file, train: file.touch(mode=0o600))
    file = archive.archive_file(versions)
    assert file is not None
    warm_up.warm_up(spark_submit=False)
    assert spark_env.state(versions, file) is State.MISSING
    spark_env.write(versions, file.with_name("old.jsa"))
    file.unlink()
    warm_up.warm_up(spark_submit=False)
    assert spark_env.state(versions, file) is State.WRITTEN


def test_without_a_cache_there_is_no_archive(
    versions: Versions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", os.devnull)
    assert warm_up.main([]) == 1
    assert "set NUMBA_CACHE_DIR" in capsys.readouterr().err


class TestLater:
    @pytest.fixture
    def started(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """The commands that are started."""
        found: list[list[str]] = []
        monkeypatch.setattr("compaction.commands.warm_up.subprocess.Popen", lambda command, **_: found.append(command))
        return found

    def test_a_missing_archive_is_made_by_another_process(self, versions: Versions, started: list[list[str]]) -> None:
        warm_up.warm_up_later()
        assert [command[-2:] for command in started] == [["compaction", "warm-up"]]

    def test_a_present_one_is_not(self, versions: Versions, started: list[list[str]]) -> None:
        file = archive.archive_file(versions)
        assert file is not None
        file.touch(mode=0o600)
        warm_up.warm_up_later()
        assert started == []

    def test_settings_of_the_user_for_spark_exclude_it(
        self, versions: Versions, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
        warm_up.warm_up_later()
        assert started == []

    def test_one_that_could_not_be_made_is_tried_again_the_next_day(
        self, versions: Versions, started: list[list[str]]
    ) -> None:
        def train(_: object) -> None:
            raise CompactionError("no memory")

        file = archive.archive_file(versions)
        assert file is not None
        with pytest.raises(CompactionError):
            archive.make_archive(file, train)
        warm_up.warm_up_later()
        assert started == []
        os.utime(file.with_suffix(".lock"), (0, 0))
        warm_up.warm_up_later()
        assert len(started) == 1


def test_an_empty_directory_starts_no_spark(tmp_path: Path) -> None:
    program = (
        "import sys; from compaction.cli.console import main;"
        "code = main(['compact', '--allow-empty', '--log-dir', sys.argv[1]]);"
        "print(code, sorted({'pyspark', 'py4j', 'pyarrow', 'rich.progress'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
