"""Creates files of this machine: only under an unused name, without following links; mode, owner and extended attributes
(SELinux labels, ACLs) are set on the descriptor, never on a path.

A name is created or removed relative to its open directory, which must not be reached by a link: the owner of a log directory
could replace a partition by a link while root runs the job.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from compaction.errors import StorageError
from compaction.files.contents import READ_BYTES, borrow_buffer, return_buffer
from compaction.files.filesystem import Chunk, base_name, normal, parent, storage_of
from compaction.files.system_calls import data_ranges, flush, read_at, set_direct, share_blocks, start_writeback
from compaction.files.uri import require_local

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


class DirectWriter:
    """Writes an open, empty file from its beginning, with direct I/O if the file system supports it. Each ``OSError`` of a
    write is raised once.

    Buffered I/O copies a segment into the page cache, writes it from there on fsync, and evicts pages that others read;
    measured, that takes four times as long. Here two buffers alternate: one is filled while a thread writes the other.

    A file that fits into one buffer, and the last partial buffer of a larger one, is written through the page cache.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        #: the buffer being filled, then the one being written
        self._buffers: list[NDArray[np.uint8]] = []
        self._filled = 0
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._direct = False

    def write(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            data = memoryview(chunk)
            while data:
                free = self._free()
                size = min(len(free), len(data))
                free[:size] = data[:size]
                self._advance(size)
                data = data[size:]

    def copy(self, source: int, start: int, limit: int) -> int:
        copied = read_at(source, self._free()[:limit], start)
        self._advance(copied)
        return copied

    def skip(self, size: int) -> None:
        for start in range(0, size, READ_BYTES):
            self.write([bytes(min(READ_BYTES, size - start))])

    def _free(self) -> memoryview:
        """The unfilled part of the buffer, at least one byte."""
        if not self._buffers:
            self._buffers.append(borrow_buffer())
        return memoryview(self._buffers[0])[self._filled :]

    def _advance(self, size: int) -> None:
        self._filled += size
        if self._filled < len(self._buffers[0]):
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
            self._direct = set_direct(self._descriptor, direct=True)
            self._buffers.append(borrow_buffer())
        self._wait()
        self._writing = self._thread.submit(self._write_all, memoryview(self._buffers[0]))
        self._buffers.reverse()
        self._filled = 0

    def finish(self) -> None:
        """Write the last partial buffer, and start its writeback."""
        self._wait()
        if self._filled:
            self._direct = set_direct(self._descriptor, direct=False)
            rest, self._filled = memoryview(self._buffers[0])[: self._filled], 0
            self._write_all(rest)

    def abandon(self) -> None:
        """Stop writing; the descriptor may be closed afterwards."""
        if self._thread is not None:
            self._thread.shutdown()
        while self._buffers:
            return_buffer(self._buffers.pop())

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write_all(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except OSError as error:
                # the device requires a larger block size, or the file system has no direct I/O
                if not self._direct or error.errno != errno.EINVAL:
                    raise
                self._direct = set_direct(self._descriptor, direct=False)
        if not self._direct:
            start_writeback(self._descriptor)


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
