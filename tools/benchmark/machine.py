"""The machine on which a benchmark ran."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> str:
    """The machine, for the table."""
    model = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    return f"{model or platform.machine()}, {cores} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, " + (
        f"Python {platform.python_version()}"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
