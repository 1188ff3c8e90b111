"""Whether a log has changed since it was read: a broker may be at work while a dry run looks on, or something has touched a log
that is about to be replaced."""

from __future__ import annotations

from collections.abc import Iterable

from compaction.cleaning.model import LogView, Segment
from compaction.errors import StorageError
from compaction.names import LOG, segment_file
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.segments import segment_bases

_HINT = "make sure that no broker and no other job works on this directory, and run again"


def moved(fs: FileSystem, view: LogView) -> bool:
    """Whether segments came, went, or were written to since ``view`` was made."""
    try:
        if segment_bases(fs, view.path) != [segment.base_offset for segment in view.segments]:
            return True
        return any(_changed(fs, view.path, segment) for segment in view.segments)
    except StorageError:
        return True


def require_unmoved(fs: FileSystem, log_path: str, segments: Iterable[Segment]) -> None:
    """:raises StorageError: one of the segments is no longer what was read: another log may be in its place"""
    for segment in segments:
        if _changed(fs, log_path, segment):
            path = join(log_path, segment_file(segment.base_offset, LOG))
            raise StorageError("segment has changed since it was read; the log was left as it is", path=path, hint=_HINT)


def _changed(fs: FileSystem, log_path: str, segment: Segment) -> bool:
    found = fs.stat(join(log_path, segment_file(segment.base_offset, LOG)))
    return found is None or found.mtime_ns != segment.mtime_ns or found.size < segment.size_bytes
