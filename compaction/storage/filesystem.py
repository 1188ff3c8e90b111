"""The file operations of a run, behind one protocol, so that a test can stop a run before and after each of them.

Rules: a rename replaces its target at once; bytes are safe after ``fsync``, names (created, renamed, removed) after
``fsync_dir`` of their directory, and nothing earlier is. Every ``OSError`` becomes a :class:`StorageError` that names the
path and says what to do.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat as stat_bits
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from compaction.errors import StorageError
from compaction.storage.places import is_remote, split
from compaction.storage.ranges import View

_HINTS = {
    errno.ENOSPC: "free some space on this disk and run again; nothing was lost",
    errno.EDQUOT: "raise the quota or free some space and run again; nothing was lost",
    errno.EACCES: "run as the user that owns the log directory (the broker's)",
    errno.EPERM: "run as the user that owns the log directory (the broker's)",
    errno.EROFS: "mount it for writing, or use --output-dir to leave it as it is",
    errno.ENOENT: "it vanished; make sure that no broker and no other job works on this directory",
    errno.EIO: "the disk reports an error; check it before anything else",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
_COPY_BLOCK = 8 * 1024 * 1024


class FileStat(NamedTuple):
    """What is known of a file without opening it. ``mode`` holds permission bits only."""

    size: int
    mtime_ns: int
    mode: int
    uid: int
    gid: int
    inode: int
    is_dir: bool
    is_file: bool


class Extent(NamedTuple):
    """A stretch of a real file: ``size`` bytes from byte ``start``."""

    path: str
    start: int
    size: int


class FileSystem(Protocol):
    """What storage needs of a file system. Paths are strings; a missing file is ``None`` for ``stat``, else an error."""

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def stat(self, path: str) -> FileStat | None:
        """What ``path`` is, symbolic links followed; ``None`` when there is no such thing."""

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes from ``start``, at most ``length`` of them."""

    def view(self, path: str) -> View:
        """The whole file as uint8[n] without reading it; changes to the array never reach the file. The bytes of a remote file
        are fetched as they are looked at."""

    def real_path(self, path: str) -> Extent:
        """The real file, and the stretch of it, that holds ``path``'s bytes."""

    def in_memory(self, path: str) -> bool:
        """Whether a file has no real file behind it (a dry run's rebuilt index)."""

    def write_file(self, path: str, data: bytes, like: FileStat | None = None) -> None:
        """Create or replace a file's content, not yet safe; mode and owner as ``like``."""

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        """Copy bytes into a new file, not yet safe; mode, owner and mtime as the source's."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name at once, in place of any file of that name."""

    def unlink(self, path: str) -> None:
        """Remove a file; no error when it is gone already."""

    def mkdir(self, path: str, like: FileStat | None = None) -> None:
        """Make a directory and the missing ones above it; a new one takes mode and owner of ``like``."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def utime(self, path: str, mtime_ns: int) -> None:
        """Set the time of last modification."""

    def fsync(self, path: str) -> None:
        """Make a file's bytes safe."""

    def fsync_dir(self, path: str) -> None:
        """Make a directory's names safe."""


class storage_errors:  # noqa: N801
    """Turns an ``OSError`` of its block into a :class:`StorageError` that says what failed, where, and what to do."""

    __slots__ = ("_doing", "_path")

    def __init__(self, path: str, doing: str) -> None:
        self._path, self._doing = path, doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, OSError):
            reason = error.strerror or type(error).__name__
            hint = _HINTS.get(error.errno or 0, "solve this and run again; nothing was lost")
            raise StorageError(f"cannot {self._doing}: {reason}", path=self._path, hint=hint) from error


class LocalFileSystem:
    """Files of this machine, or of a mounted shared disk.

    A run over thousands of logs asks for a hundred thousand of them: what it asks most goes without a ``Path``, which takes as
    long to make as the system takes to answer.
    """

    def listdir(self, path: str) -> list[str]:
        with storage_errors(path, "list the directory"), os.scandir(path) as entries:
            return sorted(entry.name for entry in entries)

    def stat(self, path: str) -> FileStat | None:
        with storage_errors(path, "look at the file"):
            try:
                found = os.stat(path)  # noqa: PTH116
            except (FileNotFoundError, NotADirectoryError):
                return None
        mode = found.st_mode
        is_dir, is_file = stat_bits.S_ISDIR(mode), stat_bits.S_ISREG(mode)
        bits = stat_bits.S_IMODE(mode)
        return FileStat(found.st_size, found.st_mtime_ns, bits, found.st_uid, found.st_gid, found.st_ino, is_dir, is_file)

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        with storage_errors(path, "read"), open(path, "rb") as file:  # noqa: PTH123
            if start:
                file.seek(start)
            return file.read() if length is None else file.read(length)

    def view(self, path: str) -> NDArray[np.uint8]:
        with storage_errors(path, "read"), open(path, "rb") as file:  # noqa: PTH123
            if os.fstat(file.fileno()).st_size == 0:
                return np.empty(0, np.uint8)
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)

    def real_path(self, path: str) -> Extent:
        found = self.stat(path)
        return Extent(path, 0, 0 if found is None else found.size)

    def in_memory(self, path: str) -> bool:
        return False

    def write_file(self, path: str, data: bytes, like: FileStat | None = None) -> None:
        with storage_errors(path, "write"):
            Path(path).write_bytes(data)
            take_after(Path(path), like)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        like = self.stat(source)
        with storage_errors(target, f"copy {source} here"), Path(source).open("rb") as reader:
            with Path(target).open("wb") as writer:
                if start == 0 and length is None:
                    shutil.copyfileobj(reader, writer, _COPY_BLOCK)
                else:
                    _copy_stretch(reader.fileno(), writer.write, start, length)
            take_after(Path(target), like)
            if like is not None:
                os.utime(target, ns=(like.mtime_ns, like.mtime_ns))

    def rename(self, source: str, target: str) -> None:
        with storage_errors(source, f"rename to {base_name(target)}"):
            os.replace(source, target)  # noqa: PTH105

    def unlink(self, path: str) -> None:
        with storage_errors(path, "remove"):
            try:
                os.unlink(path)  # noqa: PTH108
            except FileNotFoundError:
                return

    def mkdir(self, path: str, like: FileStat | None = None) -> None:
        with storage_errors(path, "make the directory"):
            if not Path(path).is_dir():
                Path(path).mkdir(parents=True, exist_ok=True)
                take_after(Path(path), like)

    def rmdir(self, path: str) -> None:
        with storage_errors(path, "remove the directory"):
            Path(path).rmdir()

    def utime(self, path: str, mtime_ns: int) -> None:
        with storage_errors(path, "set the time of"):
            os.utime(path, ns=(mtime_ns, mtime_ns))

    def fsync(self, path: str) -> None:
        _sync(path, os.O_RDONLY)

    def fsync_dir(self, path: str) -> None:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def join(directory: str, *names: str) -> str:
    """A path under a directory; plain strings, since planning asks for many thousands."""
    return "/".join((directory.rstrip("/"), *names))


def parent(path: str) -> str:
    """The directory that holds ``path``."""
    if is_remote(path):
        return path.rpartition("/")[0] if split(path)[1] else path
    return normal(path).rpartition("/")[0] or str(Path(path).parent)


def base_name(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2] if is_remote(path) else normal(path).rpartition("/")[2]


def normal(path: str) -> str:
    """One spelling of a path, links not followed."""
    if is_remote(path):
        return path.rstrip("/")
    # nearly all have it already; planning asks for many thousands
    usual = path.startswith("/") and "//" not in path and "/." not in path and not path.endswith("/")
    return path if usual else str(Path(path))


def _sync(path: str, flags: int) -> None:
    with storage_errors(path, "flush to disk"):
        descriptor = os.open(path, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _copy_stretch(source: int, write: Callable[[bytes], object], start: int, length: int | None) -> None:
    end = os.fstat(source).st_size if length is None else start + length
    while start < end:
        block = os.pread(source, min(_COPY_BLOCK, end - start), start)
        if not block:
            return
        write(block)
        start += len(block)


def take_after(path: Path, like: FileStat | None) -> None:
    """Mode and owner of the file that this one stands in for; an unprivileged user's owner change is no error."""
    if like is None:
        return
    path.chmod(like.mode)
    found = path.stat()
    if (found.st_uid, found.st_gid) != (like.uid, like.gid):
        try:
            os.chown(path, like.uid, like.gid)
        except PermissionError:
            return
