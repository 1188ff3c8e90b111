"""The file operations of a run, in the driver and in tasks, behind one protocol, so that a test can stop a run before and after
each of them, or make any of them fail.

Rules: a file is created under a name that was free; a rename replaces its target at once; bytes are safe after ``fsync``, names
(created, renamed, removed) after ``fsync_dir`` of their directory, and nothing earlier is. Every ``OSError`` becomes a
:class:`StorageError` that names the path and says what to do.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

from compaction.errors import StorageError
from compaction.fs.uri import is_remote, split

_HINTS = {
    errno.ENOSPC: "free some space on this disk and run again; nothing was lost",
    errno.EDQUOT: "raise the quota or free some space and run again; nothing was lost",
    errno.EACCES: "run as the user that owns the log directory (the broker's)",
    errno.EPERM: "run as the user that owns the log directory (the broker's)",
    errno.EROFS: "mount it for writing, or use --output-dir to leave it as it is",
    errno.ENOENT: "it vanished; make sure that no broker and no other job works on this directory",
    errno.EIO: "the disk reports an error; check it before anything else",
    errno.ELOOP: "a link has taken the place of a directory; find out who put it there",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


class FileStat(NamedTuple):
    """What is known of a file without opening it. ``mode`` holds permission bits only.

    ``device`` and ``inode`` name the file whatever its path is; both are 0 in an object store.
    """

    size: int
    mtime_ns: int
    mode: int
    uid: int
    gid: int
    inode: int
    is_dir: bool
    is_file: bool
    device: int = 0
    ctime_ns: int = 0


class FileRange(NamedTuple):
    """A byte range of a real file: ``size`` bytes from byte ``start``."""

    path: str
    start: int
    size: int


#: what an output takes: any bytes
Chunk = memoryview | bytes


class ByteSource(Protocol):
    """An open file that is read from front to back."""

    def size(self) -> int:
        """The whole file's bytes, now."""

    def read_into(self, view: memoryview, position: int, floor: int) -> int:
        """Fill ``view`` from ``position``: how many bytes, 0 at the end of the file. Nothing before ``floor`` is read again."""

    def close(self) -> None:
        """Release the file."""


class Output(Protocol):
    """A file being written; errors name the file and say what to do."""

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Append the chunks."""

    def copy_from(self, path: str) -> None:
        """Append all of another file of the same place."""

    def start_writeback(self) -> None:
        """No more writes follow: have the disk begin, so that ``close`` waits less."""

    def close(self, *, sync: bool, mtime_ms: int | None = None) -> None:
        """Close; with ``sync`` the bytes are safe afterwards."""

    def abandon(self) -> None:
        """Release the file, which may be closed already."""

    def remove(self) -> None:
        """Release the file and remove it."""


class ReadableFileSystem(Protocol):
    """What can be read of a place. Paths are strings; a missing file is ``None`` for ``stat``, else an error."""

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def stat(self, path: str) -> FileStat | None:
        """What ``path`` is, symbolic links followed; ``None`` when there is no such thing."""

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes from ``start``, at most ``length`` of them."""

    def reader(self, path: str, start: int, end: int, *, uncached: bool = False) -> ByteSource:
        """Opens the byte range ``[start, end)`` of a file.

        :param fresh: the device is read, not what the system remembers of the file
        """

    def real_path(self, path: str) -> FileRange | None:
        """The real file, and the byte range of it, that holds ``path``'s bytes; ``None`` if they are in memory only."""


class FileSystem(ReadableFileSystem, Protocol):
    """What storage needs of a file system: what is read, and what changes."""

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        """Create a file, not yet safe; mode, owner and extended attributes as those of the file ``like``.

        :raises StorageError: there is something of that name
        """

    def link_new(self, path: str, data: bytes, like: str) -> bool:
        """Create a small file with all of its content in one step, safe on return; ``False`` if there is something of that
        name. It has the owner of ``like``, and everybody may read it."""

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> Output:
        """Create a file to be written piece by piece; see ``write_file``.

        :param write_behind: the disk begins while there is more to come, as the file will be synced in the end
        """

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        """Copy bytes into a new file, not yet safe; mode, owner, extended attributes and mtime as the source's."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name at once, in place of any file of that name."""

    def link(self, source: str, target: str) -> bool:
        """Give a file of a directory a second name there; ``False`` if the file system knows no second names, or there is
        something of that name."""

    def unlink(self, path: str) -> None:
        """Remove a file, or a link itself; no error when it is gone already."""

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        """Make a directory and the missing ones above it, safe on return; a new one takes mode and owner of ``like``, and its
        owner may write to it.

        :param private: nobody else may enter it, and it must not be there before
        """

    def remove_tree(self, path: str) -> None:
        """Remove a file, or a directory and all in it; links are removed, never followed."""

    def fsync(self, path: str) -> None:
        """Make a file's bytes safe."""

    def fsync_dir(self, path: str) -> None:
        """Make a directory's names safe."""

    def lock(self, log_dir: str, *, shared: bool = False) -> Lock:
        """Lock a log directory as a broker does; ``shared``: with others that only read.

        :raises LockedError: a live broker or another run holds the lock
        """

    def lock_holder(self, log_dir: str) -> str | None:
        """Who else holds the lock of a log directory; takes no lock and writes nothing."""


class Lock(Protocol):
    """A held lock."""

    def release(self) -> None:
        """Give the lock back; harmless when repeated."""


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


def real_file(files: ReadableFileSystem, path: str) -> FileRange:
    """The real file, and the byte range of it, that holds ``path``'s bytes.

    :raises StorageError: they are in memory only
    """
    extent = files.real_path(path)
    if extent is None:
        raise StorageError("file exists in memory only", path=path)
    return extent


def join(directory: str, *names: str) -> str:
    """A path under a directory; plain strings, since planning asks for many thousands."""
    return "/".join((directory.rstrip("/"), *names))


def parent(path: str) -> str:
    """The directory that holds ``path``."""
    if is_remote(path) and not split(path)[1]:
        return path
    return normal(path).rpartition("/")[0] or str(Path(path).parent)


def base_name(path: str) -> str:
    """The last part of a path."""
    return normal(path).rpartition("/")[2]


def normal(path: str) -> str:
    """One spelling of a path, links not followed."""
    # nearly all have it already, and a run asks hundreds of thousands of times
    if path.startswith("/") and "//" not in path and "/./" not in path and not path.endswith(("/", "/.")):
        return path
    return path.rstrip("/") if is_remote(path) else str(Path(path))
