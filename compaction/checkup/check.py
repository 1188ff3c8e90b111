"""The checks of ``doctor`` with their results; those of the machine: Java, Python's packages, memory, free space for shuffle
files, access of other users, the clock.
"""

from __future__ import annotations

import enum
import hashlib
import os
import platform
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from compaction import startup
from compaction.errors import CompactionError
from compaction.files.local import free_space
from compaction.kernels.ownership import why_not_private
from compaction.printable import printable
from compaction.results import Result
from compaction.screen.amounts import counted, decimal
from compaction.screen.text_table import Line, Style, wrapped

_NAME_WIDTH, _STATE_WIDTH = 14, 8
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


#: a topic alone or before the number of a partition; not a part of another name
_TOPIC = r"(?<![\w.-])(?:{})(?=-\d+(?![\w-])|(?![\w.-]))"
_CODE_KEY = secrets.token_bytes(16)


def _code(topic: re.Match[str]) -> str:
    """What stands for a topic in a document that is sent to others."""
    return "topic-" + hashlib.blake2b(topic[0].encode(), digest_size=4, key=_CODE_KEY).hexdigest()


class State(enum.Enum):
    """The result of a check: ``NOTE`` does not prevent a run, ``BAD`` needs to be fixed."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True)
class Check:
    """A check of ``area`` (the machine, a log directory or a log): its result and the remedy.

    :ivar topics: the topics that this check, or others of the same call, may name
    """

    area: str
    name: str
    state: State
    found: str
    fix: str = ""
    topics: frozenset[str] = frozenset()


def check_lines(check: Check, area_before: str | None, style: Style) -> list[Line]:
    """A check as lines of text, with its area if it differs from that of the previous check."""
    head = [Line(printable(check.area))] if check.area != area_before else []
    text, hanging = f"{check.name:<{_NAME_WIDTH}}\u00a0{check.found}", _NAME_WIDTH + 1
    name, *more = wrapped(text, style, indent=_STATE_WIDTH, hanging=hanging)
    state = Line(f"  {check.state.value:<5} {name.text[_STATE_WIDTH:]}".replace("\u00a0", " "))
    return [*head, state, *more, *(wrapped(f"fix: {check.fix}", style, indent=_STATE_WIDTH, hanging=5) if check.fix else [])]


@dataclass(frozen=True)
class Checkup(Result):
    """All checks of a call.

    :ivar shows_topics: in the JSON document; it has codes instead, which are the same in one process only
    """

    checks: tuple[Check, ...]
    shows_topics: bool = False

    @property
    def problems(self) -> int:
        """The number of ``BAD`` checks."""
        return sum(check.state is State.BAD for check in self.checks)

    @property
    def notes(self) -> int:
        """The number of ``NOTE`` checks."""
        return sum(check.state is State.NOTE for check in self.checks)

    @property
    def exit_code(self) -> int:
        """1 if something needs to be fixed."""
        return 1 if self.problems else 0

    def to_dict(self) -> dict[str, Any]:
        topics = [] if self.shows_topics else sorted(frozenset().union(*(check.topics for check in self.checks)), key=len)
        hidden = re.compile(_TOPIC.format("|".join(map(re.escape, reversed(topics)))))
        checks = [
            {name: hidden.sub(_code, text) if topics and check.area != MACHINE else text for name, text in row.items()}
            for check, row in zip(self.checks, self.rows(), strict=True)
        ]
        return {"schema_version": 1, "problems": self.problems, "notes": self.notes, "checks": checks}

    def rows(self) -> Sequence[Mapping[str, str]]:
        """The checks, with the names of topics."""
        return [
            {"area": check.area, "name": check.name, "state": check.state.value, "found": check.found, "fix": check.fix}
            for check in self.checks
        ]

    def lines(self, style: Style | None = None, *, all_rows: bool = False, details: bool = False) -> Iterable[Line]:
        areas = [None, *(check.area for check in self.checks)]
        shown = style or Style()
        lines = [line for check, area in zip(self.checks, areas, strict=False) for line in check_lines(check, area, shown)]
        return [*lines, Line(self.summary())]

    def summary(self) -> str:
        """The number of problems and notes."""
        return f"{counted(self.problems, 'problem')}, {counted(self.notes, 'note')}"


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
        startup.require_java()
    except CompactionError as error:
        # only Spark needs it
        return Check(MACHINE, "Java", State.NOTE, f"{error.message}; --engine local works without it", error.hint or "")
    java = startup.find_java()
    if java is None:
        return Check(MACHINE, "Java", State.OK, "that of spark-submit")
    release = startup.version_of(java)
    version_text = "of unknown version" if release is None else ".".join(map(str, release))
    return Check(MACHINE, "Java", State.OK, f"{version_text} at {java}")


def _packages() -> Iterator[Check]:
    for name, minimum in PACKAGES.items():
        oldest = ".".join(map(str, minimum))
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield Check(MACHINE, name, State.BAD, "not installed", f"pip install '{name}>={oldest}'")
            continue
        release = tuple(int(number) for number in re.findall(r"\d+", installed)[: len(minimum)])
        yield _enough(name, release >= minimum, installed, f"pip install '{name}>={oldest}'")


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
    fix = f"free some, or use a machine with {decimal(LEAST_MEMORY_BYTES)} or more"
    return _enough("memory", available >= LEAST_MEMORY_BYTES, f"{decimal(available)} available", fix)


def _enough(name: str, enough: bool, found: str, fix: str) -> Check:
    return Check(MACHINE, name, State.OK, found) if enough else Check(MACHINE, name, State.BAD, found, fix)


def _shuffle_place() -> str:
    return (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")[0]


def _other_users(settings: Mapping[str, str]) -> Iterator[Check]:
    # a console command starts its JVM with its pages on loopback
    default = None if "PYSPARK_GATEWAY_PORT" in os.environ else startup.LOOPBACK
    address = os.environ.get(startup.LOCAL_ADDRESS, default)
    exposures = [*startup.exposures(startup.in_effect(settings), address)]
    with suppress(OSError):
        reason = why_not_private(Path(_shuffle_place()), shared=True)
        if reason:
            message = f"{reason}: they could replace shuffled data"
            exposures.append(
                startup.Exposure(message, "set SPARK_LOCAL_DIRS to a directory of your own, or set its sticky bit")
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
    fix = f"free some, or set SPARK_LOCAL_DIRS to a file system with {decimal(LEAST_SHUFFLE_BYTES)} or more"
    return _enough("shuffle files", free >= LEAST_SHUFFLE_BYTES, f"{decimal(free)} free at {path}", fix)
