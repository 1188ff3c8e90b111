"""System calls on open files that differ between systems, or for which Python has no function.

Calls that only Linux has are left out elsewhere, or replaced.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress

_AT_FDCWD = -100
_SYNC_FILE_RANGE_WRITE = 2
_RENAME_EXCHANGE = 2
#: ``_IOW(0x94, 9, int)``; other systems refuse it
_FICLONE = 0x40049409
#: the kernel or the file system has no such call
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)

#: the first kernel whose ``syncfs`` reports errors of both data (5.8) and names
_REPORTING_KERNEL = (5, 17)
#: ``f_type`` of ext2 to ext4 and of XFS: their ``syncfs`` flushes all that ``fsync`` does. That of FUSE, for example, does not
_SYNCED_TYPES = frozenset({0xEF53, 0x58465342})
#: more than any ``struct statfs``, which begins with ``f_type``
_STATFS_BYTES = 512

#: a name, relative to the directory of a descriptor
Name = tuple[int | None, str]


def exchange_names(first: Name, second: Name) -> bool:
    """Exchange two names of one file system; ``False`` if it cannot do that.

    :raises OSError: it refused
    """
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    arguments = [part for directory, name in (first, second) for part in (_descriptor(directory), os.fsencode(name))]
    if function(*arguments, ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))


def _descriptor(directory: int | None) -> ctypes.c_int:
    return ctypes.c_int(_AT_FDCWD if directory is None else directory)


def share_blocks(source: int, target: int) -> bool:
    """Give the file of a descriptor the content of another one, with the same blocks on the disk; ``False`` if that is not
    possible."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


class WholeSync:
    """Flushes the file systems of some directories as a whole; a context manager.

    ``syncfs`` reports errors that occurred since its descriptor was opened: enter this before anything is written there.
    """

    def __init__(self, directories: Iterable[str]) -> None:
        self._directories = set(directories)
        #: one for each device; empty if one of them cannot be flushed as a whole
        self._descriptors: dict[int, int] = {}
        self._opened = ExitStack()

    def __enter__(self) -> WholeSync:
        try:
            for directory in self._directories if _reports_errors() else ():
                device = os.stat(directory).st_dev  # noqa: PTH116
                if device not in self._descriptors:
                    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                    self._opened.callback(os.close, descriptor)
                    self._descriptors[device] = descriptor
        except OSError:
            self._descriptors.clear()
        if any(_type_of(descriptor) not in _SYNCED_TYPES for descriptor in self._descriptors.values()):
            self._descriptors.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def sync(self) -> bool:
        """Make all changes durable. ``False`` if that is not possible, or failed: flush each file to get its error."""
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(self._descriptors) and all(libc.syncfs(descriptor) == 0 for descriptor in self._descriptors.values())


def _reports_errors() -> bool:
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return os.uname().sysname == "Linux" and release is not None and tuple(map(int, release.groups())) >= _REPORTING_KERNEL


def _type_of(descriptor: int) -> int | None:
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None, use_errno=True).fstatfs(descriptor, buffer) != 0:
        return None
    return ctypes.c_long.from_buffer(buffer).value


def set_direct(descriptor: int, *, direct: bool) -> bool:
    """Switch direct I/O of an open file on or off; returns whether it is on now. Some file systems, e.g. tmpfs, have none."""
    flag = getattr(os, "O_DIRECT", 0)
    try:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag if direct else flags & ~flag)
    except OSError:
        return False
    return direct and flag != 0


def flush(descriptor: int) -> None:
    """Make the content of an open file or directory durable. On macOS, ``fsync`` leaves it in the cache of the drive."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with suppress(OSError):
            # some file systems have no such call
            fcntl.fcntl(descriptor, full)
            return
    os.fsync(descriptor)


def read_at(descriptor: int, view: memoryview, position: int) -> int:
    """Read from an open file into ``view``; returns the byte count."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], position)
    data = os.pread(descriptor, len(view), position)
    view[: len(data)] = data
    return len(data)


def data_ranges(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The byte ranges within ``[start, end)`` of an open file, ascending, that are not holes: these are zeros without blocks on
    the disk. All of it if the file system does not report holes."""
    while start < end:
        try:
            first = os.lseek(descriptor, start, os.SEEK_DATA)
            stop = min(end, os.lseek(descriptor, first, os.SEEK_HOLE))
        except (OSError, AttributeError) as error:
            if getattr(error, "errno", None) != errno.ENXIO:
                yield start, end
            return
        if first < end:
            yield first, stop
        start = stop


def _sync_file_range_call() -> Callable[[int, int, int, int], int] | None:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_sync_file_range = _sync_file_range_call()


def start_writeback(descriptor: int) -> None:
    """Start writing the dirty pages of a file without waiting; no operation if the system has no such call."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)
