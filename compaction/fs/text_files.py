"""Reads and writes small files: configuration in, checkpoints in, reports out.

What is small is bounded: a file of hundreds of megabytes in place of a checkpoint must not take the memory of the whole run.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from compaction.errors import CorruptLogError, StorageError, UsageError
from compaction.fs.contents import digest_of, find_mismatch
from compaction.fs.filesystem import ReadableFileSystem

#: what a checkpoint, a snapshot or a configuration file may take: a checkpoint of a million partitions does not
MAX_SMALL_BYTES = 64 << 20
#: what an index may take: that of a segment of 2 GiB with an entry for each of its batches does not
MAX_INDEX_BYTES = 512 << 20
#: a broker may be replacing the file
_ATTEMPTS = 5
_PERMISSIONS = 0o777
_NEW_FILE = 0o666


def read_text(path: str, encoding: str = "utf-8") -> str:
    """The whole text of a file that the user named.

    :raises UsageError: missing, no file, not readable, not in that encoding, too large
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_SMALL_BYTES + 1)
        if len(data) > MAX_SMALL_BYTES:
            raise UsageError(_too_large(MAX_SMALL_BYTES), path=path, hint="give a configuration file")
        # any line end, as in a file that is opened for text
        return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=path, hint="check the name and its permissions") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"is not {encoding} text", path=path, position=error.start, hint=f"save it as {encoding}") from None


def read_small(fs: ReadableFileSystem, path: str, hint: str, limit_bytes: int = MAX_SMALL_BYTES) -> bytes:
    """The whole of a file of a log directory that is small if it is what its name says.

    :param hint: what to do about one that is not
    :raises CorruptLogError: it is larger than ``limit_bytes``, or no file (to open a pipe waits for ever)
    :raises StorageError: the file system refused
    """
    found = fs.stat(path)
    if found is not None and not (found.is_file or found.is_dir):
        raise CorruptLogError("is no regular file", path=path, hint=hint)
    size = 0 if found is None else found.size
    data = b"" if size > limit_bytes else fs.read_bytes(path, 0, limit_bytes + 1)
    if max(size, len(data)) > limit_bytes:
        raise CorruptLogError(_too_large(limit_bytes), path=path, hint=hint)
    return data


def read_small_text(fs: ReadableFileSystem, path: str, hint: str, encoding: str = "utf-8") -> str:
    """As ``read_small``, as text. No checksum protects such files: what is read is what the device gives once more.

    :raises CorruptLogError: it is no text either
    :raises StorageError: each time something else is read
    """
    for _ in range(_ATTEMPTS):
        data = read_small(fs, path, hint)
        if find_mismatch(fs, path, digest_of(data)) is None:
            break
    else:
        what = "file is read differently each time"
        raise StorageError(what, path=path, hint="check the disk, and that nothing else works on this directory")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise CorruptLogError("is no text", path=path, position=error.start, hint=hint) from None


def _too_large(limit_bytes: int) -> str:
    return f"is larger than {limit_bytes >> 20} MiB, which no such file is"


def check_writable(path: str) -> None:
    """Checks before a run that a file can be written at its end.

    :raises UsageError: the directory is missing or not writable, or there is a directory of that name
    """
    target = Path(path)
    if target.is_dir():
        raise UsageError("is a directory", path=path, hint="give the name of a file")
    if not target.parent.is_dir():
        raise UsageError("its directory does not exist", path=path, hint=f"make {target.parent} or choose another place")
    if not os.access(target.parent, os.W_OK):
        raise UsageError("its directory cannot be written to", path=path, hint="choose another place")


def write_text(path: str, text: str) -> None:
    """Puts a file in place in one step, so that a reader sees the old one or the whole new one. It keeps the mode of the file
    that it replaces.

    What is written first has a name that nobody can guess, and is never something that is there already: in a directory where
    others may write, a link under a known name would lead to any file of this user's.

    :raises StorageError: the file system refused
    """
    target = Path(path)
    beside = target.with_name(f".{secrets.token_hex(16)}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _NEW_FILE)
        try:
            with os.fdopen(descriptor, "wb") as file:
                _keep_mode(target, descriptor)
                file.write(text.encode("utf-8", "backslashreplace"))
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", path=path) from None


def _keep_mode(target: Path, descriptor: int) -> None:
    with suppress(FileNotFoundError):
        found = target.lstat()
        if stat.S_ISREG(found.st_mode):
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) & _PERMISSIONS)
