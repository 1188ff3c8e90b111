"""Commands with another last step: what executes the checked request of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any
from unittest.mock import patch


def executed(command: ModuleType, argv: Sequence[str], execute: Callable[[Any, Any], Any] | None = None) -> int:
    """Runs a command; ``execute`` takes the engine and the request in place of its own. Returns the exit code."""
    with nullcontext() if execute is None else patch.object(command, "execute", execute):
        code: int = command.main(argv)
        return code
