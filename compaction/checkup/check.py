"""The checks of ``doctor``, and what they found."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compaction.printable import printable
from compaction.results import Result
from compaction.screen.amounts import counted
from compaction.screen.text_table import Line, Style

_NAME_WIDTH = 14


class State(enum.Enum):
    """Whether a run can do its work: ``NOTE`` is worth knowing, ``BAD`` needs to be fixed."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True)
class Check:
    """What was checked (``area``: the machine, a log directory or a log), what was found, and what to do about it."""

    area: str
    name: str
    state: State
    found: str
    fix: str = ""


def check_lines(check: Check, area_before: str | None) -> list[str]:
    """A check as lines of text, with its area if that is another one than that of the check before."""
    head = [printable(check.area)] if check.area != area_before else []
    fix = [printable(f"        fix: {check.fix}")] if check.fix else []
    return [*head, printable(f"  {check.state.value:<5} {check.name:<{_NAME_WIDTH}} {check.found}"), *fix]


@dataclass(frozen=True)
class Checkup(Result):
    """All checks of a call."""

    checks: tuple[Check, ...]

    @property
    def problems(self) -> int:
        """How many need to be fixed."""
        return sum(check.state is State.BAD for check in self.checks)

    @property
    def notes(self) -> int:
        """How many are worth knowing."""
        return sum(check.state is State.NOTE for check in self.checks)

    @property
    def exit_code(self) -> int:
        """1 if something needs to be fixed."""
        return 1 if self.problems else 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON document as a dictionary."""
        return {"schema_version": 1, "problems": self.problems, "notes": self.notes, "checks": list(self.rows())}

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The checks."""
        return [{**asdict(check), "state": check.state.value} for check in self.checks]

    def lines(self, style: Style | None = None, *, all_rows: bool = False, details: bool = False) -> Iterable[Line]:
        """See ``Result``."""
        areas = [None, *(check.area for check in self.checks)]
        found = [text for check, area in zip(self.checks, areas, strict=False) for text in check_lines(check, area)]
        return map(Line, [*found, self.summary()])

    def summary(self) -> str:
        """How many problems and notes."""
        return f"{counted(self.problems, 'problem')}, {counted(self.notes, 'note')}"
