"""Directories in memory where the system has such a place: the job syncs every file, which a disk pays for."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for a while."""
    root = Path(tempfile.mkdtemp(prefix="scratch-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
