"""Replaces a file so that after a crash either the old or the new content is there, whole.

Mirrors ``CheckpointFile.write`` (Kafka 4.3.0): a temporary file beside it, fsynced, renamed over it; then the directory is
fsynced. Unlike Kafka's ``.tmp``, the temporary file has a name that nobody can guess, and what the device holds is read back
and compared before the rename.
"""

from __future__ import annotations

import re
import uuid

from compaction.errors import StorageError
from compaction.fs.contents import digest_of, verify_file
from compaction.fs.filesystem import FileSystem, join, parent

TMP = ".tmp"
_TEMPORARY = re.compile(r".+\.[0-9a-f]{32}\.tmp")


def replace_file(fs: FileSystem, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
    """Put ``data`` in place of ``path``'s content, safe on return.

    Mode, owner and extended attributes stay those of the file replaced, or become those of ``like`` if there was none.

    :raises StorageError: the old content is untouched, and no temporary file is left unless the disk refuses that too. The one
        exception: when the directory cannot be flushed, the new content is there and may be lost again by a power failure
    """
    temporary = f"{path}.{uuid.uuid4().hex}{TMP}"
    try:
        write_verified(fs, temporary, data, like=path if fs.stat(path) is not None else like, mtime_ns=mtime_ns)
        fs.rename(temporary, path)
    except StorageError:
        _forget(fs, temporary)
        raise
    fs.fsync_dir(parent(path))


def write_verified(fs: FileSystem, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
    """Create a file, its bytes safe on return, and compare what the device gives with ``data``.

    :raises StorageError: the file system refused, there is something of that name, or the device gives other bytes
    """
    fs.write_file(path, data, like=like, mtime_ns=mtime_ns)
    fs.fsync(path)
    verify_file(fs, path, digest_of(data))


def remove_temporary(fs: FileSystem, directory: str) -> int:
    """Remove the temporary files that killed runs left in a directory; how many there were."""
    names = [name for name in fs.listdir(directory) if _TEMPORARY.fullmatch(name)]
    for name in names:
        fs.unlink(join(directory, name))
    return len(names)


def _forget(fs: FileSystem, path: str) -> None:
    try:
        fs.unlink(path)
    except StorageError:
        return
