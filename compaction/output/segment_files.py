"""Renames and removes the files of segments by suffix: ``.clean``, ``.cleaned``, ``.swap``, ``.deleted``.

Mirrors ``LogSegment.changeFileSuffixes``, ``LocalLog.deleteSegmentFiles`` and ``LogLoader.removeTempFilesAndCollectSwapFiles``.
"""

from __future__ import annotations

from collections.abc import Iterable

from compaction.names import CLEAN, CLEANED, DELETED, LOG, SEGMENT_KINDS, SWAP, parse_segment_file, segment_file
from compaction.storage.filesystem import FileSystem, join


def change_suffixes(
    fs: FileSystem, log_path: str, base_offset: int, old: str, new: str, kinds: Iterable[str] = SEGMENT_KINDS
) -> None:
    """Rename a segment's files from one suffix to another, the log first; kinds that do not exist are skipped."""
    for kind in kinds:
        if exists(fs, log_path, base_offset, kind, old):
            source, target = (join(log_path, segment_file(base_offset, kind, suffix)) for suffix in (old, new))
            fs.rename(source, target)


def exists(fs: FileSystem, log_path: str, base_offset: int, kind: str, suffix: str) -> bool:
    return fs.stat(join(log_path, segment_file(base_offset, kind, suffix))) is not None


def any_log(fs: FileSystem, log_path: str) -> str | None:
    """The path of a segment's log file in a partition directory, if it has one."""
    return next((join(log_path, name) for name in fs.listdir(log_path) if name.endswith(LOG)), None)


def is_unfinished(name: str) -> bool:
    """Whether a file belongs to an output that no swap has renamed yet: ``.clean``, ``.clean.<attempt>`` or ``.cleaned``."""
    file = parse_segment_file(name)
    return file is not None and (file.suffix in (CLEAN, CLEANED) or file.suffix.startswith(CLEAN + "."))


def discard_unfinished(fs: FileSystem, log_path: str) -> int:
    """Remove the unfinished outputs of tasks and of a broker's cleaner; returns the number of files removed.

    While there are ``.swap`` files, ``.cleaned`` files are kept: they say that the segments to be replaced still count.
    """
    every = fs.listdir(log_path)
    swapping = any(name.endswith(SWAP) for name in every)
    names = [name for name in every if is_unfinished(name) and not (swapping and name.endswith(CLEANED))]
    for name in names:
        fs.unlink(join(log_path, name))
    return len(names)


def remove_deleted(fs: FileSystem, log_path: str) -> int:
    """Remove a log's ``.deleted`` files; returns the bytes freed."""
    freed = 0
    for name in fs.listdir(log_path):
        file = parse_segment_file(name)
        if file is None or not file.suffix.endswith(DELETED):
            continue
        stat = fs.stat(join(log_path, name))
        freed += 0 if stat is None else stat.size
        fs.unlink(join(log_path, name))
    return freed
