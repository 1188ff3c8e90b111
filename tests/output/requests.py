"""Requests of copies."""

from __future__ import annotations

from typing import Any

from compaction.config.request import CompactionRequest


def copying(*log_dirs: str, **options: Any) -> CompactionRequest:
    return CompactionRequest(log_dirs, (), 0, **options)
