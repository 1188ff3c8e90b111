"""A quick estimate, by names, sizes and times, of whether a log directory has many bytes to clean."""

from __future__ import annotations

import os
from collections.abc import Iterable

from compaction.fs.filesystem import join
from compaction.fs.uri import is_remote
from compaction.logdir.discover import Selector
from compaction.names import CLEANER_OFFSETS, LOG, parse_partition_dir


def has_dirty_bytes(log_dirs: Iterable[str], selector: Selector, size_bytes: int) -> bool:
    """Whether at least ``size_bytes`` of the selected logs' segments were written after the cleaner's checkpoint.

    Cleaned segments keep the modification times of their sources. URIs and unreadable directories are ignored.
    """
    left = size_bytes
    for log_dir in log_dirs:
        if is_remote(log_dir):
            continue
        try:
            cleaned = _mtime_s(join(log_dir, CLEANER_OFFSETS))
            with os.scandir(log_dir) as entries:
                logs = [entry for entry in entries if _is_selected(entry, selector)]
            for log in logs:
                left -= _dirty_bytes(log.path, cleaned)
                if left <= 0:
                    return True
        except OSError:
            # the run reports the error when it reads the logs
            continue
    return False


def _is_selected(entry: os.DirEntry[str], selector: Selector) -> bool:
    topic_partition = parse_partition_dir(entry.name)
    return topic_partition is not None and selector.matches(topic_partition) and entry.is_dir()


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
