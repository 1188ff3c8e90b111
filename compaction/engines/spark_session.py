"""Starts the Spark session of a command, or one with Spark SQL. Settings of the user are kept, missing ones are added
(``DEFAULTS``; local workers use the kernel cache of this process).

``compaction.startup`` has those that keep other users out. ``spark.shuffle.file.buffer`` keeps Spark's default: each
core may hold one such buffer for each of 200 partitions, which with 1 MiB would not fit into the heap of eight cores.

Under ``spark-submit`` and in a plain Python program it is the same; the latter runs locally on all cores.

Spark's default directories for temporary files can be read by everyone and remain if a run is killed; they contain shuffled
data, which for some commands includes complete keys. Spark is therefore given directories that nobody else may enter; this
package's own files are in such directories, too. A lock shows that the run has not ended. The next run of the same user removes
directories that nobody has locked. It does not touch links, directories of others, and parents in which others could have
renamed directories of this user.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import shutil
import stat
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from compaction import startup as protection
from compaction.files import read_counter
from compaction.kernels.ownership import why_not_private
from compaction.screen.steps import FOREIGN
from compaction.startup import MASTER, is_local, require_safe_jvm

_LOG = logging.getLogger(__name__)

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


def start_jvm(options: Mapping[str, str]) -> None:
    """Starts the JVM, and relays its standard error once it has started, except for its warning about a module that Spark's
    launcher adds: no option suppresses that. It looks for data sources with this Python, unless the user chose one.

    :param options: environment variables for this JVM alone; what this process starts later does not get them
    """
    _held.clear()
    read_end, write_end = os.pipe()
    relay = threading.Thread(target=_relay_errors, args=(read_end,), name="standard error of the JVM", daemon=True)
    relay.start()
    try:
        with _environment({**_local_jvm_variables(), **_own_python(), **options}):
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


def _jvm_options(*more: str) -> dict[str, str]:
    """The variable with the user's options of the JVM to be started, and those that are not among them: log errors only, from
    the first line, and ``more``."""
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    logging = f"{_LOG_CONFIGURATION}={_LOG_FILE.as_uri()}"
    for option in (logging, *more):
        if option.partition("=")[0] not in options:
            options += f" {option}"
    return {"SPARK_SUBMIT_OPTS": options.strip()}


_EXECUTOR_ENVIRONMENT = "spark.executorEnv."
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "kafka-log-compaction-driver.zip"
_CONSOLE_PROGRESS = "spark.ui.showConsoleProgress"

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "spark.shuffle.compress": "false",  # hashes and offsets do not compress
        "spark.buffer.size": "1048576",  # few large values pass between the JVM and Python
        "spark.python.worker.reuse": "true",  # a new worker has to load the kernels
        "spark.python.worker.memory": "1g",  # a worker with more memory, including its map, spills its shuffle output
        "spark.sql.execution.arrow.pyspark.enabled": "true",  # columnar transfer to and from Python
        "spark.log.level": "ERROR",  # the command reports errors; an occupied UI port is not one
        _CONSOLE_PROGRESS: "false",  # the command shows its own progress
        "spark.ui.liveUpdate.period": "0",  # completed tasks count at once, not with the next heartbeat
    }
)


class Session(Protocol):
    """The part of a ``SparkSession`` or :class:`PlainSession` that commands use."""

    @property
    def sparkContext(self) -> SparkContext:  # noqa: N802
        """See ``SparkSession.sparkContext``."""


@dataclass(frozen=True)
class PlainSession:
    """A session without Spark SQL, which takes seconds to start and which the commands do not use."""

    sparkContext: SparkContext  # noqa: N815

    def stop(self) -> None:
        # PySpark would wait up to a second for the accumulator thread, which ends with this process
        self.sparkContext._accumulatorServer = None  # type: ignore[assignment]
        self.sparkContext.stop()


def build_session(app_name: str, *, extra: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """A session with Spark SQL; a running session of this process is returned unchanged.

    :param app_name: the name shown in Spark's UI
    :param extra: settings that override the user's and :data:`DEFAULTS`
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    return SparkSession.builder.config(conf=_job_conf(extra)).appName(app_name).getOrCreate()


def build_plain_session(app_name: str, extra: Mapping[str, str] = MappingProxyType({})) -> PlainSession:
    """The session of a command; see :func:`build_session`."""
    running = SparkContext._active_spark_context
    if running is not None:
        return PlainSession(running)
    return PlainSession(SparkContext.getOrCreate(_job_conf(extra, C1_ONLY).setAppName(app_name)))


def _job_conf(extra: Mapping[str, str], *jvm_options: str) -> SparkConf:
    conf = _user_conf(*jvm_options)
    for name, value in extra.items():
        conf.set(name, value)
    for name, value in DEFAULTS.items():
        conf.setIfMissing(name, value)
    conf.setIfMissing(MASTER, protection.LOCAL_MASTER)
    _share_kernel_cache(conf)
    for name, value in protection.added(conf.get(MASTER)).items():
        conf.setIfMissing(name, value)
    if is_local(conf.get(MASTER)):
        protection.require_own_directory()
        if LOCAL_DIRS not in os.environ:
            conf.set("spark.local.dir", private_dirs(conf.get("spark.local.dir") or tempfile.gettempdir()))
        _use_this_python(conf)
        _use_this_package(conf)
    return conf


def ship_package(session: Session) -> None:
    """Lets Python workers import the driver's package, whether or not it is installed on their machines.

    Local workers use its directory, and count what they read; workers on a cluster use a copy of its modules. Libraries are
    not shipped: see ``conf/cluster``. Later calls for the same session change nothing: Spark starts new workers for each other
    environment, and refuses a second file of the same name.

    :raises UsageError: the driver's JVM can corrupt data
    """
    jvm: Any = SparkContext._jvm
    require_safe_jvm(str(jvm.System.getProperty("java.version")))
    sc = session.sparkContext
    if is_local(sc.getConf().get(MASTER)):
        existing = [path for path in sc.environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        if str(_ROOT) not in existing:
            sc.environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *existing])
        if read_counter.VARIABLE not in sc.environment:
            counts = tempfile.mkdtemp(prefix="kafka-log-compaction-")
            atexit.register(shutil.rmtree, counts, ignore_errors=True)
            sc.environment[read_counter.VARIABLE] = counts
        return
    if _ROOT.is_file() or _PACKAGE in (sc._python_includes or ()):
        # the driver itself runs the zip of --py-files, or an earlier call has added it: executors have it
        return
    # executors fetch it from the driver whenever they start: it is removed when the driver ends
    scratch = private_dirs(tempfile.gettempdir())
    # a unique name, because --py-files may have added a package already; what is added last takes precedence
    package = str(Path(scratch) / _PACKAGE)
    write_package(package)
    sc.addPyFile(package)


def write_package(path: str) -> None:
    """Writes the modules of this package and its commands, placed as in a wheel, as a zip for ``--py-files``."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        directories = {"compaction": _ROOT / "compaction"}
        if not (_ROOT / "compaction" / "jobs").is_dir():
            directories["compaction/jobs"] = _ROOT / "jobs"
        for name, directory in directories.items():
            for file in sorted(directory.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    package.write(file, str(name / file.relative_to(directory)))


def _user_conf(*jvm_options: str) -> SparkConf:
    """The settings of ``spark-submit``, its properties file or ``spark-defaults.conf``; starts the JVM, which reads them."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and SparkContext._gateway is None:
        start_jvm(_jvm_options(*jvm_options) if "SPARK_CONF_DIR" not in os.environ else {})
    SparkContext._ensure_initialized()
    conf = SparkConf()
    if not submitted:
        # PySpark's launcher sets it for interactive shells: not a choice of the user
        conf.set(_CONSOLE_PROGRESS, DEFAULTS[_CONSOLE_PROGRESS])
    return conf


def submitted_settings() -> dict[str, str]:
    """The settings of ``spark-submit``, which has started this process, for the master and the protection of the session."""
    SparkContext._ensure_initialized()
    return _settings_of_protection(SparkConf())


def _settings_of_protection(conf: SparkConf) -> dict[str, str]:
    names = (MASTER, protection.AUTHENTICATE, protection.UI)
    return {name: value for name in names if (value := conf.get(name)) is not None}


def warn_of_exposures(session: Session) -> None:
    """Logs the access that a session's settings give to other users, if any."""
    jvm: Any = SparkContext._jvm
    settings = _settings_of_protection(session.sparkContext.getConf())
    for message, remedy in protection.exposures(settings, jvm.System.getenv(protection.LOCAL_ADDRESS)):
        _warn(f"{message}; {remedy}")


@cache
def _warn(text: str) -> None:
    _LOG.warning("%s", text)


def _share_kernel_cache(conf: SparkConf) -> None:
    """Local workers use the kernel cache of this process, or none; other executors choose their own. Each process checks that
    no other user can write to it."""
    # imports numba, which other users of this module do not need
    from compaction.kernels.cache import CACHE_DIR, NO_CACHE, cache_dir

    directory = (cache_dir() or NO_CACHE) if is_local(conf.get(MASTER)) else os.environ.get(CACHE_DIR)
    if directory:
        conf.setIfMissing(_EXECUTOR_ENVIRONMENT + CACHE_DIR, str(directory))


def _use_this_package(conf: SparkConf) -> None:
    if not conf.contains(_EXECUTOR_ENVIRONMENT + "PYTHONPATH"):
        existing = os.environ.get("PYTHONPATH")
        conf.set(_EXECUTOR_ENVIRONMENT + "PYTHONPATH", os.pathsep.join(path for path in (str(_ROOT), existing) if path))


def _use_this_python(conf: SparkConf) -> None:
    """Local workers run the driver's interpreter, not the first ``python3`` on the path."""
    if not conf.contains("spark.pyspark.python"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
