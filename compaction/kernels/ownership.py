"""Checks that only this user can have written a directory or file. Cached kernels are code: loading one executes it.

A directory is private if it belongs to the effective user, nobody else may write to it, and nobody else can replace it: each
directory above it, and each symbolic link in its path, belongs to root or to the user, and others may write to such a directory
only if it is sticky, like ``/tmp``. Root's files count as the user's. Modes reflect POSIX ACLs too: the group's bits are then
the most that an ACL grants to anyone.

Paths are checked from the root down, so that others cannot change the directories that have been checked.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_ROOT = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OWNER_ONLY = 0o700
#: Linux's limit
_MAX_LINKS = 40


def why_not_private(directory: Path, *, shared: bool = False) -> str:
    """Why a directory is not private, in a few words; empty if it is.

    :param shared: accept a sticky directory like ``/tmp``, to create something in
    :raises OSError: there is no such directory
    """
    path, status = "", None
    for path, status in _steps(directory):
        if status.st_uid not in (_ROOT, os.geteuid()):
            return f"{path} belongs to user {status.st_uid}"
        if _others_write(status) and not status.st_mode & stat.S_ISVTX:
            return f"{path} can be written by others"
    if status is None or not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return f"{path} can be written by others" if _others_write(status) and not shared else ""


def make_private(directory: Path) -> str:
    """Create a private directory and its missing parents, unless others could replace them. Returns why it is not private, as
    ``why_not_private`` does.

    :raises OSError: it cannot be created or written
    """
    missing = [path for path in (directory, *directory.parents) if not os.path.lexists(path)]
    if missing:
        reason = why_not_private(missing[-1].parent, shared=True)
        if reason:
            return reason
    for path in reversed(missing):
        # other processes may create it concurrently
        path.mkdir(mode=_OWNER_ONLY, exist_ok=True)
    reason = why_not_private(directory)
    if not reason:
        with tempfile.TemporaryFile(dir=directory):
            pass
    return reason


def is_private_file(path: Path) -> bool:
    """Whether a file, in a private directory, is a regular file that nobody else may write to."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid in (_ROOT, os.geteuid()) and not _others_write(status)


def _others_write(status: os.stat_result) -> bool:
    return not stat.S_ISLNK(status.st_mode) and bool(status.st_mode & _OTHERS_WRITE)


def _steps(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Each directory and symbolic link that path resolution visits, ``directory`` last."""
    current, remaining, links = "/", [*reversed(directory.absolute().parts[1:])], 0
    yield current, Path(current).lstat()
    while remaining:
        name = remaining.pop()
        step = Path(current).parent if name == ".." else Path(current, name)
        status = step.lstat()
        yield str(step), status
        if not stat.S_ISLNK(status.st_mode):
            current = str(step)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(directory))
        target = step.readlink()
        current = "/" if target.is_absolute() else current
        remaining += reversed(target.parts[1:] if target.is_absolute() else target.parts)
