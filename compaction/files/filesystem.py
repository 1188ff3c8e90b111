"""The file operations of a run, in the driver and in tasks, as protocols. Tests stop a run before and after each operation, or
make any of them fail.

Rules: a file is created only under an unused name; a rename replaces its target atomically; bytes are durable after ``fsync``,
names (created, renamed, removed) after ``fsync_dir`` of their directory, and not before. Every ``OSError`` becomes a
:class:`StorageError` that names the path and a remedy.

The syntax of a path decides its kind of storage, in ``storage_of`` alone. Other code asks the kind for a capability.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple, Protocol, TypeVar

from compaction.errors import StorageError

_HINTS = {
    errno.ENOSPC: "free some space on this disk and run again; nothing was lost",
    errno.EDQUOT: "raise the quota or free some space and run again; nothing was lost",
    errno.EACCES: "run as the user that owns the log directory (the broker's)",
    errno.EPERM: "run as the user that owns the log directory (the broker's)",
    errno.EROFS: "mount it for writing, or use --output-dir to leave it as it is",
    errno.ENOENT: "it vanished; make sure that no broker and no other job works on this directory",
    errno.EIO: "the disk reports an error; check it before anything else",
    errno.ELOOP: "a directory was replaced by a link; find out who put it there",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


class FileStat(NamedTuple):
    """Attributes of a file or directory. ``mode`` holds permission bits only.

    ``device`` and ``inode`` identify the file under any path; both are 0 in an object store.
    """

    size: int
    mtime_ns: int
    mode: int
    uid: int
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

    def part(self, start: int, end: int) -> FileRange:
        """The bytes ``[start, end)`` of the range."""
        return FileRange(self.path, self.start + start, end - start)


#: what an output accepts: any bytes
Chunk = memoryview | bytes


class File(Protocol):
    """An open file. A subclass has ``pread`` or ``read``, and the other one is made of that.

    :ivar descriptor: for kernels, -1 if the file has none
    """

    descriptor: int = -1

    def size(self) -> int:
        """The current size of the whole file, in bytes."""

    def pread(self, view: memoryview, position: int) -> int:
        """Fill ``view`` from ``position``; returns the byte count, which may be less, and is 0 at the end of the file only."""
        data = self.read(position, len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        """Up to ``length`` bytes from ``start``; by default to the end of the file."""
        end = self.size() if length is None else min(self.size(), start + length)
        data = memoryview(bytearray(max(0, end - start)))
        return bytes(data[: read_full(self, data, start)])

    def close(self) -> None:
        """Close the file; no operation by default."""
        return


def read_full(file: File, view: memoryview, position: int) -> int:
    """Fill ``view`` from ``position``; returns the byte count, which is less at the end of the file only."""
    filled = 0
    while filled < len(view) and (count := file.pread(view[filled:], position + filled)):
        filled += count
    return filled


class Output(Protocol):
    """A file being written; errors name the file and a remedy."""

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Append the chunks."""

    def close(self, *, sync: bool, mtime_ns: int | None = None) -> None:
        """Close the file; with ``sync``, its bytes are durable on return."""

    def remove(self) -> None:
        """Close the file if it is open, and remove it."""


class ReadableFileSystem(Protocol):
    """A file system that can be read. Paths are strings; a missing file is ``None`` for ``stat`` and an error otherwise."""

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def stat(self, path: str) -> FileStat | None:
        """The attributes of ``path``, following symbolic links; ``None`` if nothing is there."""

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        """Open a file.

        :param end: the bytes ``[start, end)`` are read sequentially, which a store prepares by reading ahead; ``None``: a few
            bytes at any position
        :param uncached: read from the device, not from the page cache
        """

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Up to ``length`` bytes from ``start``."""
        with closing(self.open(path)) as file:
            return file.read(start, length)

    def real_path(self, path: str) -> FileRange | None:
        """The range of a real file that holds the bytes of ``path``; ``None`` if they are in memory only."""
        stat = self.stat(path)
        return FileRange(path, 0, 0 if stat is None else stat.size)


class FileSystem(ReadableFileSystem, Protocol):
    """A file system that can be changed, on storage or in memory."""

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        """Create a file, not yet durable, with mode, owner and extended attributes of the file ``like``.

        :raises StorageError: the name is taken
        """

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        """Copy bytes into a new file, not yet durable, with mode, owner, extended attributes and mtime of the source."""

    def copy_inside(self, source: str, target: str) -> bool:
        """Copy a file as ``copy`` does, durable on return, without moving its bytes: by shared blocks, or inside a store.
        ``False`` if that is not possible; there is no new file then."""
        return False

    def rename(self, source: str, target: str) -> None:
        """Rename a file atomically, replacing any file of that name."""

    def link(self, source: str, target: str) -> bool:
        """Make a hard link in the same directory; ``False`` if the file system has none, or the name is taken."""
        return False

    def unlink(self, path: str) -> None:
        """Remove a file, or a link itself; no error if it is missing."""

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        """Make a directory and its missing parents, durable on return, with mode and owner of ``like``, writable by its owner.

        :param private: accessible by its owner only; it must not exist yet
        """

    def remove_tree(self, path: str) -> None:
        """Remove a file, or a directory and its contents; links are removed, never followed."""

    def fsync(self, path: str) -> None:
        """Make a file's bytes durable."""

    def fsync_dir(self, path: str) -> None:
        """Make a directory's names durable."""


class DiskFileSystem(FileSystem, Protocol):
    """A file system on storage: outputs too large for memory are written to it, and log directories are locked."""

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> Output:
        """Create a file to be written in chunks; see ``write_file``.

        :param write_behind: start writing to the disk early, as the file will be synced
        """

    def link_new(self, path: str, data: bytes, like: str) -> bool:
        """Create a small file with its content atomically, durable on return; ``False`` if the name is taken. It has the owner
        of ``like``, and everybody may read it."""

    def exchange(self, first: str, second: str) -> bool:
        """Exchange the names of two directories atomically; ``False`` if the file system cannot do that."""
        return False

    def lock(self, log_dir: str, *, shared: bool = False) -> ExitStack:
        """Lock a log directory as a broker does, until the stack is closed; no operation in a store.

        :param shared: together with other readers

        :raises LockedError: a broker or another run holds the lock
        """

    def lock_holder(self, log_dir: str) -> str | None:
        """The other process that holds the lock of a log directory; takes no lock and writes nothing."""


class storage_errors:  # noqa: N801
    """Turns an ``OSError`` of its block into a :class:`StorageError` with action, path, reason and remedy."""

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


_O = TypeVar("_O", bound=Output)


@contextmanager
def removed_on_failure(output: _O) -> Iterator[_O]:
    """Removes an output, so that it takes no space, if the block fails."""
    try:
        yield output
    except BaseException:
        output.remove()
        raise


def real_file(files: ReadableFileSystem, path: str) -> FileRange:
    """The range of a real file that holds the bytes of ``path``.

    :raises StorageError: they are in memory only
    """
    extent = files.real_path(path)
    if extent is None:
        raise StorageError("file exists in memory only", path=path)
    return extent


def truncated(path: str, position: int) -> StorageError:
    """A file ends at ``position``, before the end that was found earlier."""
    hint = "make sure that nothing else works on this directory, and run again"
    return StorageError("file was truncated while it was read", path=path, position=position, hint=hint)


def join(directory: str, *names: str) -> str:
    """A path under a directory; by plain strings, since planning builds many thousands."""
    return "/".join((directory.rstrip("/"), *names))


def parent(path: str) -> str:
    """The directory that holds a path; the root of a store itself."""
    if _is_normal(path):
        return path.rpartition("/")[0] or "/"
    if storage_of(path) is DISK:
        return str(Path(path).parent)
    return path.rstrip("/").rpartition("/")[0] if split(path)[1] else path


def base_name(path: str) -> str:
    return normal(path).rpartition("/")[2]


def normal(path: str) -> str:
    """One spelling of a path, links not followed."""
    if _is_normal(path):
        return path
    return str(Path(path)) if storage_of(path) is DISK else path.rstrip("/")


def _is_normal(path: str) -> bool:
    # nearly all paths are in this form, and a run asks hundreds of thousands of times
    return path.startswith("/") and "//" not in path and "/./" not in path and not path.endswith(("/", "/."))


#: the longest scheme and "://"
_HEAD = 24


@dataclass(frozen=True, eq=False)
class Storage:
    """A kind of storage, by default one whose paths are URIs: object stores and remote file systems.

    :ivar renames: a rename is atomic: logs are changed in place, and an output appears by a rename, not by a manifest
    :ivar locks: brokers and runs lock log directories
    :ivar appears_whole: a file appears when it is closed, complete and durable; else it can be read while it is written, may
        have a torn tail, and is durable once it is flushed
    :ivar attributes: files have modes and owners, and keep their modification times
    :ivar round_trips: each call is a request over a network
    :ivar versions: what was replaced or removed may be kept as an earlier version
    :ivar finite: free space is limited, and known
    """

    renames: bool = False
    locks: bool = False
    appears_whole: bool = True
    attributes: bool = False
    round_trips: bool = True
    versions: bool = True
    finite: bool = False


#: files of this machine, or of a mounted shared disk
DISK = Storage(renames=True, locks=True, appears_whole=False, attributes=True, round_trips=False, versions=False, finite=True)
#: the files of exports, by addresses ``LAYOUT+URI``, are like objects
OBJECTS, EXPORTS = Storage(), Storage()


class Scheme(NamedTuple):
    """The paths of a URI scheme.

    :ivar name: the scheme that the client libraries know
    :ivar has_bucket: the authority must name a bucket or a host
    :ivar has_user: the authority may name a user or a container
    """

    name: str
    storage: Storage = OBJECTS
    has_bucket: bool = True
    has_user: bool = False


#: by the scheme that a user gives
SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "s3": Scheme("s3"),
        "s3a": Scheme("s3"),
        "gs": Scheme("gs"),
        "hdfs": Scheme("hdfs", has_bucket=False, has_user=True),
        "viewfs": Scheme("viewfs", has_bucket=False, has_user=True),
        "abfs": Scheme("abfs", has_user=True),
        "abfss": Scheme("abfss", has_user=True),
    }
)


def split(uri: str) -> tuple[str, str]:
    """``SCHEME://AUTHORITY`` of a URI, and its key without a leading slash."""
    start = uri.index("://") + 3
    end = uri.find("/", start)
    return (uri, "") if end < 0 else (uri[:end], uri[end + 1 :])


def storage_of(path: str) -> Storage:
    """The storage of a path or URI; ``uri.parse_uri`` turns ``file:`` URIs into paths."""
    if path.startswith("/") or "://" not in path[:_HEAD]:
        return DISK
    scheme = path.partition("://")[0]
    return EXPORTS if "+" in scheme else SCHEMES[scheme].storage if scheme in SCHEMES else OBJECTS
