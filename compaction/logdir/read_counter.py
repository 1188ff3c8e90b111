"""Counts the bytes that the tasks of a run read, while they read them, for its progress.

Each process writes its count to a file of its own, in a directory that only this user can enter and that ``VARIABLE`` names;
the driver adds them up. (Spark sends accumulators when a task ends.) Where the driver shares no directory with its executors,
the variable is not set, and only finished tasks count.
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


class _Own:
    """The count of this process, and of the file that has it."""

    lock = threading.Lock()
    #: what the file belongs to: a forked process needs another one
    owner: tuple[int, str] | None = None
    descriptor = -1
    total = 0


def count(read_bytes: int) -> None:
    """Counts bytes that this process has read, if somebody wants to know. No error of that is one of the work."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return
    with _Own.lock, suppress(OSError):
        if _Own.owner != (os.getpid(), directory):
            _Own.descriptor, _ = tempfile.mkstemp(dir=directory)
            _Own.owner, _Own.total = (os.getpid(), directory), 0
        _Own.total += read_bytes
        os.pwrite(_Own.descriptor, _COUNT.pack(_Own.total), 0)


def total(directory: str) -> int:
    """The bytes that all processes have read so far."""
    counts = 0
    with suppress(OSError):
        for file in Path(directory).iterdir():
            data = file.read_bytes()
            counts += _COUNT.unpack(data)[0] if len(data) == _COUNT.size else 0
    return counts
