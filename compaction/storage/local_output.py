"""Creates files of this machine: only under an unused name, without following links; mode, owner and extended attributes
(SELinux labels, ACLs) are set on the descriptor, never on a path.

A name is created or removed relative to its open directory, which must not be reached by a link: the owner of a log directory
could replace a partition by a link while root runs the job.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from compaction.errors import StorageError
from compaction.storage.direct import DirectWriter, data_ranges, flush
from compaction.storage.filesystem import Chunk, base_name, normal, parent
from compaction.storage.kinds import storage_of
from compaction.storage.linux_calls import share_blocks
from compaction.storage.uri import require_local

_COPY_BYTES = 64 << 20
#: at once, by a copy through this process
_PLAIN_COPY_BYTES = 1 << 20
_IOV_MAX = 512
#: of new files without a model
_DEFAULT_MODE = 0o644
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: attributes that depend on a file's content, or on its layer of an overlay mount
_OWN_ATTRIBUTES = ("security.ima", "security.evm", "security.capability", "trusted.overlay.")
_NOT_KEPT = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENODATA)
_CHANGED = "make sure that nothing else works on this directory, and run again"


class LocalOutput:
    """A new file of this machine, with mode, owner and extended attributes of ``like``; see ``filesystem.Output``.

    :param write_behind: write with direct I/O
    :raises StorageError: the file system refused, or the name is taken
    """

    def __init__(self, path: str, like: str | None, *, write_behind: bool = False) -> None:
        self.path = path
        self._fd = -1
        with self._errors():
            with opened_directory(path) as directory:
                self._fd = os.open(name_in(directory, path), _NEW, 0o600, dir_fd=directory)
            self._writer: DirectWriter | _CachedWriter = DirectWriter(self._fd) if write_behind else _CachedWriter(self._fd)
            try:
                take_after(self._fd, like)
            except OSError:
                self.remove()
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            hint = "the log is unchanged; free some space or repair permissions and run again"
            raise StorageError(f"cannot write ({error.strerror})", path=self.path, hint=hint) from error

    def write(self, chunks: Sequence[Chunk]) -> None:
        with self._errors():
            self._writer.write(chunks)

    def copy_from(self, path: str, start: int = 0, length: int | None = None) -> None:
        """Append all of another file, or ``length`` bytes of it from ``start``. Its holes become holes."""
        with self._errors(), open(path, "rb", buffering=0) as source:  # noqa: PTH123
            descriptor = source.fileno()
            end = os.fstat(descriptor).st_size if length is None else start + length
            for first, stop in data_ranges(descriptor, start, end):
                self._writer.skip(first - start)
                start = self._copy_data(descriptor, first, stop)
                if start < stop:
                    break
            else:
                hole = max(0, min(end, os.fstat(descriptor).st_size) - start)
                self._writer.skip(hole)
                start += hole
        if start < end:
            raise StorageError("file was truncated while it was copied", path=path, position=start, hint=_CHANGED)

    def clone_from(self, path: str) -> bool:
        """Become another file of the same file system, whose blocks are shared; ``False`` if it cannot do that."""
        with self._errors(), open(path, "rb", buffering=0) as source:  # noqa: PTH123
            return share_blocks(source.fileno(), self._fd)

    def _copy_data(self, descriptor: int, start: int, end: int) -> int:
        """Append the bytes ``[start, end)`` of an open file; returns where they end, earlier if the file was truncated."""
        while start < end and (copied := self._writer.copy(descriptor, start, min(end - start, _COPY_BYTES))):
            start += copied
        return start

    def make_readable(self) -> None:
        with self._errors():
            os.fchmod(self._fd, _DEFAULT_MODE)

    def start_writeback(self) -> None:
        with self._errors():
            self._writer.finish()

    def close(self, *, sync: bool, mtime_ms: int | None = None, mtime_ns: int | None = None) -> None:
        try:
            with self._errors():
                self._writer.finish()
                if mtime_ms is not None:
                    mtime_ns = mtime_ms * 1_000_000
                if mtime_ns is not None:
                    os.utime(self._fd, ns=(mtime_ns, mtime_ns))
                if sync:
                    flush(self._fd)
        finally:
            self.abandon()

    def abandon(self) -> None:
        if self._fd >= 0:
            self._writer.abandon()
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        self.abandon()
        with suppress(OSError), opened_directory(self.path) as directory:
            os.unlink(name_in(directory, self.path), dir_fd=directory)  # noqa: PTH108


class _CachedWriter:
    """Writes an open file through the page cache; the interface of ``DirectWriter``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, chunks: Sequence[Chunk]) -> None:
        for first in range(0, len(chunks), _IOV_MAX):
            pending = [memoryview(chunk) for chunk in chunks[first : first + _IOV_MAX] if len(chunk)]
            while pending:
                written = os.writev(self._descriptor, pending)
                while pending and written >= len(pending[0]):
                    written -= len(pending.pop(0))
                if pending:
                    pending[0] = pending[0][written:]

    def copy(self, source: int, start: int, limit: int) -> int:
        try:
            return os.sendfile(self._descriptor, source, start, limit)
        except OSError as error:
            # other systems than Linux send to sockets only
            if error.errno not in (errno.ENOTSOCK, errno.EOPNOTSUPP):
                raise
        data = os.pread(source, min(limit, _PLAIN_COPY_BYTES), start)
        self.write([data])
        return len(data)

    def skip(self, size: int) -> None:
        """Append a hole: zeros without blocks on the disk."""
        if size:
            os.ftruncate(self._descriptor, os.lseek(self._descriptor, size, os.SEEK_CUR))

    def finish(self) -> None:
        """No operation."""

    def abandon(self) -> None:
        """No operation."""


@contextmanager
def opened_directory(path: str) -> Iterator[int | None]:
    """A descriptor of the directory that holds ``path``; ``None`` if no other user can replace that directory by a link.

    :raises OSError: the directory is missing, or is a link
    :raises StorageError: ``path`` is a URI
    """
    require_local(path)
    directory = normal(path).rpartition("/")[0]
    if _is_ours(parent(directory)):
        yield None
        return
    descriptor = os.open(directory or parent(path), _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def name_in(directory: int | None, path: str) -> str:
    """``path`` relative to what ``opened_directory`` gives."""
    return path if directory is None else base_name(path)


def _is_ours(directory: str) -> bool:
    """Whether only this user can change the names in a directory."""
    stat = os.stat(directory)  # noqa: PTH116
    return stat.st_uid == os.geteuid() and not stat.st_mode & 0o022


def take_after(descriptor: int, like: str | None) -> None:
    """Give a new file or directory the mode, owner and extended attributes of ``like``; owner and labels only if the user may
    change them.

    :raises OSError: the file system refused
    """
    if like is None or not storage_of(like).attributes:
        os.fchmod(descriptor, _DEFAULT_MODE)
        return
    stat = os.stat(like)  # noqa: PTH116
    if (stat.st_uid, stat.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.fchown(descriptor, stat.st_uid, stat.st_gid)
    os.fchmod(descriptor, stat.st_mode & 0o777)
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
