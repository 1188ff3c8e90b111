"""Temporary directories, and the removal of those that killed runs left beside them.

A directory is in use while a process of its machine has a shared lock (``flock``) on it: the kernel releases that with the
process, however it ends. A process that needs one first removes those beside it that are not in use. Nothing is removed on a
file system without such locks, e.g. NFS.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from compaction.errors import StorageError
from compaction.storage.filesystem import storage_errors

#: what the name of such a directory begins with, followed by 32 hexadecimal digits
SPOOL_NAME = "kafka-log-compaction-"
_OWN = re.compile(rf"{SPOOL_NAME}[0-9a-f]{{32}}")
_ATTEMPTS = 10
_mutex = threading.Lock()
#: the directories that this process uses -> open descriptor
_used: dict[str, int] = {}


def new_spool_path(directory: str | None) -> str:
    """A directory below ``directory``, or below the system's for temporary files, that its first user is to create."""
    return str(Path(directory or tempfile.gettempdir()).resolve() / f"{SPOOL_NAME}{uuid.uuid4().hex}")


def use(directory: str) -> None:
    """Make a directory of ``new_spool_path``, readable by its owner only, and keep it in use until this process ends.

    :raises StorageError: it cannot be made
    """
    path = Path(directory)
    with _mutex, storage_errors(directory, "make a temporary directory"):
        if directory in _used:
            if _is_at(path, _used[directory]):
                return
            os.close(_used.pop(directory))
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unused(path.parent)
        for _ in range(_ATTEMPTS):
            path.mkdir(mode=0o700, exist_ok=True)
            descriptor = _locked(path)
            if descriptor is not None:
                _used[directory] = descriptor
                return
        raise StorageError("temporary directory is removed repeatedly", path=directory, hint="find out what removes it")


def remove(directory: str) -> None:
    """Remove a directory that this process may have used."""
    shutil.rmtree(directory, ignore_errors=True)
    with _mutex:
        if directory in _used:
            os.close(_used.pop(directory))


def remove_unused(directory: Path) -> None:
    """Remove this user's temporary directories that no process of this machine uses."""
    for name in os.listdir(directory) if os.access(directory, os.R_OK) else ():  # noqa: PTH208
        # one of another user, a link, already removed, in use, or on a file system without locks
        with suppress(OSError):
            if _OWN.fullmatch(name):
                _remove_unused(directory / name)


def _remove_unused(path: Path) -> None:
    descriptor = _opened(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.geteuid() and _is_at(path, descriptor):
            shutil.rmtree(path)
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int | None:
    """A descriptor of the directory with a shared lock; ``None`` if the directory has just been removed."""
    try:
        descriptor = _opened(path)
    except FileNotFoundError:
        return None
    # a file system without locks has none to remove it, either
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if _is_at(path, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def temporary_directory(above: str | None) -> Iterator[str]:
    """A temporary directory in ``above``, by default the system's directory for such; removed at the end.

    :raises StorageError: it cannot be made
    """
    path = new_spool_path(above)
    use(path)
    try:
        yield path
    finally:
        remove(path)
