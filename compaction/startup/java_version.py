"""Finds the Java that Spark's scripts start, and checks its version before a run starts. Spark's launcher would report only the
end of its JVM.

Under ``spark-submit`` and with a caller's session the JVM is running already: only its version is checked, when it is used.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

from compaction.errors import UsageError

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
