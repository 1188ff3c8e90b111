"""Whether a log has changed since it was read: a broker may be at work while a dry run looks on, or something has touched a log
that is about to be replaced."""

from __future__ import annotations

from collections.abc import Iterable

from compaction.cleaning.log_view import LogView, Segment
from compaction.errors import StorageError
from compaction.fs.filesystem import ReadableFileSystem, join
from compaction.logdir.segments import identity_of, segment_bases
from compaction.names import LOG, segment_file

_HINT = "make sure that no broker and no other job works on this directory, and run again"


def has_changed(fs: ReadableFileSystem, view: LogView) -> bool:
    """Whether segments came, went, or were written to since ``view`` was made."""
    try:
        if segment_bases(fs, view.path) != [segment.base_offset for segment in view.segments]:
            return True
        return any(_changed(fs, fs, view.path, segment) for segment in view.segments)
    except StorageError:
        return True


def require_unchanged(fs: ReadableFileSystem, disk: ReadableFileSystem, log_path: str, segments: Iterable[Segment]) -> None:
    """:raises StorageError: one of the segments is no longer what was read: another log may be in its place

    :param fs: how the log was read, recovered in memory if need be
    :param disk: what lies below
    """
    for segment in segments:
        if _changed(fs, disk, log_path, segment):
            path = join(log_path, segment_file(segment.base_offset, LOG))
            raise StorageError("segment has changed since it was read; the log was left as it is", path=path, hint=_HINT)


def _changed(fs: ReadableFileSystem, disk: ReadableFileSystem, log_path: str, segment: Segment) -> bool:
    path = join(log_path, segment_file(segment.base_offset, LOG))
    if fs.stat(path) is None:
        return True
    extent = fs.real_path(path)
    if extent is None:
        return False
    found = disk.stat(extent.path)
    if found is None or found.mtime_ns != segment.mtime_ns or found.size < segment.size_bytes:
        return True
    return segment.identity is not None and segment.identity != identity_of(found)
