"""Counts the bytes that running tasks have read, for the progress of a run.

Each process writes its count to its own file, in a directory that only this user can enter and that ``VARIABLE`` names; the
driver adds them up. (Spark sends accumulators when a task ends.) If the driver shares no directory with its executors, the
variable is not set, and only finished tasks count.
"""

from __future__ import annotations

import os
import struct
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

#: environment variable of the tasks' processes with the directory
VARIABLE = "KAFKA_LOG_COMPACTION_READ_COUNTS"
_COUNT = struct.Struct("<q")


class _ProcessCount:
    """The count of this process, and its file."""

    lock = threading.Lock()
    #: process and directory of the file: a forked process needs another file
    owner: tuple[int, str] | None = None
    descriptor = -1
    total = 0


def count(read_bytes: int) -> None:
    """Counts bytes that this process has read, if ``VARIABLE`` is set. A failure to count does not fail the task."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return
    with _ProcessCount.lock, suppress(OSError):
        if _ProcessCount.owner != (os.getpid(), directory):
            _ProcessCount.descriptor, _ = tempfile.mkstemp(dir=directory)
            _ProcessCount.owner, _ProcessCount.total = (os.getpid(), directory), 0
        _ProcessCount.total += read_bytes
        os.pwrite(_ProcessCount.descriptor, _COUNT.pack(_ProcessCount.total), 0)


def total(directory: str) -> int:
    """The bytes that all processes have read so far."""
    counts = 0
    with suppress(OSError):
        for file in Path(directory).iterdir():
            data = file.read_bytes()
            counts += _COUNT.unpack(data)[0] if len(data) == _COUNT.size else 0
    return counts
