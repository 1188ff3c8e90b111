"""Carries out on the disk the repairs that recovery made in memory.

A repaired log is written when it is swapped or its segments are deleted, and not before: a log that fails is not changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from compaction.cleaning.log_view import Segment
from compaction.errors import StorageError
from compaction.logdir.changes import require_unchanged
from compaction.output.verification import copy_verified
from compaction.storage.durable import Steps, names_in, verified_file
from compaction.storage.filesystem import FileSystem
from compaction.storage.overlay import Copied, NamesSynced, Operation, OverlayFileSystem, Removed, Renamed, Written


def write_repairs(overlay: OverlayFileSystem, disk: FileSystem, log_path: str, segments: Iterable[Segment]) -> Steps[None]:
    """Carries out on ``disk`` what recovery did to a log in ``overlay``. New files are durable and read back from the device
    before they are renamed.

    :param segments: all segments of the log, as read through ``overlay``
    :raises StorageError: a segment has changed since, and nothing was changed; or the file system refused, and files that have
        no durable name yet are removed if possible
    """
    operations = overlay.operations(log_path)
    if operations:
        require_unchanged(overlay, disk, log_path, segments)
    unnamed: set[str] = set()
    try:
        for operation in operations:
            if isinstance(operation, Written | Copied) and disk.stat(operation.path) is None:
                unnamed.add(operation.path)
            yield from _carry_out(disk, operation, unnamed)
    except StorageError:
        for path in unnamed:
            with suppress(StorageError):
                disk.unlink(path)
        raise


def _carry_out(fs: FileSystem, operation: Operation, unnamed: set[str]) -> Steps[None]:
    match operation:
        case Written(path, data, like, mtime_ns):
            yield from verified_file(fs, path, data, like=like, mtime_ns=mtime_ns)
        case Copied(source, path):
            copy_verified(fs, fs, source, path)
        case Renamed(source, path):
            fs.rename(source, path)
            unnamed.discard(source)
        case Removed(path):
            fs.unlink(path)
        case NamesSynced(path):
            yield names_in(path)
            # from here on the next recovery knows what they are for
            unnamed.clear()
