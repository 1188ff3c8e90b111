"""Checks of the machine: Java, Python's packages, memory, free space for shuffle files, access of other users, the clock."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from compaction.checkup.check import Check, State
from compaction.errors import CompactionError
from compaction.kernels.ownership import why_not_private
from compaction.screen.amounts import decimal
from compaction.startup import protection
from compaction.startup.java_version import find_java, require_java, version_of
from compaction.storage.local import free_space

MACHINE = "machine"
#: the oldest release of each package that a run needs
PACKAGES = {"pyspark": (4, 0), "numba": (0, 61), "numpy": (2, 0), "pyarrow": (18, 0)}
#: the JVM, and the Python workers of two cores with their maps
LEAST_MEMORY_BYTES = 1 << 30
LEAST_SHUFFLE_BYTES = 1 << 30
_KIB = 1024
#: the clock of a machine without a battery starts in 1970
_LEAST_CLOCK_MS = 1_577_836_800_000
_MEMORY = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB", re.MULTILINE)


def check_machine(now_ms: int, settings: Mapping[str, str]) -> Iterator[Check]:
    """The checks of this machine.

    :param settings: the user's Spark settings
    """
    yield Check(MACHINE, "Python", State.OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield _java()
    yield from _packages()
    yield _memory()
    yield _shuffle_space()
    yield from _other_users(settings)
    if now_ms < _LEAST_CLOCK_MS:
        yield Check(MACHINE, "clock", State.BAD, f"{now_ms} ms since 1970", "set it: retention and horizons depend on it")


def _java() -> Check:
    try:
        require_java()
    except CompactionError as error:
        # only Spark needs it
        return Check(MACHINE, "Java", State.NOTE, f"{error.message}; --engine local works without it", error.hint or "")
    java = find_java()
    return Check(MACHINE, "Java", State.OK, "that of spark-submit" if java is None else f"{_text(version_of(java))} at {java}")


def _text(release: tuple[int, ...] | None) -> str:
    return "of unknown version" if release is None else ".".join(map(str, release))


def _packages() -> Iterator[Check]:
    for name, minimum in PACKAGES.items():
        oldest = ".".join(map(str, minimum))
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield Check(MACHINE, name, State.BAD, "not installed", f"pip install '{name}>={oldest}'")
            continue
        release = tuple(int(number) for number in re.findall(r"\d+", installed)[: len(minimum)])
        old = release < minimum
        yield Check(MACHINE, name, State.BAD if old else State.OK, installed, f"pip install '{name}>={oldest}'" if old else "")


def available_memory() -> int | None:
    """Bytes that processes can still allocate here, within the limit of the container; ``None`` if unknown."""
    try:
        match = _AVAILABLE.search(_MEMORY.read_text())
    except OSError:
        return None
    if match is None:
        return None
    available = int(match[1]) * _KIB
    try:
        return min(available, int(_LIMIT.read_text()) - int(_USED.read_text()))
    except (OSError, ValueError):
        # no container, or one without a limit
        return available


def _memory() -> Check:
    available = available_memory()
    if available is None:
        return Check(MACHINE, "memory", State.NOTE, "the system does not say how much is available")
    if available < LEAST_MEMORY_BYTES:
        fix = f"free some, or use a machine with {decimal(LEAST_MEMORY_BYTES)} or more"
        return Check(MACHINE, "memory", State.BAD, f"{decimal(available)} available", fix)
    return Check(MACHINE, "memory", State.OK, f"{decimal(available)} available")


def _shuffle_place() -> str:
    return (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")[0]


def _other_users(settings: Mapping[str, str]) -> Iterator[Check]:
    # a console command starts its JVM with its pages on loopback
    default = None if "PYSPARK_GATEWAY_PORT" in os.environ else protection.LOOPBACK
    address = os.environ.get(protection.LOCAL_ADDRESS, default)
    exposures = [*protection.exposures(protection.in_effect(settings), address)]
    with suppress(OSError):
        reason = why_not_private(Path(_shuffle_place()), shared=True)
        if reason:
            message = f"{reason}: they could replace shuffled data"
            exposures.append(
                protection.Exposure(message, "set SPARK_LOCAL_DIRS to a directory of your own, or set its sticky bit")
            )
    for message, remedy in exposures:
        yield Check(MACHINE, "access", State.NOTE, message, remedy)
    if not exposures:
        yield Check(MACHINE, "access", State.OK, "authenticated, no pages open to the network, private files")


def _shuffle_space() -> Check:
    path = _shuffle_place()
    try:
        free = free_space(path).free_bytes
    except CompactionError as error:
        return Check(MACHINE, "shuffle files", State.BAD, error.describe(), "set SPARK_LOCAL_DIRS to a directory")
    if free < LEAST_SHUFFLE_BYTES:
        fix = f"free some, or set SPARK_LOCAL_DIRS to a file system with {decimal(LEAST_SHUFFLE_BYTES)} or more"
        return Check(MACHINE, "shuffle files", State.BAD, f"{decimal(free)} free at {path}", fix)
    return Check(MACHINE, "shuffle files", State.OK, f"{decimal(free)} free at {path}")
