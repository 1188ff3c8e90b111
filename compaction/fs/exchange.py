"""Exchanges two names atomically: Linux's ``renameat2`` with ``RENAME_EXCHANGE``, for which Python has no function.

Tested by ``tests/fs/test_local.py``.
"""

from __future__ import annotations

import ctypes
import errno
import os

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
#: the kernel or the file system has no such call
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)

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
