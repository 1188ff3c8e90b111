"""Spark on machines of all kinds. One lacks something: a directory is full or read-only, the driver may receive little (the
mounts are in a namespace of the process alone). One has several Javas; one has no compiled kernels yet, and a run compiles each
once over all of its processes, the next one none. One has an unprivileged user who tries to fetch what tasks of another one are
sent, to read their files, and to plant modules: each attempt succeeds against Spark's defaults, or the test shows nothing."""

from __future__ import annotations

import collections
import json
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from compaction.startup import version_of
from tests.crash.surroundings import as_nobody
from tests.golden import unpack_sample
from tests.jvm import spark_variables
from tests.kafka.jars import spark_home
from tests.large_log import write_large_log
from tests.processes import ROOT, output_of, started

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Mounted = Callable[[str, Sequence[str], Path], subprocess.CompletedProcess[str]]

AS_OF_MS = 1_798_761_600_000
NAMESPACE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c"]
#: without the second one, all processes of the machine would see it
READ_ONLY_SHM = "mount --bind /dev/shm /dev/shm && mount -o remount,bind,ro /dev/shm && ! touch /dev/shm/file"
#: the working directory may be there
WRITABLE_HERE = 'mount --bind "$PWD" "$PWD" && mount -o remount,bind,rw "$PWD"'
POLICY = "cleanup.policy=compact"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_large_log(tmp_path_factory.mktemp("large"))


@pytest.fixture
def mounted(missing: Callable[[str], None]) -> Mounted:
    """A function that runs a command after mounts."""
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode:
        missing("a mount namespace")
    return lambda mounts, command, place: _run([*NAMESPACE, f"{mounts} && exec {shlex.join(command)}"], place)


def _run(command: Sequence[str], place: Path) -> subprocess.CompletedProcess[str]:
    variables = {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, **spark_variables()}
    return started(command, cwd=place, without=("SPARK_",), **variables, TMPDIR=str(place))


def _compact(log_dir: Path, **settings: str) -> list[str]:
    """The command by ``spark-submit``."""
    options = [f"--conf={name}={value}" for name, value in settings.items()]
    script, arguments = ROOT / "jobs/compact.py", ["--log-dir", str(log_dir), "--output-dir", "copy", "--set", POLICY]
    return [str(spark_home() / "bin/spark-submit"), "--master", "local[2]", *options, str(script), *arguments]


@pytest.mark.parametrize("command", ["compact", "count", "dry-run"])
def test_no_command_writes_to_the_shared_memory_of_the_machine(
    command: str, mounted: Mounted, large: Path, tmp_path: Path
) -> None:
    options = {"compact": ["--set", POLICY, "--output-dir", "copy"], "dry-run": ["--set", POLICY], "count": []}[command]
    call = [sys.executable, "-m", "compaction", command, "--engine", "spark", "--log-dir", str(large), *options]
    done = mounted(f"{READ_ONLY_SHM} && {WRITABLE_HERE}", call, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Read-only" in done.stderr, "the mount is not in force"
    assert "Traceback" not in done.stderr


def test_a_full_local_directory_ends_the_run_with_its_cause(mounted: Mounted, large: Path, tmp_path: Path) -> None:
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


_HOMES = Path("/usr/lib/jvm")


def javas() -> list[Path]:
    """The homes of supported Javas, one for each directory that is no link."""
    homes = [home for home in sorted(_HOMES.glob("*")) if not home.is_symlink() and (home / "bin/java").exists()]
    found = {home: version_of(home / "bin/java") or (0,) for home in homes}
    # of 25, earlier ones are refused
    return [home for home, version in found.items() if version[0] in (17, 21) or version >= (25, 0, 3)]


def files(log_dir: Path) -> dict[str, bytes]:
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in log_dir.rglob("0*.*") if path.is_file()}


def test_every_java_of_this_machine_gives_the_same_bytes(tmp_path: Path) -> None:
    log_dir = unpack_sample(tmp_path)
    rules = ["--as-of-ms", str(AS_OF_MS), "--include-active"]
    submit = [spark_home() / "bin/spark-submit", "--master", "local[2]", ROOT / "jobs/compact.py", "--log-dir", log_dir]
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    outputs = []
    for home in javas():
        outputs.append(tmp_path / home.name)
        output_of([*submit, *rules, "--output-dir", outputs[-1]], JAVA_HOME=str(home), **python)
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
    output_of(
        [sys.executable, "-B", package / "jobs/compact.py", "--log-dir", unpack_sample(tmp_path / name), *options],
        without=("NUMBA", "XDG_CACHE", "SPARK"), HOME=str(tmp_path / "home"), PYTHONPATH=str(tmp_path),
        PYTHONDONTWRITEBYTECODE="1", COMPILED=str(noted),
    )  # fmt: skip
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


SECRET = "3f1c9a70d2b84e5fa6670d19c3e8b524"
_TIMEOUT_S = 2.0
_LARGEST_BYTES = 1 << 20
#: message types of Spark's transport, and of its block transfer
_CHUNK_REQUEST, _CHUNK, _RPC, _RPC_RESPONSE = 0, 1, 3, 4
_OPEN_BLOCKS = 0

#: a run whose tasks hold a secret and shuffle it; it ends with its standard input
RUN = """
import json, sys
sys.path.insert(0, {root!r})
from compaction.engine_choice import ENCRYPTED, start_session
session = start_session("run", ENCRYPTED if {encrypted!r} else {{}})
sc = session.sparkContext
secret = {secret!r}
assert len(sc.parallelize(range(4), 2).map(lambda n: (n, secret)).partitionBy(2).collect()) == 4
print(json.dumps({{"pages": sc.uiWebUrl, "local": sc.getConf().get("spark.local.dir")}}), flush=True)
sys.stdin.read()
"""


@contextmanager
def running(directory: Path, *, encrypted: bool = False, **variables: str) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The addresses at which a run's JVM listens, and what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    program = RUN.format(root=str(ROOT), secret=SECRET, encrypted=encrypted)
    with subprocess.Popen(
        [sys.executable, "-c", program], env={**kept, "TMPDIR": str(directory), **variables}, cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        told: dict[str, Any] = json.loads(process.stdout.readline())
        (jvm,) = (each for each in psutil.Process(process.pid).children(recursive=True) if each.name() == "java")
        sockets = [each.laddr for each in jvm.net_connections("inet") if each.status == psutil.CONN_LISTEN]
        yield [f"{each.ip.removeprefix('::ffff:')}:{each.port}" for each in sockets], told
        process.communicate(timeout=60)
    assert process.returncode == 0


def _text(value: str) -> bytes:
    return struct.pack(">i", len(value)) + value.encode()


def _exchange(connection: socket.socket, kind: int, body: bytes) -> tuple[int, bytes]:
    """Sends a message; returns the type and the body of the answer."""
    connection.sendall(struct.pack(">qb", 9 + len(body), kind) + body)
    stream = connection.makefile("rb")
    size, answer = struct.unpack(">qb", stream.read(9))
    if size > _LARGEST_BYTES:
        raise OSError("another protocol")
    return answer, stream.read(size - 9)


def fetch(port: int, block: str) -> bytes:
    """A block of the process that listens there, asked for as executors ask each other; empty if it is not given."""
    opened = bytes([_OPEN_BLOCKS]) + _text("app") + _text("driver") + struct.pack(">i", 1) + _text(block)
    with suppress(OSError, struct.error), socket.socket() as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(("127.0.0.1", port))
        kind, answer = _exchange(connection, _RPC, struct.pack(">qi", 1, len(opened)) + opened)
        if kind == _RPC_RESPONSE:
            # request id, size, type of the message, then stream and number of chunks
            stream = answer[13:21]
            kind, answer = _exchange(connection, _CHUNK_REQUEST, stream + struct.pack(">i", 0))
            return answer[12:] if kind == _CHUNK else b""
    return b""


def fetch_all(addresses: list[str]) -> bytes:
    """What the first tasks were sent, from whichever port gives it."""
    ports = [int(address.rpartition(":")[2]) for address in addresses]
    return b"".join(fetch(port, f"broadcast_{number}_piece0") for port in ports for number in range(3))


def read_below(directory: Path) -> bytes:
    """All files that can be read there."""
    data = b""
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                data += Path(place, name).read_bytes()
    return data


def leaks(data: bytes) -> bool:
    """Whether a part of the secret is there: LZ4 replaces four characters that have occurred before."""
    return any(SECRET[at : at + 8].encode() in data for at in range(0, len(SECRET), 8))


def test_another_user_can_neither_fetch_what_tasks_are_sent_nor_read_what_they_shuffle(root: None, shared: Path) -> None:
    with running(shared) as (addresses, told):
        assert {address.rpartition(":")[0] for address in addresses} == {"127.0.0.1"}
        assert told["pages"] is None
        assert as_nobody(lambda: fetch_all(addresses)) == b""
        local = Path(told["local"])
        assert local.parent == shared
        assert list(local.rglob("shuffle_*.data"))
        assert leaks(read_below(local))
        assert as_nobody(lambda: read_below(shared)) == b""
    assert not local.exists()


def test_not_even_the_user_finds_keys_in_the_files_of_commands_that_shuffle_them(shared: Path) -> None:
    with running(shared, encrypted=True) as (_, told):
        assert list(Path(told["local"]).rglob("shuffle_*.data"))
        assert not leaks(read_below(shared))


def test_settings_of_the_user_are_kept_and_pages_are_on_loopback(root: None, shared: Path, tmp_path: Path) -> None:
    """Without authentication the attempts succeed. Event logs have nothing of what tasks are sent and shuffle."""
    events = tmp_path / "events"
    for directory in (shared / "place", events):
        directory.mkdir()
    logs = ("eventLog.enabled=true", "eventLog.compress=false", f"eventLog.dir={events}")
    chosen = ("authenticate=false", "ui.enabled=true", *logs)
    options = " ".join([*(f"--conf spark.{each}" for each in chosen), "pyspark-shell"])
    place = str(shared / "place")
    with running(shared, PYSPARK_SUBMIT_ARGS=options, SPARK_LOCAL_DIRS=place) as (addresses, told):
        # an answer may come later than it is waited for
        assert any(leaks(as_nobody(lambda: fetch_all(addresses))) for _ in range(3))
        assert told["pages"] is not None
        assert f"127.0.0.1:{told['pages'].rpartition(':')[2]}" in addresses
        assert leaks(read_below(shared / "place"))
        assert as_nobody(lambda: read_below(shared / "place")) == b""
    assert list((shared / "place").iterdir()) == []
    logged = read_below(events)
    assert b"SparkListenerTaskEnd" in logged
    assert not leaks(logged)


#: what processes of a run import, from this package and from others
PLANTED = ("compaction", "jobs", "numpy", "pyspark", "py4j", "runpy", "json", "struct", "sitecustomize", "usercustomize")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory in which everyone may create files, as in ``/tmp``."""
    # other users must be able to reach it
    for above in (tmp_path, *tmp_path.parents):
        if above != Path("/") and above.stat().st_uid == os.geteuid():
            above.chmod(above.stat().st_mode | 0o011)
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    return directory


@pytest.mark.parametrize("command", ["kafka-log-compaction", "spark-submit"])
def test_modules_that_another_user_has_planted_in_the_working_directory_are_not_run(
    command: str, root: None, shared: Path, tmp_path: Path
) -> None:
    """With an empty cache: all processes of a run are started, those that compile kernels, too."""
    mark = shared / "run"

    def plant() -> bytes:
        for name in PLANTED:
            (shared / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})")
        return b"planted"

    assert as_nobody(plant) == b"planted"
    log_dir = unpack_sample(shared)
    scripts = Path(sys.executable).parent
    what = ["compact", "--engine", "spark"] if command == "kafka-log-compaction" else [ROOT / "jobs/compact.py"]
    start = [scripts / command, *what]
    done = started(
        [*start, "--log-dir", log_dir.name, "--set", "min.cleanable.dirty.ratio=0", "--set", "cleanup.policy=compact"],
        cwd=shared, without=("PYTHON", "PYSPARK", "SPARK"),
        PATH=f"{scripts}{os.pathsep}{os.environ['PATH']}", NUMBA_CACHE_DIR=str(tmp_path / "kernels"),
    )  # fmt: skip
    if sys.version_info < (3, 11):
        assert done.returncode == 2
        assert "Python 3.10 would run modules that others plant" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert "cleaned" in done.stdout
    assert not mark.exists(), mark.read_text()
    subprocess.run([sys.executable, "-m", "compaction"], cwd=shared, capture_output=True, check=False)
    assert mark.read_text() == "compaction"
