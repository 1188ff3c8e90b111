"""Counts the bytes that running tasks have read, for the progress of a run.

A worker process of this package has a place in a file of its driver (``count_at``). On Spark each process writes its count to
its own file, in a directory that only this user can enter and that ``VARIABLE`` names; the driver adds them up. (Spark sends
accumulators when a task ends.) If the driver shares no directory with its executors, the variable is not set, and only finished
tasks count.
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
#: bytes of a count
SIZE = _COUNT.size


class _ProcessCount:
    """The count of this process, and its place: ``position`` in an open file."""

    lock = threading.Lock()
    #: process and directory of the file: a forked process needs another file
    owner: tuple[int, str] | None = None
    descriptor = -1
    position = 0
    total = 0


def count_at(descriptor: int, number: int) -> None:
    """This process is a worker, and counts into an open file: its count is that of ``number``."""
    os.environ.pop(VARIABLE, None)
    _ProcessCount.owner = (os.getpid(), "")
    _ProcessCount.descriptor, _ProcessCount.position, _ProcessCount.total = descriptor, number * SIZE, 0


def count(read_bytes: int) -> None:
    """Counts bytes that this process has read, if it has a place for them. A failure to count does not fail the task."""
    owner = (os.getpid(), os.environ.get(VARIABLE, ""))
    if owner[1] == "" and _ProcessCount.owner != owner:
        return
    with _ProcessCount.lock, suppress(OSError):
        if _ProcessCount.owner != owner:
            _ProcessCount.descriptor, _ = tempfile.mkstemp(dir=owner[1])
            _ProcessCount.owner, _ProcessCount.position, _ProcessCount.total = owner, 0, 0
        _ProcessCount.total += read_bytes
        os.pwrite(_ProcessCount.descriptor, _COUNT.pack(_ProcessCount.total), _ProcessCount.position)


def sum_of(data: bytes) -> int:
    return sum(value for (value,) in _COUNT.iter_unpack(data))


def total(directory: str) -> int:
    """The bytes that all processes have read so far."""
    counts = 0
    with suppress(OSError):
        for file in Path(directory).iterdir():
            data = file.read_bytes()
            counts += sum_of(data) if len(data) == SIZE else 0
    return counts
