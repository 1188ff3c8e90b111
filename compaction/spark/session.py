"""Starts the Spark session of a job: what the user configured stands, what the job needs is added.

Works the same under ``spark-submit`` and as a plain Python program, where a local session on all cores is started.

| setting | value when the user gave none | why |
| --- | --- | --- |
| ``spark.shuffle.compress`` | ``false`` | hashes and offsets do not compress |
| ``spark.shuffle.file.buffer``, ``spark.buffer.size`` | 1 MiB | few and large values are shuffled |
| ``spark.python.worker.reuse`` | ``true`` | a fresh worker loads the kernels again |
| ``spark.python.worker.memory`` | 1 GiB | a worker that holds more, its map included, spills what it is about to send |
| ``spark.python.daemon.module`` | local: ``compaction.spark.daemon`` | workers start with the kernels loaded |
| ``spark.sql.execution.arrow.pyspark.enabled`` | ``true`` | rows to and from Python in columns |
| ``spark.log.level`` | ``ERROR`` | the job speaks for itself; a taken UI port is no news |
| ``spark.ui.showConsoleProgress`` | ``false`` | the job draws its own progress |
| ``spark.ui.liveUpdate.period`` | ``0`` | a finished task counts at once, not with the next heartbeat |
| ``spark.executorEnv.NUMBA_CACHE_DIR`` | local: see ``compaction.kernels.compiling.cache`` | workers need not look |
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from compaction.kernels.compiling.cache import CACHE_DIR, NOWHERE, place
from compaction.spark import daemon
from compaction.spark.daemon import Preloaded

_EXECUTOR_ENVIRONMENT = "spark.executorEnv."
_EXECUTOR_CACHE_DIR = _EXECUTOR_ENVIRONMENT + CACHE_DIR
_DAEMON_MODULE = "spark.python.daemon.module"
_ROOT = Path(__file__).resolve().parents[2]
_CONSOLE_PROGRESS = "spark.ui.showConsoleProgress"
_LOG_CONFIGURATION = "-Dlog4j2.configurationFile"
#: of the JVM of a job, which is over before the code that the second compiler makes pays; starting takes a third less of the
#: processors
C1_ONLY = "-XX:TieredStopAtLevel=1"

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "spark.shuffle.compress": "false",
        "spark.shuffle.file.buffer": "1m",
        "spark.buffer.size": "1048576",
        "spark.python.worker.reuse": "true",
        "spark.python.worker.memory": "1g",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.log.level": "ERROR",
        _CONSOLE_PROGRESS: "false",
        "spark.ui.liveUpdate.period": "0",
    }
)


class Session(Protocol):
    """What a job needs of a session: a ``SparkSession`` has it, and :class:`PlainSession`."""

    @property
    def sparkContext(self) -> SparkContext:  # noqa: N802
        """The connection to Spark."""


@dataclass(frozen=True)
class PlainSession:
    """A session without Spark SQL, which takes some seconds to start and which the jobs do not use."""

    sparkContext: SparkContext  # noqa: N815
    preloaded: Preloaded | None = None

    def stop(self) -> None:
        """End the session and let go of its executors."""
        # PySpark waits up to a second for the thread that takes accumulators; it ends with this process
        self.sparkContext._accumulatorServer = None  # type: ignore[assignment]
        self.sparkContext.stop()
        if self.preloaded is not None:
            self.preloaded.end()


def build_session(app_name: str, *, extra: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """A session with Spark SQL; one that is already running in this process is taken as it is.

    :param app_name: the name shown in Spark's UI
    :param extra: settings of this run; they win over the user's and over :data:`DEFAULTS`
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    return SparkSession.builder.config(conf=_job_conf(extra)).appName(app_name).getOrCreate()


def build_plain_session(app_name: str) -> PlainSession:
    """The session that a job runs in; see :func:`build_session`."""
    running = SparkContext._active_spark_context
    if running is not None:
        return PlainSession(running)
    conf = _job_conf({}, C1_ONLY).setAppName(app_name)
    preloaded = _preloaded(conf)
    return PlainSession(SparkContext.getOrCreate(conf), preloaded)


def _job_conf(extra: Mapping[str, str], *jvm_options: str) -> SparkConf:
    conf = _user_conf(*jvm_options)
    for name, value in extra.items():
        conf.set(name, value)
    for name, value in DEFAULTS.items():
        conf.setIfMissing(name, value)
    conf.setIfMissing("spark.master", "local[*]")
    _share_kernel_cache(conf)
    if _is_local(conf):
        _use_this_python(conf)
        _preload_workers(conf)
    return conf


def ship_package(session: Session) -> None:
    """Let Python workers import the very package that the driver runs, whether or not it is installed where they are.

    On this machine they get its directory, on a cluster a copy of its modules. Libraries are not shipped: see ``conf/cluster``.
    """
    sc = session.sparkContext
    if _is_local(sc.getConf()):
        known = sc.environment.get("PYTHONPATH")
        sc.environment["PYTHONPATH"] = os.pathsep.join(path for path in (str(_ROOT), known) if path)
        return
    if _ROOT.is_file():
        # the driver runs the zip that --py-files gave to everyone
        return
    # executors fetch it from the driver whenever they start, so it stays until the driver ends
    scratch = tempfile.mkdtemp(prefix="kafka-log-compaction-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    # a name of its own: files named by --py-files are there already, and what is added last goes before them
    package = str(Path(scratch) / "kafka-log-compaction-driver.zip")
    write_package(package)
    sc.addPyFile(package)


def write_package(path: str) -> None:
    """Write the modules of this package and its commands as a zip for ``--py-files``."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as package:
        for part in ("compaction", "jobs"):
            for file in sorted((_ROOT / part).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    package.write(file, str(file.relative_to(_ROOT)))


def _user_conf(*jvm_options: str) -> SparkConf:
    """What ``spark-submit``, its properties file or ``spark-defaults.conf`` set; starts the JVM, which alone knows."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and SparkContext._gateway is None and "SPARK_CONF_DIR" not in os.environ:
        _choose_jvm_options(*jvm_options)
    SparkContext._ensure_initialized()
    conf = SparkConf()
    if not submitted:
        # PySpark's own launcher turns it on for interactive shells: nobody's choice
        conf.set(_CONSOLE_PROGRESS, DEFAULTS[_CONSOLE_PROGRESS])
    return conf


def _choose_jvm_options(*more: str) -> None:
    """Options of the JVM that is going to start, unless the user chose: errors only in its log from the first line on, and
    ``more``."""
    options = os.environ.get("SPARK_SUBMIT_OPTS", "")
    logging = f"{_LOG_CONFIGURATION}={Path(__file__).with_name('log4j2.properties').as_uri()}"
    for option in (logging, *more):
        if option.partition("=")[0] not in options:
            options += f" {option}"
    os.environ["SPARK_SUBMIT_OPTS"] = options.strip()


def _is_local(conf: SparkConf) -> bool:
    master = conf.get("spark.master", "") or ""
    return master == "local" or master.startswith("local[")


def _share_kernel_cache(conf: SparkConf) -> None:
    """Local workers keep compiled kernels where this process does, or nowhere; executors elsewhere find a place of their own.
    Each looks for itself whether others could have written there."""
    chosen = (place() or NOWHERE) if _is_local(conf) else os.environ.get(CACHE_DIR)
    if chosen:
        conf.setIfMissing(_EXECUTOR_CACHE_DIR, str(chosen))


def _preload_workers(conf: SparkConf) -> None:
    """Local workers are forked with the kernels loaded."""
    if not conf.contains(_EXECUTOR_ENVIRONMENT + "PYTHONPATH"):
        known = os.environ.get("PYTHONPATH")
        conf.set(_EXECUTOR_ENVIRONMENT + "PYTHONPATH", os.pathsep.join(path for path in (str(_ROOT), known) if path))
        conf.setIfMissing(_DAEMON_MODULE, daemon.__name__)


def _preloaded(conf: SparkConf) -> Preloaded | None:
    """What local workers are forked from, told to ``conf``; none where the user chose another daemon or interpreter."""
    python = conf.get("spark.pyspark.python", os.environ.get("PYSPARK_PYTHON"))
    if not _is_local(conf) or conf.get(_DAEMON_MODULE, "") != daemon.__name__ or python != sys.executable:
        return None
    names = [key for key, _ in conf.getAll() if key.startswith(_EXECUTOR_ENVIRONMENT)]
    try:
        preloaded = Preloaded({name.removeprefix(_EXECUTOR_ENVIRONMENT): conf.get(name) or "" for name in names})
    except OSError:
        # no room for a socket, or its name is too long: the daemon loads by itself
        return None
    conf.set(_EXECUTOR_ENVIRONMENT + daemon.ADDRESS, preloaded.address)
    return preloaded


def _use_this_python(conf: SparkConf) -> None:
    """Local workers run the interpreter that runs the driver, not whichever ``python3`` comes first on the path."""
    if not conf.contains("spark.pyspark.python"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
