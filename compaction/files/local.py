"""Files of this machine, or of a mounted shared disk.

Root may run the job on a directory that belongs to others, whose owner could replace a partition by a link meanwhile. A file is
created only under an unused name, without following links; mode, owner and extended attributes (SELinux labels, ACLs) are set
on the descriptor, never on a path. A name is created or removed relative to its open directory, which must not be a link.

Files are never memory-mapped: a bad sector, or a file truncated while it is read, would kill the process; here it is an error
of that file.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat as stat_bits
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.errors import StorageError
from compaction.files import lock as locks
from compaction.files.contents import borrow_buffer, return_buffer
from compaction.files.filesystem import (
    Chunk,
    DiskFileSystem,
    File,
    FileStat,
    Output,
    base_name,
    normal,
    parent,
    removed_on_failure,
    storage_errors,
    storage_of,
)
from compaction.files.system_calls import (
    data_ranges,
    exchange_names,
    flush,
    read_at,
    set_direct,
    share_blocks,
    start_writeback,
)
from compaction.files.uri import require_local

_KIND_BITS = 0o170000
_NO_LINK = (errno.EEXIST, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
#: of new files without a model
_DEFAULT_MODE = 0o644
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: attributes that depend on a file's content, or on its layer of an overlay mount
_OWN_ATTRIBUTES = ("security.ima", "security.evm", "security.capability", "trusted.overlay.")
_NOT_KEPT = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.ENODATA)
_CHANGED = "make sure that nothing else works on this directory, and run again"


class FreeSpace(NamedTuple):
    """Bytes that this user can still write to a file system, which its device number identifies, and its size."""

    device: int
    free_bytes: int
    total_bytes: int


_UNLIMITED = FreeSpace(0, 1 << 62, 1 << 62)


def free_space(path: str) -> FreeSpace:
    """The free space of the file system of ``path``, which need not exist yet; that of a store has no limit.

    :raises StorageError: the file system does not report it
    """
    if not storage_of(path).finite:
        return _UNLIMITED
    with storage_errors(path, "determine the free space"):
        existing = Path(path)
        while not existing.exists():
            existing = existing.parent
        stat = os.statvfs(existing)
        return FreeSpace(existing.stat().st_dev, stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)


class LocalFileSystem(DiskFileSystem):
    """Files of this machine. A run over thousands of logs makes a hundred thousand calls: the frequent ones avoid ``Path``,
    whose construction takes as long as the system call.
    """

    def listdir(self, path: str) -> list[str]:
        with storage_errors(path, "list the directory"):
            return sorted(os.listdir(path))  # noqa: PTH208

    def stat(self, path: str) -> FileStat | None:
        try:
            return _stat_of(os.stat(path))  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            with storage_errors(path, "look at the file"):
                raise

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        return LocalFile(path, "read" if end is None else "open", uncached=uncached)

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        with removed_on_failure(LocalOutput(path, like)) as output:
            output.write([data])
            output.close(sync=False, mtime_ns=mtime_ns)

    def link_new(self, path: str, data: bytes, like: str) -> bool:
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        output = LocalOutput(temporary, like)
        try:
            output.write([data])
            output.make_readable()
            output.close(sync=True)
            with storage_errors(path, "make"):
                _link(temporary, path)
        except StorageError as error:
            if isinstance(error.__cause__, FileExistsError):
                return False
            raise
        finally:
            output.remove()
        self.fsync_dir(parent(path))
        return True

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> Output:
        return LocalOutput(path, like, write_behind=write_behind)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        stat = self.stat(source)
        with removed_on_failure(LocalOutput(target, source)) as output:
            output.copy_from(source, start, length)
            output.close(sync=False, mtime_ns=None if stat is None else stat.mtime_ns)

    def copy_inside(self, source: str, target: str) -> bool:
        stat = self.stat(source)
        with removed_on_failure(LocalOutput(target, source)) as output:
            if stat is None or not output.clone_from(source):
                output.remove()
                return False
            output.close(sync=True, mtime_ns=stat.mtime_ns)
        return True

    def rename(self, source: str, target: str) -> None:
        with storage_errors(source, f"rename to {base_name(target)}"), opened_directory(source) as here:
            if parent(source) == parent(target):
                _replace(here, source, here, target)
            else:
                with opened_directory(target) as there:
                    _replace(here, source, there, target)

    def exchange(self, first: str, second: str) -> bool:
        with storage_errors(first, f"exchange with {second}"), ExitStack() as stack:
            here, there = (stack.enter_context(opened_directory(path)) for path in (first, second))
            return exchange_names((here, name_in(here, first)), (there, name_in(there, second)))

    def link(self, source: str, target: str) -> bool:
        with storage_errors(source, f"link as {base_name(target)}"):
            try:
                _link(source, target)
            except OSError as error:
                if error.errno in _NO_LINK:
                    return False
                raise
        return True

    def unlink(self, path: str) -> None:
        with storage_errors(path, "remove"):
            try:
                with opened_directory(path) as directory:
                    os.unlink(name_in(directory, path), dir_fd=directory)  # noqa: PTH108
            except FileNotFoundError:
                return

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        require_local(path)
        with storage_errors(path, "make the directory"):
            if private:
                os.mkdir(path, 0o700)  # noqa: PTH102
                return
            missing = []
            above = path
            while not Path(above).is_dir():
                missing.append(above)
                above = parent(above)
            for directory in reversed(missing):
                _make_directory(directory, like if directory == path else None)

    def remove_tree(self, path: str) -> None:
        require_local(path)
        with storage_errors(path, "remove"):
            try:
                if stat_bits.S_ISDIR(os.lstat(path).st_mode):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)  # noqa: PTH108
            except FileNotFoundError:
                return

    def fsync(self, path: str) -> None:
        if not storage_of(path).appears_whole:
            _sync(path, os.O_RDONLY)

    def fsync_dir(self, path: str) -> None:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def lock(self, log_dir: str, *, shared: bool = False) -> ExitStack:
        return locks.lock_directory(log_dir, shared=shared)

    def lock_holder(self, log_dir: str) -> str | None:
        return locks.lock_holder(log_dir)


class LocalFile(File):
    """A file of this machine, open for reading.

    :param doing: the action that an error of opening it names
    :param uncached: read with direct I/O if the file system supports it; else evict the file's clean pages first
    :raises StorageError: the file cannot be opened
    """

    def __init__(self, path: str, doing: str, *, uncached: bool = False) -> None:
        self._path = path
        with storage_errors(path, doing):
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._direct = uncached and set_direct(self.descriptor, direct=True)
        if uncached and not self._direct:
            self._drop_pages()

    def _drop_pages(self) -> None:
        if hasattr(os, "posix_fadvise"):
            with storage_errors(self._path, "read"):
                os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        with storage_errors(self._path, "look at the file"):
            return os.fstat(self.descriptor).st_size

    def pread(self, view: memoryview, position: int) -> int:
        with storage_errors(self._path, f"read at byte {position}"):
            if self._direct:
                try:
                    return read_at(self.descriptor, view, position)
                except OSError as error:
                    # the device requires another alignment of the buffer
                    if error.errno != errno.EINVAL:
                        raise
                self._direct = set_direct(self.descriptor, direct=False)
                self._drop_pages()
            return read_at(self.descriptor, view, position)

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        with storage_errors(self._path, "read"):
            left = os.fstat(self.descriptor).st_size - start if length is None else length
            parts = []
            while left > 0 and (data := os.pread(self.descriptor, left, start)):
                parts.append(data)
                start, left = start + len(data), left - len(data)
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1


def _replace(here: int | None, source: str, there: int | None, target: str) -> None:
    os.replace(name_in(here, source), name_in(there, target), src_dir_fd=here, dst_dir_fd=there)  # noqa: PTH105


def _link(source: str, target: str) -> None:
    with opened_directory(source) as directory:
        names = name_in(directory, source), name_in(directory, target)
        os.link(*names, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)


def _make_directory(path: str, like: str | None) -> None:
    try:
        os.mkdir(path, 0o700 if like is not None else 0o777)  # noqa: PTH102
    except FileExistsError:
        if not Path(path).is_dir():
            raise
        return
    if like is not None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            take_after(descriptor, like)
            os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o777 | 0o700)
        finally:
            os.close(descriptor)
    _sync(parent(path), os.O_RDONLY | os.O_DIRECTORY)


def _stat_of(result: os.stat_result) -> FileStat:
    kind = result.st_mode & _KIND_BITS
    return FileStat(
        result.st_size,
        result.st_mtime_ns,
        result.st_mode & ~_KIND_BITS,
        result.st_uid,
        result.st_ino,
        kind == stat_bits.S_IFDIR,
        kind == stat_bits.S_IFREG,
        result.st_dev,
        result.st_ctime_ns,
    )


def _sync(path: str, flags: int) -> None:
    with storage_errors(path, "flush to disk"):
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        try:
            flush(descriptor)
        finally:
            os.close(descriptor)


class LocalOutput:
    """A new file of this machine, with mode, owner and extended attributes of ``like``; see ``filesystem.Output``.

    Two buffers alternate: one is filled while a thread writes the other. A file that fits into one buffer, and the last partial
    buffer of a larger one, is written when it ends.

    :param write_behind: write full buffers with direct I/O if the file system supports it. Buffered I/O copies a segment into
        the page cache, writes it from there on fsync, and evicts pages that others read; that takes four times as long
    :raises StorageError: the file system refused, or the name is taken
    """

    def __init__(self, path: str, like: str | None, *, write_behind: bool = False) -> None:
        self.path, self._write_behind = path, write_behind
        self._fd = -1
        #: the buffer being filled, then the one being written
        self._buffers: list[NDArray[np.uint8]] = []
        self._filled = 0
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._direct = False
        with self._errors():
            with opened_directory(path) as directory:
                self._fd = os.open(name_in(directory, path), _NEW, 0o600, dir_fd=directory)
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
            for chunk in chunks:
                data = memoryview(chunk)
                while data:
                    free = self._free()
                    size = min(len(free), len(data))
                    free[:size] = data[:size]
                    self._advance(size)
                    data = data[size:]

    def copy_from(self, path: str, start: int = 0, length: int | None = None) -> None:
        """Append all of another file, or ``length`` bytes of it from ``start``. Its holes become holes."""
        with self._errors(), open(path, "rb", buffering=0) as source:  # noqa: PTH123
            descriptor = source.fileno()
            end = os.fstat(descriptor).st_size if length is None else start + length
            for first, stop in data_ranges(descriptor, start, end):
                self._skip(first - start)
                start = first
                while start < stop and (copied := read_at(descriptor, self._free()[: stop - start], start)):
                    self._advance(copied)
                    start += copied
                if start < stop:
                    break
            else:
                hole = max(0, min(end, os.fstat(descriptor).st_size) - start)
                self._skip(hole)
                start += hole
        if start < end:
            raise StorageError("file was truncated while it was copied", path=path, position=start, hint=_CHANGED)

    def clone_from(self, path: str) -> bool:
        """Become another file of the same file system, whose blocks are shared; ``False`` if it cannot do that."""
        with self._errors(), open(path, "rb", buffering=0) as source:  # noqa: PTH123
            return share_blocks(source.fileno(), self._fd)

    def make_readable(self) -> None:
        with self._errors():
            os.fchmod(self._fd, _DEFAULT_MODE)

    def close(self, *, sync: bool, mtime_ns: int | None = None) -> None:
        try:
            with self._errors():
                self._finish()
                if mtime_ns is not None:
                    os.utime(self._fd, ns=(mtime_ns, mtime_ns))
                if sync:
                    flush(self._fd)
        finally:
            self._end()

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
        while self._buffers:
            return_buffer(self._buffers.pop())
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        self._end()
        with suppress(OSError), opened_directory(self.path) as directory:
            os.unlink(name_in(directory, self.path), dir_fd=directory)  # noqa: PTH108

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
            self._direct = self._write_behind and set_direct(self._fd, direct=True)
            self._buffers.append(borrow_buffer())
        self._wait()
        self._writing = self._thread.submit(self._write_all, memoryview(self._buffers[0]))
        self._buffers.reverse()
        self._filled = 0

    def _skip(self, size: int) -> None:
        """Append a hole: zeros without blocks on the disk."""
        if size:
            self._finish()
            os.ftruncate(self._fd, os.lseek(self._fd, size, os.SEEK_CUR))

    def _finish(self) -> None:
        """Write the last partial buffer. An error of a write in the thread is raised once, here or by the next write."""
        self._wait()
        if self._filled:
            self._direct = self._direct and set_direct(self._fd, direct=False)
            rest, self._filled = memoryview(self._buffers[0])[: self._filled], 0
            self._write_all(rest)

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write_all(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except OSError as error:
                # the device requires a larger block size, or the file system has no direct I/O
                if not self._direct or error.errno != errno.EINVAL:
                    raise
                self._direct = set_direct(self._fd, direct=False)
        if self._write_behind and not self._direct:
            start_writeback(self._fd)


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
