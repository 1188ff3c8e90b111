"""What an unprivileged user of the machine tries against a run of another user: fetch what its tasks are sent, read its files,
plant modules where it is started. Each attempt succeeds against Spark's defaults, or the test shows nothing."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.crash.surroundings import as_nobody
from tests.golden import unpack_sample
from tests.processes import ROOT, started

SECRET = "3f1c9a70d2b84e5fa6670d19c3e8b524"
_TIMEOUT_S = 2.0
_LARGEST_BYTES = 1 << 20
#: message types of Spark's transport, and of its block transfer
_CHUNK_REQUEST, _CHUNK, _RPC, _RPC_RESPONSE = 0, 1, 3, 4
_OPEN_BLOCKS = 0

pytestmark = [pytest.mark.spark, pytest.mark.slow]

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
def run(directory: Path, *, encrypted: bool = False, **variables: str) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The addresses at which a run's JVM listens, and what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    program = RUN.format(root=str(ROOT), secret=SECRET, encrypted=encrypted)
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**kept, "TMPDIR": str(directory), **variables},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
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
    with run(shared) as (addresses, told):
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
    with run(shared, encrypted=True) as (_, told):
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
    with run(shared, PYSPARK_SUBMIT_ARGS=options, SPARK_LOCAL_DIRS=place) as (addresses, told):
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
