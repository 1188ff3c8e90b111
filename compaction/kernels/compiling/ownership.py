"""Which directories and files nobody but this user can have written. A kernel that was kept is code: reading it runs it.

A directory is the user's own when it belongs to the effective user and nobody else may write to it, and nobody else can put
another one in its place: each directory above it, and each symbolic link on the way, belongs to root or to that user, and
others may write to such a directory only if it is sticky, as ``/tmp`` is. What is root's counts as the user's: root can do as
it likes anyway. Modes tell of POSIX ACLs too: the group's bits are then the most that an ACL grants to anyone.

The way is walked from the root down. Whatever was looked at cannot be changed by others any more when what is below it is
looked at, nor when it is used afterwards.
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
#: as many as Linux follows
_MAX_LINKS = 40


def why_not_private(directory: Path, *, shared: bool = False) -> str:
    """What makes a directory one that others could have written to, in a few words; empty for the user's own.

    :param shared: a place like ``/tmp`` does too, to make something in
    :raises OSError: there is no such directory
    """
    path, found = "", None
    for path, found in _way(directory):
        if found.st_uid not in (_ROOT, os.geteuid()):
            return f"{path} belongs to user {found.st_uid}"
        if _others_write(found) and not found.st_mode & stat.S_ISVTX:
            return f"{path} can be written by others"
    if found is None or not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return f"{path} can be written by others" if _others_write(found) and not shared else ""


def make_private(directory: Path) -> str:
    """Make a directory, and those above it, for this user alone; why it is not the user's own, if so (as ``why_not_private``).

    Nothing is made in a directory in which others could replace it.

    :raises OSError: it cannot be made or written
    """
    missing = [each for each in (directory, *directory.parents) if not os.path.lexists(each)]
    if missing:
        reason = why_not_private(missing[-1].parent, shared=True)
        if reason:
            return reason
    for each in reversed(missing):
        # other processes make the same
        each.mkdir(mode=_OWNER_ONLY, exist_ok=True)
    reason = why_not_private(directory)
    if not reason:
        with tempfile.TemporaryFile(dir=directory):
            pass
    return reason


def is_private_file(path: str) -> bool:
    """Whether a file, in a directory of the user's own, is a regular file that nobody else may write to."""
    try:
        found = Path(path).lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid in (_ROOT, os.geteuid()) and not _others_write(found)


def _others_write(found: os.stat_result) -> bool:
    return not stat.S_ISLNK(found.st_mode) and bool(found.st_mode & _OTHERS_WRITE)


def _way(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Each directory and symbolic link that the system passes on its way to ``directory``, which comes last."""
    here, left, links = "/", [*reversed(directory.absolute().parts[1:])], 0
    yield here, Path(here).lstat()
    while left:
        name = left.pop()
        step = Path(here).parent if name == ".." else Path(here, name)
        found = step.lstat()
        yield str(step), found
        if not stat.S_ISLNK(found.st_mode):
            here = str(step)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(directory))
        target = step.readlink()
        here = "/" if target.is_absolute() else here
        left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
