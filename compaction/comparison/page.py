"""A comparison as a page."""

from __future__ import annotations

from compaction.comparison.figures import Comparison


def to_html(comparison: Comparison) -> str:
    """The page."""
    return f"<!doctype html><title>{len(comparison.logs)}</title>\n"
