"""A quick estimate, by names, sizes and times, of whether a log directory has many bytes to clean."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache

from compaction.fs.filesystem import join
from compaction.fs.uri import is_remote
from compaction.names import CLEANER_OFFSETS, LOG, LogLocation


def has_dirty_bytes(logs: Iterable[LogLocation], size_bytes: int) -> bool:
    """Whether at least ``size_bytes`` of the logs' segments were written after the cleaner's checkpoint.

    Cleaned segments keep the modification times of their sources. URIs and unreadable directories are ignored.
    """
    left, cleaned = size_bytes, cache(_mtime_s)
    for log in logs:
        if is_remote(log.path):
            continue
        try:
            left -= _dirty_bytes(log.path, cleaned(join(log.log_dir, CLEANER_OFFSETS)))
        except OSError:
            # the run reports the error when it reads the log
            continue
        if left <= 0:
            return True
    return False


def _dirty_bytes(log_path: str, since_s: float) -> int:
    with os.scandir(log_path) as entries:
        found = [entry.stat() for entry in entries if entry.name.endswith(LOG)]
    return sum(each.st_size for each in found if each.st_mtime > since_s)


def _mtime_s(path: str) -> float:
    """The modification time of a file, in seconds; 0 if it is missing."""
    try:
        return os.stat(path).st_mtime  # noqa: PTH116
    except FileNotFoundError:
        return 0.0
