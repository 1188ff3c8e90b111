"""Writes new files of this machine: under a name that was free, without following links; mode, owner and extended attributes
(SELinux labels, ACLs) are set on the descriptor, never on a path.

A name is made, or removed, within the open directory that is to hold it, which must not be reached by a link: the owner of a
log directory may have put one in place of a partition while a run of root is at work.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from compaction.errors import StorageError
from compaction.storage.filesystem import Chunk, base_name, parent
from compaction.storage.places import is_remote

_COPY_BYTES = 64 << 20
_IOV_MAX = 512
_WRITE_BEHIND_BYTES = 16 << 20
_SYNC_FILE_RANGE_WRITE = 2
#: of files that stand in for none
_DEFAULT_MODE = 0o644
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: attributes that speak of a file's content, or of the layer that it lies in
_OWN_ATTRIBUTES = ("security.ima", "security.evm", "security.capability", "trusted.overlay.")
_NOT_KEPT = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENODATA)
_CHANGED = "make sure that nothing else works on this directory, and run again"


class LocalOutput:
    """A new file of this machine, with mode, owner and extended attributes of ``like``; see ``filesystem.Output``.

    :raises StorageError: the file system refuses, or there is something of that name
    """

    def __init__(self, path: str, like: str | None, *, write_behind: bool = False) -> None:
        self.path = path
        self._fd = -1
        self._behind = 0 if write_behind else None
        try:
            with opened_directory(path) as (directory, name):
                self._fd = os.open(name, _NEW, 0o600, dir_fd=directory)
            take_after(self._fd, like)
        except OSError as error:
            if self._fd >= 0:
                self.remove()
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write ({error.strerror})",
            path=self.path,
            hint="the log is as it was; make room or repair permissions and run again",
        )

    def write(self, chunks: Sequence[Chunk]) -> None:
        try:
            for first in range(0, len(chunks), _IOV_MAX):
                pending = [memoryview(chunk) for chunk in chunks[first : first + _IOV_MAX] if len(chunk)]
                while pending:
                    written = os.writev(self._fd, pending)
                    self._write_behind(written)
                    while pending and written >= len(pending[0]):
                        written -= len(pending.pop(0))
                    if pending:
                        pending[0] = pending[0][written:]
        except OSError as error:
            raise self._refused(error) from error

    def copy_from(self, path: str, start: int = 0, length: int | None = None) -> None:
        """Append all of another file, or ``length`` bytes of it from ``start``, within the kernel."""
        try:
            source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                left = _COPY_BYTES if length is None else length
                while left > 0 and (copied := os.sendfile(self._fd, source, start, min(left, _COPY_BYTES))):
                    self._write_behind(copied)
                    start += copied
                    left = left if length is None else left - copied
            finally:
                os.close(source)
        except OSError as error:
            raise self._refused(error) from error
        if length is not None and left:
            raise StorageError("file has become shorter while it was copied", path=path, position=start, hint=_CHANGED)

    def _write_behind(self, size: int) -> None:
        """Start writing to the disk what has gathered, once it is worth it; ``close`` waits for it."""
        if self._behind is not None:
            self._behind += size
            if self._behind >= _WRITE_BEHIND_BYTES:
                _start_writing(self._fd)
                self._behind = 0

    def make_readable(self) -> None:
        """Let everybody read the file."""
        try:
            os.fchmod(self._fd, _DEFAULT_MODE)
        except OSError as error:
            raise self._refused(error) from error

    def start_writeback(self) -> None:
        _start_writing(self._fd)

    def close(self, *, sync: bool, mtime_ms: int | None = None, mtime_ns: int | None = None) -> None:
        try:
            if mtime_ms is not None:
                mtime_ns = mtime_ms * 1_000_000
            if mtime_ns is not None:
                os.utime(self._fd, ns=(mtime_ns, mtime_ns))
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            raise self._refused(error) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Release the file and remove it, so that what failed leaves no less room to others."""
        self.abandon()
        with suppress(OSError), opened_directory(self.path) as (directory, name):
            os.unlink(name, dir_fd=directory)  # noqa: PTH108


@contextmanager
def opened_directory(path: str) -> Iterator[tuple[int, str]]:
    """A descriptor of the directory that holds ``path``, and the name there.

    :raises OSError: there is no such directory, or a link in its place
    """
    descriptor = os.open(parent(path), _DIRECTORY)
    try:
        yield descriptor, base_name(path)
    finally:
        os.close(descriptor)


def take_after(descriptor: int, like: str | None) -> None:
    """Give a new file, or directory, the mode, owner and extended attributes of ``like``; an unprivileged user's refused change
    of owner or label is no error.

    :raises OSError: the file system refused
    """
    if like is None or is_remote(like):
        os.fchmod(descriptor, _DEFAULT_MODE)
        return
    found = os.stat(like)  # noqa: PTH116
    if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, found.st_mode & 0o777)
    if hasattr(os, "listxattr"):
        _copy_attributes(like, descriptor)


def _copy_attributes(like: str, descriptor: int) -> None:
    try:
        names = os.listxattr(like)
    except OSError as error:
        if error.errno in _NOT_KEPT:
            return
        raise
    for name in names:
        if not name.startswith(_OWN_ATTRIBUTES):
            try:
                os.setxattr(descriptor, name, os.getxattr(like, name))
            except OSError as error:
                if error.errno not in _NOT_KEPT:
                    raise


def _system_call() -> Callable[[int, int, int, int], int] | None:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_sync_file_range = _system_call()


def _start_writing(descriptor: int) -> None:
    """Have the system begin to write the dirty pages of a file, without waiting; nothing if it has no such call."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)
