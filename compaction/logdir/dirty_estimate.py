"""Whether a log directory has got much since it was last cleaned; a guess by names, sizes and times, in a moment."""

from __future__ import annotations

import os
from collections.abc import Iterable

from compaction.fs.filesystem import join
from compaction.fs.uri import is_remote
from compaction.logdir.discover import Selector
from compaction.names import CLEANER_OFFSETS, LOG, parse_partition_dir


def has_dirty_bytes(log_dirs: Iterable[str], selector: Selector, size_bytes: int) -> bool:
    """Whether so many bytes of the chosen logs' segments were written after the cleaner's checkpoint; addresses, and what
    cannot be read, count for nothing.

    Segments that cleaning wrote keep the times of their sources.
    """
    left = size_bytes
    for log_dir in log_dirs:
        if is_remote(log_dir):
            continue
        try:
            cleaned = _written(join(log_dir, CLEANER_OFFSETS))
            with os.scandir(log_dir) as entries:
                logs = [entry for entry in entries if _is_chosen(entry, selector)]
            for log in logs:
                left -= _fresh_bytes(log.path, cleaned)
                if left <= 0:
                    return True
        except OSError:
            # who reads the logs in earnest says what is wrong
            continue
    return False


def _is_chosen(entry: os.DirEntry[str], selector: Selector) -> bool:
    topic_partition = parse_partition_dir(entry.name)
    return topic_partition is not None and selector.matches(topic_partition) and entry.is_dir()


def _fresh_bytes(log_path: str, since_s: float) -> int:
    with os.scandir(log_path) as entries:
        found = [entry.stat() for entry in entries if entry.name.endswith(LOG)]
    return sum(each.st_size for each in found if each.st_mtime > since_s)


def _written(path: str) -> float:
    """When a file was written, in seconds; long ago where there is none."""
    try:
        return os.stat(path).st_mtime  # noqa: PTH116
    except FileNotFoundError:
        return 0.0
