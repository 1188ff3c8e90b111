"""Starts Spark's JVM, relays its standard error, and creates private directories for the temporary files of a session.

Spark's default directories can be read by everyone and remain if a run is killed; they contain shuffled data, which for some
commands includes complete keys. Spark is therefore given directories that nobody else may enter; this package's own files are
in such directories, too. A lock shows that the run has not ended. The next run of the same user removes directories that
nobody has locked. It does not touch links, directories of others, and parents in which others could have renamed directories
of this user.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

from compaction import startup as protection
from compaction.kernels.ownership import why_not_private
from compaction.screen.steps import FOREIGN

_PREFIX = "kafka-log-compaction-local-"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def private_dirs(parents: str) -> str:
    """New private directories, one in each of ``parents``; both are separated by commas, as in ``spark.local.dir``.

    They are removed when this process ends.

    :raises OSError: one cannot be created
    """
    return ",".join(_private_dir(Path(parent.strip()).absolute()) for parent in parents.split(","))


def _private_dir(parent: Path) -> str:
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent)
    new = Path(tempfile.mkdtemp(prefix=".kafka-log-compaction-", dir=parent))
    # the descriptor is never closed: it holds the lock
    _locked(new)
    # renamed once it is locked: other runs remove unlocked directories of this name
    path = new.rename(parent / f"{_PREFIX}{new.name.rpartition('-')[2]}")
    atexit.register(_remove, path, os.getpid())
    return str(path)


def _remove(path: Path, pid: int) -> None:
    # not in forks of this process
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    if why_not_private(parent, shared=True):
        return
    for path in parent.glob(f"{_PREFIX}*"):
        opened = _locked(path)
        if opened is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(opened)


def _locked(directory: Path) -> int | None:
    """A descriptor that locks a private directory of this user; ``None`` if it is none, or another process has locked it."""
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        status = os.fstat(opened)
        if status.st_uid == os.geteuid() and not status.st_mode & _OTHERS:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return opened
    except OSError:
        # another process has locked it, or this file system has no locks
        pass
    os.close(opened)
    return None


#: environment variable that takes precedence over ``spark.local.dir``
LOCAL_DIRS = "SPARK_LOCAL_DIRS"
#: the Python with which Spark looks for data sources
_DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
#: "WARNING: Using incubator modules: jdk.incubator.vector", which Spark uses for linear algebra
_MODULE_WARNING = "Using incubator modules"
_RELAY_TIMEOUT_S = 5.0
#: option of a command's JVM: code of the second compiler does not pay off in its short life
C1_ONLY = "-XX:TieredStopAtLevel=1"
_LOG_FILE = Path(__file__).with_name("log4j2.properties")
_LOG_CONFIGURATION = "-Dlog4j2.configurationFile"

_silent = threading.Event()
#: lines of the standard error of a JVM that is starting
_held: list[str] = []
_holding = threading.Lock()


def errors_of_start() -> str:
    """The standard error of a JVM that has failed to start."""
    return "\n".join(_held)


def start_jvm() -> None:
    """Starts the JVM, and relays its standard error once it has started, except for its warning about a module that Spark's
    launcher adds: no option suppresses that. It looks for data sources with this Python, unless the user chose one."""
    _held.clear()
    read_end, write_end = os.pipe()
    relay = threading.Thread(target=_relay_errors, args=(read_end,), name="standard error of the JVM", daemon=True)
    relay.start()
    try:
        with _environment({**_local_jvm_variables(), **_own_python()}):
            gateway = launch_gateway(popen_kwargs={"stderr": write_end})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
    finally:
        os.close(write_end)
        if SparkContext._gateway is None:
            relay.join(_RELAY_TIMEOUT_S)
        else:
            with _holding:
                for line in _held:
                    FOREIGN.warning("%s", line)
                _held.clear()


def _local_jvm_variables() -> dict[str, str]:
    settings = protection.configured(os.environ)
    if not protection.is_local(settings.get(protection.MASTER, protection.LOCAL_MASTER)):
        return {}
    dirs = os.environ.get(LOCAL_DIRS)
    variables = {LOCAL_DIRS: private_dirs(dirs)} if dirs else {}
    if settings.get(protection.UI) == "true" and protection.LOCAL_ADDRESS not in os.environ:
        variables[protection.LOCAL_ADDRESS] = protection.LOOPBACK
    return variables


def _own_python() -> dict[str, str]:
    chosen = _DRIVER_PYTHON in os.environ or "PYSPARK_PYTHON" in os.environ
    return {} if chosen else {_DRIVER_PYTHON: sys.executable}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    previous = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            if name in previous:
                os.environ[name] = previous[name]
            else:
                del os.environ[name]


def silence_jvm() -> None:
    _silent.set()


def _relay_errors(read_end: int) -> None:
    with os.fdopen(read_end, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            if _MODULE_WARNING in line or _silent.is_set():
                continue
            with _holding:
                if SparkContext._gateway is None:
                    _held.append(line.rstrip("\n"))
                else:
                    FOREIGN.warning("%s", line.rstrip("\n"))


def print_to_jvm_errors(text: str) -> None:
    """Writes to the standard error of the JVM that started this process (``spark-submit``)."""
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    jvm.System.err.print(text)
    jvm.System.err.flush()


def choose_jvm_options(*more: str) -> None:
    """Sets options of the JVM to be started unless the user did: log errors only, from the first line, and ``more``."""
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    logging = f"{_LOG_CONFIGURATION}={_LOG_FILE.as_uri()}"
    for option in (logging, *more):
        if option.partition("=")[0] not in options:
            options += f" {option}"
    os.environ["SPARK_SUBMIT_OPTS"] = options.strip()
