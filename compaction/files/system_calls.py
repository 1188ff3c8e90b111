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
from contextlib import ExitStack, contextmanager, suppress

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
    here, there = (ctypes.c_int(_AT_FDCWD if directory is None else directory) for directory, _ in (first, second))
    if function(here, os.fsencode(first[1]), there, os.fsencode(second[1]), ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))


def share_blocks(source: int, target: int) -> bool:
    """Give the file of a descriptor the content of another one, with the same blocks on the disk; ``False`` if that is not
    possible."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


@contextmanager
def whole_sync(directories: Iterable[str]) -> Iterator[Callable[[], bool]]:
    """Gives a function that makes all changes in the file systems of some directories durable. It returns ``False`` if that is
    not possible, or failed: flush each file to get its error.

    ``syncfs`` reports errors that occurred since its descriptor was opened: enter this before anything is written there.
    """
    #: one for each device; empty if one of them cannot be flushed as a whole
    descriptors: dict[int, int] = {}
    with ExitStack() as opened:
        try:
            for directory in set(directories) if _reports_errors() else ():
                device = os.stat(directory).st_dev  # noqa: PTH116
                if device not in descriptors:
                    descriptors[device] = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                    opened.callback(os.close, descriptors[device])
        except OSError:
            descriptors.clear()
        if any(_type_of(descriptor) not in _SYNCED_TYPES for descriptor in descriptors.values()):
            descriptors.clear()
        libc = ctypes.CDLL(None, use_errno=True)
        yield lambda: bool(descriptors) and all(libc.syncfs(descriptor) == 0 for descriptor in descriptors.values())


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


_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]


def start_writeback(descriptor: int) -> None:
    """Start writing the dirty pages of a file without waiting; no operation if the system has no such call."""
    if _sync_file_range is not None:
        _sync_file_range(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)
