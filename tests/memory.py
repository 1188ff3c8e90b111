"""Temporary files in memory, if the system has a file system there with space: every run flushes its files, and removes most of
them, which takes two hundred times as long on a disk. What is special about disks is tested in ``/var/tmp``."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - directories of their own are made there
#: free bytes: about one gibibyte was in use when the suites were looked at
_SPACE = 6 << 30


def use_memory() -> None:
    """The temporary files of this process and of those that it starts, unless ``TMPDIR`` names a place."""
    if "TMPDIR" not in os.environ and _has_space():
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


def _has_space() -> bool:
    if not os.access(_MEMORY, os.W_OK | os.X_OK):
        return False
    system = os.statvfs(_MEMORY)
    return system.f_bavail * system.f_frsize >= _SPACE and not system.f_flag & os.ST_NOEXEC


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary directory, also of a program that has not asked for memory."""
    use_memory()
    root = Path(tempfile.mkdtemp(prefix="scratch-"))
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)
