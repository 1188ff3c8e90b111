"""Spark on machines of all kinds: one lacks something (a directory is full or read-only, the driver may receive little; the
mounts are in a namespace of the process alone); one has several Javas; one has no compiled kernels yet, and a run compiles each
once over all of its processes, the next one none."""

from __future__ import annotations

import collections
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.golden import unpack_sample
from tests.jvm import spark_variables
from tests.kafka.jars import spark_home
from tests.large_log import write_large_log
from tests.processes import ROOT, started

pytestmark = [pytest.mark.spark, pytest.mark.slow]

AS_OF_MS = 1_798_761_600_000
NAMESPACE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
#: without the second one, all processes of the machine would see it
READ_ONLY_SHM = "mount --bind /dev/shm /dev/shm && mount -o remount,bind,ro /dev/shm && ! touch /dev/shm/file"
POLICY = "cleanup.policy=compact"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large_log(tmp_path_factory.mktemp("large"))


@pytest.fixture
def mounted(missing: Callable[[str], None]) -> Callable[[str, Sequence[str], Path], subprocess.CompletedProcess[str]]:
    """A function that runs a command after mounts."""
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode:
        missing("a mount namespace")
    return lambda mounts, command, place: _run([*NAMESPACE, f"{mounts} && exec {shlex.join(command)}"], place)


def _run(command: Sequence[str], place: Path) -> subprocess.CompletedProcess[str]:
    variables = {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **spark_variables()}
    return started(command, cwd=place, without=("SPARK_",), **variables)


def _compact(log_dir: Path, **settings: str) -> list[str]:
    """The command by ``spark-submit``."""
    options = [f"--conf={name}={value}" for name, value in settings.items()]
    script, arguments = ROOT / "jobs/compact.py", ["--log-dir", str(log_dir), "--output-dir", "copy", "--set", POLICY]
    return [str(spark_home() / "bin/spark-submit"), "--master", "local[2]", *options, str(script), *arguments]


@pytest.mark.parametrize("command", ["compact", "count", "dry-run"])
def test_no_command_writes_to_the_shared_memory_of_the_machine(
    command: str, mounted: Callable[[str, Sequence[str], Path], subprocess.CompletedProcess[str]], large: Path, tmp_path: Path
) -> None:
    options = {"compact": ["--set", POLICY, "--output-dir", "copy"], "dry-run": ["--set", POLICY], "count": []}[command]
    call = [sys.executable, "-m", "compaction", command, "--engine", "spark", "--log-dir", str(large), *options]
    done = mounted(READ_ONLY_SHM, call, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Read-only" in done.stderr, "the mount is not in force"
    assert "Traceback" not in done.stderr


def test_a_full_local_directory_ends_the_run_with_its_cause(
    mounted: Callable[[str, Sequence[str], Path], subprocess.CompletedProcess[str]], large: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    mount = "mount -t tmpfs -o size=16k,mode=700 tmpfs full"
    done = mounted(mount, _compact(large, **{"spark.local.dir": str(tmp_path / "full")}), tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        "error: Spark's job failed: IOException: No space left on device; free space in spark.local.dir, or choose another "
        "directory"
    )
    assert "Traceback" not in done.stderr


_TOO_LARGE = (
    r"Spark's job failed: SparkException: Job aborted due to stage failure: Total size of serialized results of 1 tasks \(.*\) "
    r"is bigger than spark.driver.maxResultSize \(3.0 KiB\); raise spark.driver.maxResultSize"
)
#: the executor has dropped the result, and Spark does not say why
_DROPPED = (
    r"Spark's job failed: TaskResultLost \(result lost from block manager\); an executor was lost, or a result was larger than "
    r"spark.driver.maxResultSize"
)


@pytest.mark.parametrize(("size", "error"), [("3k", _TOO_LARGE), ("1k", _DROPPED)])
def test_results_that_the_driver_may_not_receive_end_the_run_with_their_cause(
    size: str, error: str, large: Path, tmp_path: Path
) -> None:
    done = _run(_compact(large, **{"spark.driver.maxResultSize": size}), tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    # Spark's threads may say something while they end
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert re.fullmatch(f"error: {error}", line), done.stderr[-3000:]
    assert "Traceback" not in done.stderr


#: on a session of the caller, which can be used afterwards
CALL = """
import sys, compaction
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.driver.maxResultSize", sys.argv[2]).getOrCreate()
try:
    compaction.compact(sys.argv[1], output_dir="copy", settings={"cleanup.policy": "compact"}, spark=spark)
except compaction.CompactionError as error:
    print(f"{type(error).__name__}: {error}")
print(spark.sparkContext.parallelize([1, 2, 3], 2).count())
"""


def test_a_callers_session_raises_an_error_of_this_package_and_is_usable(large: Path, tmp_path: Path) -> None:
    done = _run([sys.executable, "-c", CALL, str(large), "3k"], tmp_path)
    raised, count = done.stdout.splitlines()
    assert re.fullmatch(f"CompactionError: {_TOO_LARGE}", raised), raised
    assert (done.returncode, count) == (0, "3")


_HOMES = Path("/usr/lib/jvm")
#: of 25, earlier ones are refused
_SUPPORTED = re.compile(r'version "(17|21|25\.0\.([3-9]|\d\d)|25\.[1-9])')


def javas() -> list[Path]:
    """The homes of supported Javas, one for each directory that is no link."""
    found = []
    for home in sorted(_HOMES.glob("*")):
        if home.is_symlink() or not (home / "bin/java").exists():
            continue
        told = subprocess.run([home / "bin/java", "-version"], capture_output=True, text=True, check=False).stderr
        if _SUPPORTED.search(told):
            found.append(home)
    return found


def files(log_dir: Path) -> dict[str, bytes]:
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in log_dir.rglob("0*.*") if path.is_file()}


def test_every_java_of_this_machine_gives_the_same_bytes(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    rules = ["--as-of-ms", str(AS_OF_MS), "--include-active"]
    submit = [str(spark_home() / "bin/spark-submit"), "--master", "local[2]", str(ROOT / "jobs/compact.py")]
    submit += ["--log-dir", str(log_dir)]
    outputs = []
    for home in javas():
        outputs.append(tmp_path / home.name)
        command = [*submit, *rules, "--output-dir", outputs[-1]]
        done = started(command, JAVA_HOME=str(home), PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable)
        assert done.returncode == 0, done.stderr[-2000:]
    assert outputs
    assert all(files(output) == files(outputs[0]) != {} for output in outputs)


#: loaded by every Python process of a run: notes each kernel that it compiles
LISTENER = """
import os
from numba.core import event
class Listener(event.Listener):
    def on_start(self, what):
        dispatcher = what.data["dispatcher"]
        if type(dispatcher._cache).__name__ == "KernelCache":
            with open(os.environ["COMPILED"], "a") as file:
                file.write(f"{dispatcher.__module__}.{dispatcher.__name__} {what.data['args']}\\n")
    def on_end(self, what):
        pass
event.register("numba:compile", Listener())
"""


def compiled_by_a_run(package: Path, tmp_path: Path, name: str, *options: str) -> collections.Counter[str]:
    """What a run over the sample compiles, and how often."""
    (tmp_path / "sitecustomize.py").write_text(LISTENER)
    noted = tmp_path / f"{name}.txt"
    noted.touch()
    done = started(
        [sys.executable, "-B", package / "jobs/compact.py", "--log-dir", unpack_sample(tmp_path / name), *options],
        without=("NUMBA", "XDG_CACHE", "SPARK"), HOME=str(tmp_path / "home"), PYTHONPATH=str(tmp_path),
        PYTHONDONTWRITEBYTECODE="1", COMPILED=str(noted),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return collections.Counter(noted.read_text().splitlines())


def test_each_kernel_is_compiled_once_and_kept_outside_of_the_package(tmp_path: Path) -> None:
    package = tmp_path / "package"
    for part in ("compaction", "jobs"):
        shutil.copytree(ROOT / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    for directory in [package, *(each for each in package.rglob("*") if each.is_dir())]:
        directory.chmod(0o555)
    before = sorted(package.rglob("*"))
    options = ("--as-of-ms", str(AS_OF_MS), "--include-active", "--engine", "spark")
    first = compiled_by_a_run(package, tmp_path, "first", *options)
    assert any("rewrite.rewrite" in each for each in first)
    assert set(first.values()) == {1}, first
    cached = tmp_path / "home/.cache/kafka-log-compaction/numba"
    assert len(list(cached.rglob("*.kernel"))) == len(first)
    assert not compiled_by_a_run(package, tmp_path, "second", *options)
    assert sorted(package.rglob("*")) == before
