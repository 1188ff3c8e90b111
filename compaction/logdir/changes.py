"""Detects changes to a log since it was read: a broker may be running during a dry run, or another process has changed a log
that is about to be replaced.
"""

from __future__ import annotations

from collections.abc import Iterable

from compaction.cleaning.log_view import LogView, Segment
from compaction.errors import StorageError
from compaction.logdir.segments import identity_of, segment_bases
from compaction.names import LOG, segment_file
from compaction.storage.filesystem import ReadableFileSystem, join

_HINT = "make sure that no broker and no other job works on this directory, and run again"


def has_changed(fs: ReadableFileSystem, view: LogView) -> bool:
    """Whether segments were added, removed or written to since ``view`` was made."""
    try:
        if segment_bases(fs, view.path) != [segment.base_offset for segment in view.segments]:
            return True
        return any(_changed(fs, fs, view.path, segment) for segment in view.segments)
    except StorageError:
        return True


def require_unchanged(fs: ReadableFileSystem, disk: ReadableFileSystem, log_path: str, segments: Iterable[Segment]) -> None:
    """:raises StorageError: a segment has changed, or was replaced by another file

    :param fs: the file system from which the log was read, possibly an overlay
    :param disk: the file system below
    """
    for segment in segments:
        if _changed(fs, disk, log_path, segment):
            path = join(log_path, segment_file(segment.base_offset, LOG))
            raise StorageError("segment has changed since it was read; the log is unchanged", path=path, hint=_HINT)


def _changed(fs: ReadableFileSystem, disk: ReadableFileSystem, log_path: str, segment: Segment) -> bool:
    path = join(log_path, segment_file(segment.base_offset, LOG))
    if fs.stat(path) is None:
        return True
    real = fs.real_path(path)
    if real is None:
        return False
    found = disk.stat(real.path)
    if found is None or found.mtime_ns != segment.mtime_ns or found.size < segment.size_bytes:
        return True
    return segment.identity is not None and segment.identity != identity_of(found)
