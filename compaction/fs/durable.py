"""Replaces a file atomically: after a crash it has either the old or the new content.

Mirrors ``CheckpointFile.write`` (Kafka 4.4.0): write a temporary file, fsync it, rename it, fsync the directory. Unlike Kafka's
``.tmp``, the temporary file has an unguessable name, and is read back from the device and compared before the rename.

Tested by ``tests/logdir/test_checkpoint_store.py``, ``tests/fs/test_local.py`` and ``tests/crash/test_trust.py``.
"""

from __future__ import annotations

import re
import uuid
from contextlib import suppress

from compaction.errors import StorageError
from compaction.fs.contents import digest_of, verify_file
from compaction.fs.filesystem import FileSystem, join, parent

TMP = ".tmp"
_TEMPORARY = re.compile(r".+\.[0-9a-f]{32}\.tmp")


def replace_file(fs: FileSystem, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
    """Replace the content of ``path`` by ``data``, durable on return.

    A replaced file keeps mode, owner and extended attributes; a new one takes those of ``like``.

    :raises StorageError: the old content is unchanged, and the temporary file is removed if possible. If only the fsync of the
        directory failed, the new content is in place, and a power failure may revert it
    """
    temporary = f"{path}.{uuid.uuid4().hex}{TMP}"
    try:
        write_verified(fs, temporary, data, like=path if fs.stat(path) is not None else like, mtime_ns=mtime_ns)
        fs.rename(temporary, path)
    except StorageError:
        with suppress(StorageError):
            fs.unlink(temporary)
        raise
    fs.fsync_dir(parent(path))


def write_verified(fs: FileSystem, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
    """Create a file, its bytes durable on return, and read it back from the device.

    :raises StorageError: the file system refused, the name is taken, or the content read back differs
    """
    fs.write_file(path, data, like=like, mtime_ns=mtime_ns)
    fs.fsync(path)
    verify_file(fs, path, digest_of(data))


def remove_temporary(fs: FileSystem, directory: str) -> int:
    """Remove the temporary files that killed runs left in a directory; returns their number."""
    names = [name for name in fs.listdir(directory) if _TEMPORARY.fullmatch(name)]
    for name in names:
        fs.unlink(join(directory, name))
    return len(names)
