"""The result of one check of ``doctor``.

Tested by ``tests/jobs/test_doctor.py``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


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
