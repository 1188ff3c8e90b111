"""Policies through time as one self-contained HTML page that opens from disk and loads nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compaction.simulation.result import OverTime


def to_html(result: OverTime) -> str:
    return str(result)
