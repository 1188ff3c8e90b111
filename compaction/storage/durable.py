"""Replaces a file so that after a crash either the old or the new content is there, whole.

Mirrors ``CheckpointFile.write`` (Kafka 4.3.0): a ``.tmp`` beside it, fsynced, renamed over it; then the directory is fsynced.
"""

from __future__ import annotations

from compaction.errors import StorageError
from compaction.storage.filesystem import FileStat, FileSystem, parent

TMP = ".tmp"


def replace_file(fs: FileSystem, path: str, data: bytes, *, like: FileStat | None = None, mtime_ns: int | None = None) -> None:
    """Put ``data`` in place of ``path``'s content, safe on return.

    Mode and owner stay those of the file replaced, or become those of ``like`` where there was none.

    :raises StorageError: the old content is untouched, and no ``.tmp`` is left unless the disk refuses that too
    """
    temporary = path + TMP
    try:
        fs.write_file(temporary, data, fs.stat(path) or like)
        if mtime_ns is not None:
            fs.utime(temporary, mtime_ns)
        fs.fsync(temporary)
        fs.rename(temporary, path)
    except StorageError:
        _forget(fs, temporary)
        raise
    fs.fsync_dir(parent(path))


def _forget(fs: FileSystem, path: str) -> None:
    try:
        fs.unlink(path)
    except StorageError:
        return
