"""Which logs a read is of: log directories, or directories of single partitions."""

from __future__ import annotations

from collections.abc import Sequence

from compaction.logdir.discover import Selector, check_log_dirs, discover
from compaction.logdir.same_partition import require_one_directory
from compaction.logdir.segments import segment_bases
from compaction.names import LogLocation, parse_partition_dir
from compaction.storage.filesystem import FileSystem, base_name, parent
from compaction.storage.lock import require_unlocked
from compaction.storage.remote import require_finished
from compaction.storage.uri import is_remote, resolved


def read_locations(fs: FileSystem, paths: Sequence[str], selector: Selector) -> Sequence[LogLocation]:
    """The logs of log directories, and those whose own directory is given, each once.

    :raises UsageError: a path is neither, its output is unfinished, or a partition is in two directories
    :raises LockedError: a live broker holds a directory
    """
    single = [path for path in paths if _is_partition(fs, path)]
    found: dict[str, LogLocation] = {}
    for path in map(resolved, single):
        name = parse_partition_dir(base_name(path))
        _require_at_rest(parent(path))
        if name is not None and selector.matches(name):
            found[path] = LogLocation(name, parent(path), path)
    log_dirs = check_log_dirs(fs, [path for path in paths if path not in single])
    for log_dir in log_dirs:
        _require_at_rest(log_dir)
    if log_dirs or not single:
        found |= {location.path: location for location in discover(fs, log_dirs, selector)}
    logs = list(found.values())
    require_one_directory(fs, logs)
    return logs


def _require_at_rest(log_dir: str) -> None:
    """:raises UsageError: a live broker holds the directory, or its output is unfinished"""
    if is_remote(log_dir):
        require_finished(log_dir)
    else:
        require_unlocked(log_dir)


def _is_partition(fs: FileSystem, path: str) -> bool:
    status = fs.stat(path)
    if status is None or not status.is_dir or parse_partition_dir(base_name(resolved(path))) is None:
        return False
    return bool(segment_bases(fs, path))
