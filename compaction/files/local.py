"""Files of this machine, or of a mounted shared disk.

Root may run the job on a directory that belongs to others: see ``local_output`` for how files are created. Files are never
memory-mapped: a bad sector, or a file truncated while it is read, would kill the process; here it is an error of that file.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat as stat_bits
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from compaction.errors import StorageError
from compaction.files import lock as locks
from compaction.files.filesystem import (
    DiskFileSystem,
    File,
    FileStat,
    Lock,
    Output,
    base_name,
    parent,
    removed_on_failure,
    storage_errors,
    storage_of,
)
from compaction.files.local_output import LocalOutput, name_in, opened_directory, take_after
from compaction.files.system_calls import exchange_names, flush, read_at, set_direct
from compaction.files.uri import require_local

_KIND_BITS = 0o170000
_NO_LINK = (errno.EEXIST, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


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
        _sync(path, os.O_RDONLY)

    def fsync_dir(self, path: str) -> None:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def lock(self, log_dir: str, *, shared: bool = False) -> Lock:
        return locks.LogDirLock.acquire(log_dir, shared=shared)

    def lock_holder(self, log_dir: str) -> str | None:
        holder = locks.lock_holder(log_dir)
        return None if holder is None else str(holder)


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
    """Rename ``source``, in the open directory ``here``, to ``target`` in ``there``."""
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
        result.st_gid,
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
