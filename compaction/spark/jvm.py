"""Starts Spark's JVM, and passes on what it writes to standard error."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.java_gateway import launch_gateway

from compaction.screen.steps import FOREIGN
from compaction.startup import protection
from compaction.startup.local_dirs import private_dirs

#: environment variable that takes precedence over ``spark.local.dir``
LOCAL_DIRS = "SPARK_LOCAL_DIRS"
#: the Python with which Spark looks for data sources
_DRIVER_PYTHON = "PYSPARK_DRIVER_PYTHON"
#: "WARNING: Using incubator modules: jdk.incubator.vector", which Spark uses for linear algebra
_MODULE_WARNING = "Using incubator modules"
_LAST_WORDS_S = 5.0
#: option of a command's JVM: code of the second compiler does not pay off in its short life
C1_ONLY = "-XX:TieredStopAtLevel=1"
_LOG_FILE = Path(__file__).with_name("log4j2.properties")
_LOG_CONFIGURATION = "-Dlog4j2.configurationFile"

_silent = threading.Event()


def start_jvm() -> None:
    """Starts the JVM, and copies what it writes to standard error, except for its warning about a module that Spark's launcher
    adds: no option suppresses that. It looks for data sources with this Python, unless the user chose one."""
    read_end, write_end = os.pipe()
    relay = threading.Thread(target=_relay_errors, args=(read_end,), name="standard error of the JVM", daemon=True)
    relay.start()
    try:
        with _environment({**_of_local_jvm(), **_own_python()}):
            gateway = launch_gateway(popen_kwargs={"stderr": write_end})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)
    finally:
        os.close(write_end)
        if SparkContext._gateway is None:
            # it has not started: it has said why
            relay.join(_LAST_WORDS_S)


def _of_local_jvm() -> dict[str, str]:
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
    known = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            if name in known:
                os.environ[name] = known[name]
            else:
                del os.environ[name]


def silence_jvm() -> None:
    _silent.set()


def _relay_errors(read_end: int) -> None:
    with os.fdopen(read_end, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            if _MODULE_WARNING not in line and not _silent.is_set():
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
