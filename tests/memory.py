"""Directories in memory, if the system has a file system there: the job flushes every file, which is slow on a disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of its own is made there


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary directory."""
    root = Path(tempfile.mkdtemp(prefix="scratch-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
