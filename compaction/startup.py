"""What Spark needs to start: a Java that it can use, and settings that protect a session from other users of the machine.

The Java that Spark's scripts start is found, and its version checked, before a run starts: Spark's launcher would report only
the end of its JVM. Under ``spark-submit`` and with a caller's session the JVM is running already: only its version is checked,
when it is used.

Of the settings, those of the user take precedence. On local masters, the driver is all of Spark, and no other process needs
to reach it (``LOCAL``). ``spark.local.dir`` is private there (``compaction.engines.spark_session``): everyone could read
Spark's files.

On all masters, Python workers do not import modules from their working directory (``PYTHONSAFEPATH``). Python 3.10 does not
have it: local sessions refuse to start in directories in which others can plant modules.

On a cluster, the secret belongs to the cluster; :func:`exposures` reports a missing one.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from compaction.errors import UsageError
from compaction.formats.java_text import as_dict, parse_properties
from compaction.kernels.ownership import why_not_private

MASTER = "spark.master"
LOCAL_MASTER = "local[*]"
LOOPBACK = "127.0.0.1"
AUTHENTICATE = "spark.authenticate"
#: the address of Spark's pages has no setting
LOCAL_ADDRESS = "SPARK_LOCAL_IP"
UI = "spark.ui.enabled"

#: on all masters
EVERYWHERE: Mapping[str, str] = MappingProxyType({"spark.executorEnv.PYTHONSAFEPATH": "1"})
#: on local masters
LOCAL: Mapping[str, str] = MappingProxyType(
    {
        AUTHENTICATE: "true",  # without it, anyone can read blocks with keys and replace workers' functions at its ports
        "spark.driver.bindAddress": LOOPBACK,  # its ports are not reachable from other machines
        "spark.driver.host": LOOPBACK,
        UI: "false",  # its pages have no password, and show all settings
        "spark.ui.killEnabled": "false",  # if there are pages, they cannot end a run
    }
)


def is_local(master: str | None) -> bool:
    return master == "local" or (master or "").startswith("local[")


def added(master: str | None) -> dict[str, str]:
    """The settings of a session that its user has not set."""
    return {**EVERYWHERE, **(LOCAL if is_local(master) else {})}


class Exposure(NamedTuple):
    """A risk from other users for a session, and the remedy."""

    risk: str
    remedy: str


def exposures(settings: Mapping[str, str], pages_address: str | None) -> Iterator[Exposure]:
    """The risks from other users for a session with these settings.

    :param settings: the settings in effect
    :param pages_address: the value of ``SPARK_LOCAL_IP`` of its JVM
    """
    master = settings.get(MASTER, LOCAL_MASTER)
    if settings.get(AUTHENTICATE) != "true":
        message = f"{master} without authentication: anyone who reaches the driver's ports can run code in this run"
        yield Exposure(message, f"set {AUTHENTICATE}=true, and on a cluster its secret (docs/security.md)")
    if is_local(master) and settings.get(UI, "true") == "true" and pages_address != LOOPBACK:
        yield Exposure("Spark's pages have no password and are open to the network", f"set {LOCAL_ADDRESS}={LOOPBACK}")


def configured(environment: Mapping[str, str]) -> dict[str, str]:
    """The user's settings before a JVM is started: from ``spark-defaults.conf`` or another file, and from the options in
    ``PYSPARK_SUBMIT_ARGS``.

    :raises ConfigError: a file is malformed
    """
    words = shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    submit = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    options = dict(pairwise(submit))
    spec = find_spec("pyspark")
    home = environment.get("SPARK_HOME", str(Path(spec.origin).parent) if spec is not None and spec.origin else "")
    conf = Path(environment.get("SPARK_CONF_DIR") or Path(home, "conf"))
    file = Path(options.get("--properties-file") or conf / "spark-defaults.conf")
    try:
        result = as_dict(parse_properties(file.read_text(encoding="utf-8", errors="replace"), file))
    except OSError:
        result = {}
    options_given = (value.partition("=") for option, value in pairwise(submit) if option in ("--conf", "-c"))
    result.update({name: value for name, _, value in options_given})
    if "--master" in options:
        result[MASTER] = options["--master"]
    return result


def in_effect(settings: Mapping[str, str]) -> dict[str, str]:
    return {**added(settings.get(MASTER, LOCAL_MASTER)), **settings}


def require_own_directory(version: tuple[int, int] = sys.version_info[:2]) -> None:
    """Checks that no other user can write to the working directory, if Python workers import modules from it.

    :raises UsageError: another user can
    """
    if version >= (3, 11):
        return
    reason = why_not_private(Path.cwd())
    if reason:
        message = f"{reason}, and Python 3.10 would run modules that others plant in the working directory"
        raise UsageError(message, hint="change to a directory of your own (cd /), or use Python 3.11 or newer")


#: the minimum of Spark 4
OLDEST_JAVA = 17
#: from the first up to the second version, exclusive, the G1 collector can corrupt data (JDK-8377811)
_CORRUPTING = (25,), (25, 0, 3)
#: files that Spark's JVM opens at its start: mainly its jars
LEAST_FILES = 400
_NUMBERS = r"(?:1\.)?(\d+(?:\.\d+)*)"
_RELEASE = re.compile(rf'^JAVA_VERSION="{_NUMBERS}', re.MULTILINE)
_VERSION = re.compile(rf' version "{_NUMBERS}')
_LIMIT_S = 20.0
_HINT = f"install Java {OLDEST_JAVA} or newer and set JAVA_HOME to its directory"


def find_java() -> Path | None:
    """The Java that Spark's scripts start: that of ``JAVA_HOME``, else the first one on ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(command).resolve() if command else None


def version_of(java: Path) -> tuple[int, ...] | None:
    """The version of a Java, e.g. 8, 11.0.2 or 17, from its ``release`` file or its output; ``None`` if unknown."""
    try:
        match = _RELEASE.search((java.parent.parent / "release").read_text("utf-8", "replace"))
    except OSError:
        match = None
    if match is None:
        try:
            result = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = _VERSION.search(f" {result.stderr} {result.stdout}")
    return None if match is None else tuple(map(int, match[1].split(".")))


def require_safe_jvm(version: str) -> None:
    """:param version: the property ``java.version`` of the JVM that runs Spark, e.g. ``25.0.1``

    :raises UsageError: it can corrupt data
    """
    if (match := re.match(_NUMBERS, version)) is not None:
        require_safe(tuple(map(int, match[1].split("."))), "of Spark's JVM")


def require_safe(version: tuple[int, ...], where: str) -> None:
    """:raises UsageError: a Java of this version can corrupt data"""
    first, fixed = _CORRUPTING
    if first <= version < fixed:
        found = ".".join(map(str, version))
        message = f"Java {found} {where} can corrupt data: its G1 collector has the defect JDK-8377811"
        raise UsageError(message, hint=f"use Java {'.'.join(map(str, fixed))} or newer, 21 or 17")


def require_java() -> None:
    """:raises UsageError: there is no Java, it is too old, or the limit of open files is too low"""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    # the JVM raises its soft limit to the hard limit
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < LEAST_FILES:
        message = f"a process may open {limit} files here, and Spark's JVM opens more than {LEAST_FILES} at its start"
        raise UsageError(message, hint="raise the limit: ulimit -n 4096")
    java, home = find_java(), os.environ.get("JAVA_HOME")
    if java is None:
        cause = f"JAVA_HOME is {home}, which has no bin/java" if home else "JAVA_HOME is not set, and no java is on PATH"
        raise UsageError(f"needs Java {OLDEST_JAVA} or newer, found none: {cause}", hint=_HINT)
    version = version_of(java)
    if version is None:
        raise UsageError(f"needs Java {OLDEST_JAVA} or newer, found one of unknown version at {java}", hint=_HINT)
    if version[0] < OLDEST_JAVA:
        raise UsageError(f"needs Java {OLDEST_JAVA} or newer, found {version[0]} at {java}", hint=_HINT)
    require_safe(version, f"at {java}")
