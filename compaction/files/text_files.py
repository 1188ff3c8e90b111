"""Reads configuration files and checkpoints, writes reports.

Sizes are limited: a file of hundreds of megabytes in place of a checkpoint must not exhaust the run's memory.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from compaction.errors import CorruptLogError, StorageError, UsageError
from compaction.files.contents import digest_of, find_mismatch
from compaction.files.filesystem import ReadableFileSystem

#: limit of a checkpoint, snapshot or configuration file; a checkpoint of a million partitions is smaller
MAX_SMALL_BYTES = 64 << 20
#: limit of an index; that of a 2 GiB segment with an entry for each batch is smaller
MAX_INDEX_BYTES = 512 << 20
#: reads of a file that a broker may be replacing
_ATTEMPTS = 5
_PERMISSIONS = 0o777
#: modes of new files: as the umask says, and readable by their owner only
NEW_FILE, PRIVATE = 0o666, 0o600


def read_text(path: str, encoding: str = "utf-8") -> str:
    """The text of a file named by the user.

    :raises UsageError: the file is missing, not a file, not readable, not in that encoding, or too large
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_SMALL_BYTES + 1)
        if len(data) > MAX_SMALL_BYTES:
            raise UsageError(_too_large(MAX_SMALL_BYTES), path=path, hint="give a configuration file")
        # any line ending, as in text mode
        return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", path=path, hint="check the name and its permissions") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"is not {encoding} text", path=path, position=error.start, hint=f"save it as {encoding}") from None


def read_small(fs: ReadableFileSystem, path: str, hint: str, limit_bytes: int = MAX_SMALL_BYTES) -> bytes:
    """The content of a file of a log directory that must be small.

    :param hint: the remedy for an invalid file
    :raises CorruptLogError: it is larger than ``limit_bytes``, or not a regular file (opening a pipe would block)
    :raises StorageError: the file system refused
    """
    stat = fs.stat(path)
    if stat is not None and not (stat.is_file or stat.is_dir):
        raise CorruptLogError("is not a regular file", path=path, hint=hint)
    size = 0 if stat is None else stat.size
    data = b"" if size > limit_bytes else fs.read_bytes(path, 0, limit_bytes + 1)
    if max(size, len(data)) > limit_bytes:
        raise CorruptLogError(_too_large(limit_bytes), path=path, hint=hint)
    return data


def read_confirmed(fs: ReadableFileSystem, path: str, hint: str, limit_bytes: int = MAX_SMALL_BYTES) -> bytes:
    """Like ``read_small``, for files without a checksum: the content is confirmed by a second read from the device.

    :raises StorageError: repeated reads differ
    """
    for _ in range(_ATTEMPTS):
        data = read_small(fs, path, hint, limit_bytes)
        if find_mismatch(fs, path, digest_of(data)) is None:
            return data
    message = "repeated reads of the file differ"
    raise StorageError(message, path=path, hint="check the disk, and that nothing else works on this directory")


def read_small_text(fs: ReadableFileSystem, path: str, hint: str, encoding: str = "utf-8") -> str:
    """Like ``read_confirmed``, decoded.

    :raises CorruptLogError: the content is not in that encoding
    """
    try:
        return read_confirmed(fs, path, hint).decode(encoding)
    except UnicodeDecodeError as error:
        raise CorruptLogError("is not text", path=path, position=error.start, hint=hint) from None


def _too_large(limit_bytes: int) -> str:
    return f"is larger than {limit_bytes >> 20} MiB, the limit for such files"


def check_writable(path: str) -> None:
    """Check before a run that a file can be written when it ends.

    :raises UsageError: the directory is missing or not writable, or ``path`` is a directory
    """
    target = Path(path)
    if target.is_dir():
        raise UsageError("is a directory", path=path, hint="give the name of a file")
    if not target.parent.is_dir():
        raise UsageError("its directory does not exist", path=path, hint=f"make {target.parent} or choose another directory")
    if not os.access(target.parent, os.W_OK):
        raise UsageError("its directory cannot be written to", path=path, hint="choose another directory")


def write_text(path: str, text: str, mode: int = NEW_FILE) -> None:
    """Write a file atomically: a reader sees either the old or the new content. A replaced file's mode is kept.

    :param mode: of a new file, less what the umask forbids

    The temporary file has an unguessable name and must not exist: in a directory that others may write to, a link planted under
    a known name could lead to any file of this user.

    :raises StorageError: the file system refused
    """
    target = Path(path)
    beside = target.with_name(f".{secrets.token_hex(16)}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
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


def remove_text(path: str) -> None:
    """Remove a file that ``write_text`` wrote, if it exists."""
    Path(path).unlink(missing_ok=True)


def _keep_mode(target: Path, descriptor: int) -> None:
    with suppress(FileNotFoundError):
        mode_of = target.lstat()
        if stat.S_ISREG(mode_of.st_mode):
            os.fchmod(descriptor, stat.S_IMODE(mode_of.st_mode) & _PERMISSIONS)
