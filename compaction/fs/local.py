"""Files of this machine, or of a mounted shared disk.

A run may be root's in a directory that belongs to others: see ``local_output`` for how files are created. Nothing is read
through a memory map: a bad sector, or a file that is cut short meanwhile, would end the process; here it is an error of that
file.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat as stat_bits
import uuid
from pathlib import Path

from compaction.errors import StorageError
from compaction.fs import lock as locks
from compaction.fs.direct import set_direct
from compaction.fs.filesystem import ByteSource, FileRange, FileStat, Lock, Output, base_name, parent, storage_errors
from compaction.fs.local_output import LocalOutput, opened_directory, take_after

_NO_SECOND_NAME = (errno.EEXIST, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)


class LocalFileSystem:
    """See ``compaction.fs.filesystem.FileSystem``.

    A run over thousands of logs makes a hundred thousand calls: the frequent ones go without a ``Path``, which takes as long to
    make as the system takes to answer.
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
        return _stat_of(found)

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        with storage_errors(path, "read"), open(path, "rb", buffering=0) as file:  # noqa: PTH123
            if length is None:
                if start:
                    file.seek(start)
                return file.readall()
            parts = []
            while length > 0 and (data := os.pread(file.fileno(), length, start)):
                parts.append(data)
                start, length = start + len(data), length - len(data)
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def reader(self, path: str, start: int, end: int, *, uncached: bool = False) -> ByteSource:
        return LocalSource(path, uncached=uncached)

    def real_path(self, path: str) -> FileRange | None:
        found = self.stat(path)
        return FileRange(path, 0, 0 if found is None else found.size)

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        output = LocalOutput(path, like)
        try:
            output.write([data])
            output.close(sync=False, mtime_ns=mtime_ns)
        except StorageError:
            output.remove()
            raise

    def link_new(self, path: str, data: bytes, like: str) -> bool:
        temporary = f"{path}.{uuid.uuid4().hex}.tmp"
        output = LocalOutput(temporary, like)
        try:
            output.write([data])
            output.make_readable()
            output.close(sync=True)
            with storage_errors(path, "make"):
                with opened_directory(path) as (directory, name):
                    old = temporary if directory is None else base_name(temporary)
                    os.link(old, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
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
        found = self.stat(source)
        output = LocalOutput(target, source)
        try:
            output.copy_from(source, start, length)
            output.close(sync=False, mtime_ns=None if found is None else found.mtime_ns)
        except StorageError:
            output.remove()
            raise

    def rename(self, source: str, target: str) -> None:
        with storage_errors(source, f"rename to {base_name(target)}"):
            with opened_directory(source) as (there, old):
                if parent(source) == parent(target):
                    new = target if there is None else base_name(target)
                    os.replace(old, new, src_dir_fd=there, dst_dir_fd=there)  # noqa: PTH105
                    return
                with opened_directory(target) as (here, new):
                    os.replace(old, new, src_dir_fd=there, dst_dir_fd=here)  # noqa: PTH105

    def link(self, source: str, target: str) -> bool:
        with storage_errors(source, f"link as {base_name(target)}"), opened_directory(source) as (directory, name):
            try:
                new = target if directory is None else base_name(target)
                os.link(name, new, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                if error.errno in _NO_SECOND_NAME:
                    return False
                raise
        return True

    def unlink(self, path: str) -> None:
        with storage_errors(path, "remove"):
            try:
                with opened_directory(path) as (directory, name):
                    os.unlink(name, dir_fd=directory)  # noqa: PTH108
            except FileNotFoundError:
                return

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        with storage_errors(path, "make the directory"):
            if private:
                os.mkdir(path, 0o700)  # noqa: PTH102
                return
            missing = []
            above = path
            while not Path(above).is_dir():
                missing.append(above)
                above = parent(above)
            for each in reversed(missing):
                _make_directory(each, like if each == path else None)

    def remove_tree(self, path: str) -> None:
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


class LocalSource:
    """A file of this machine, open for reading; see ``compaction.fs.filesystem.ByteSource``.

    :param fresh: the device is read: past the pages that the system holds if the file system allows that, else those pages are
        dropped first, as far as they are synced
    :raises StorageError: the file cannot be opened
    """

    def __init__(self, path: str, *, uncached: bool = False) -> None:
        self._path = path
        self._descriptor = _open_past_cache(path) if uncached else -1
        self._direct = self._descriptor >= 0
        if not self._direct:
            with storage_errors(path, "open"):
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if uncached:
                self._drop_pages()

    @property
    def descriptor(self) -> int:
        """Of the open file, for kernels."""
        return self._descriptor

    def _drop_pages(self) -> None:
        if hasattr(os, "posix_fadvise"):
            with storage_errors(self._path, "read"):
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        with storage_errors(self._path, "look at the file"):
            return os.fstat(self._descriptor).st_size

    def read_into(self, view: memoryview, position: int, floor: int) -> int:
        with storage_errors(self._path, f"read at byte {position}"):
            if self._direct:
                try:
                    return os.preadv(self._descriptor, [view], position)
                except OSError as error:
                    # the buffer is not aligned as the device wants it
                    if error.errno != errno.EINVAL:
                        raise
                self._direct = set_direct(self._descriptor, direct=False)
                self._drop_pages()
            return os.preadv(self._descriptor, [view], position)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def _open_past_cache(path: str) -> int:
    """A descriptor that reads from the device; -1 where a file system, as tmpfs, knows of no cache to pass by."""
    direct = getattr(os, "O_DIRECT", 0)
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | direct) if direct else -1
    except OSError:
        return -1


def _make_directory(path: str, like: str | None) -> None:
    """Make one directory, safe on return."""
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


def _stat_of(found: os.stat_result) -> FileStat:
    mode = found.st_mode
    return FileStat(
        found.st_size,
        found.st_mtime_ns,
        stat_bits.S_IMODE(mode),
        found.st_uid,
        found.st_gid,
        found.st_ino,
        stat_bits.S_ISDIR(mode),
        stat_bits.S_ISREG(mode),
        found.st_dev,
        found.st_ctime_ns,
    )


def _sync(path: str, flags: int) -> None:
    with storage_errors(path, "flush to disk"):
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
