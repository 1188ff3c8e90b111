"""The checks of ``doctor`` with their results."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compaction.printable import printable
from compaction.results import Result
from compaction.screen.amounts import counted
from compaction.screen.text_table import Line, Style, wrapped

_NAME_WIDTH, _STATE_WIDTH = 14, 8


class State(enum.Enum):
    """The result of a check: ``NOTE`` does not prevent a run, ``BAD`` needs to be fixed."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True)
class Check:
    """A check of ``area`` (the machine, a log directory or a log): its result and the remedy."""

    area: str
    name: str
    state: State
    found: str
    fix: str = ""


def check_lines(check: Check, area_before: str | None, style: Style) -> list[Line]:
    """A check as lines of text, with its area if it differs from that of the previous check."""
    head = [Line(printable(check.area))] if check.area != area_before else []
    text, hanging = f"{check.name:<{_NAME_WIDTH}}\u00a0{check.found}", _NAME_WIDTH + 1
    name, *more = wrapped(text, style, indent=_STATE_WIDTH, hanging=hanging)
    state = Line(f"  {check.state.value:<5} {name.text[_STATE_WIDTH:]}".replace("\u00a0", " "))
    return [*head, state, *more, *(wrapped(f"fix: {check.fix}", style, indent=_STATE_WIDTH, hanging=5) if check.fix else [])]


@dataclass(frozen=True)
class Checkup(Result):
    """All checks of a call."""

    checks: tuple[Check, ...]

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
        """The JSON document as a dictionary."""
        return {"schema_version": 1, "problems": self.problems, "notes": self.notes, "checks": list(self.rows())}

    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The checks."""
        return [{**asdict(check), "state": check.state.value} for check in self.checks]

    def lines(self, style: Style | None = None, *, all_rows: bool = False, details: bool = False) -> Iterable[Line]:
        """See ``Result``."""
        areas = [None, *(check.area for check in self.checks)]
        shown = style or Style()
        lines = [line for check, area in zip(self.checks, areas, strict=False) for line in check_lines(check, area, shown)]
        return [*lines, Line(self.summary())]

    def summary(self) -> str:
        """The number of problems and notes."""
        return f"{counted(self.problems, 'problem')}, {counted(self.notes, 'note')}"
