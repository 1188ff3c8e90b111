"""Holds a log directory's ``.lock`` for a run, as a broker does.

Mirrors ``org.apache.kafka.server.util.FileLock`` and ``LogManager.lockLogDirs``: Java's
``FileChannel.tryLock`` is a POSIX record lock on the whole file. Such a lock is released when its process closes *any*
descriptor of the file, so this process keeps the set of directories it holds and never reopens their ``.lock``. The file is
kept on release: if it were removed, a broker that has just opened it would lock an unlinked file. A directory is identified by
device and inode, as it may have several names (links, bind mounts).

A run that reads a directory holds a shared lock, which keeps a broker from starting. Taking it creates no file and works on a
read-only mount; without a lock file there is no lock (``compaction.log.access`` makes one for a copy). A dry run takes no
lock; see :func:`lock_holder`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from compaction.errors import LockedError
from compaction.files.filesystem import storage_errors, storage_of
from compaction.names import LOCK

#: ``struct flock`` (64-bit): type, whence, start, length, pid on Linux; start, length, pid, type, whence on macOS
_LINUX = struct.Struct("@hhqqi4x")
_DARWIN = struct.Struct("@qqihh")
_ATTEMPTS = 10


@dataclass
class _Held:
    """A lock of this process, with the number of its holders: several if it is shared."""

    descriptor: int
    shared: bool
    holders: int = 1


#: by device and inode of the directory
_held: dict[tuple[int, int], _Held] = {}
#: another thread that opens the lock file meanwhile would release the lock when it closes it
_mutex = threading.Lock()


_HINT = "stop the broker (or the other run) first, or work on a copy"


def lock_directory(log_dir: str, *, shared: bool = False) -> ExitStack:
    """Lock ``log_dir`` until the stack is closed.

    :param shared: together with other readers; without a lock file, none is created and nothing is locked
    :raises LockedError: a broker or another run holds it
    :raises StorageError: the lock file cannot be created or opened
    """
    taken = ExitStack()
    if not storage_of(log_dir).locks:
        return taken
    identity = _identity(log_dir)
    with _mutex:
        if (held := _held.get(identity)) is not None:
            if not (shared and held.shared):
                raise _locked(log_dir, f"process {os.getpid()} (this process)")
            held.holders += 1
            taken.callback(_release, identity)
            return taken
        for _ in range(_ATTEMPTS):
            descriptor = _lock(log_dir, shared=shared)
            if descriptor < 0:
                return taken
            if _is_current(log_dir, descriptor):
                _held[identity] = _Held(descriptor, shared)
                taken.callback(_release, identity)
                return taken
            os.close(descriptor)
    raise LockedError("the lock file is replaced repeatedly", path=_lock_path(log_dir), hint=_HINT)


def _release(identity: tuple[int, int]) -> None:
    with _mutex:
        held = _held[identity]
        held.holders -= 1
        if not held.holders:
            os.close(held.descriptor)
            del _held[identity]


def lock_holder(log_dir: str) -> str | None:
    """The other process that holds the lock of ``log_dir``, with its command if known; takes no lock and writes nothing."""
    if not storage_of(log_dir).locks:
        return None
    identity = _identity(log_dir)
    with _mutex, storage_errors(str(_lock_path(log_dir)), "open the lock file"):
        if identity in _held:
            return None
        try:
            descriptor = os.open(_lock_path(log_dir), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            return _holder(descriptor)
        finally:
            os.close(descriptor)


def require_unlocked(log_dir: str) -> None:
    """:raises LockedError: another process holds the lock of ``log_dir``"""
    holder = lock_holder(log_dir)
    if holder is not None:
        raise _locked(log_dir, holder)


def _identity(log_dir: str) -> tuple[int, int]:
    with storage_errors(log_dir, "look at the directory"):
        stat = Path(log_dir).stat()
    return stat.st_dev, stat.st_ino


def _lock_path(log_dir: str) -> Path:
    return Path(log_dir, LOCK)


def _locked(log_dir: str, holder: str | None) -> LockedError:
    return LockedError(f"log directory is in use: {holder or 'another process'} holds {LOCK}", path=log_dir, hint=_HINT)


def _lock(log_dir: str, *, shared: bool) -> int:
    """A descriptor of the locked file; -1 for a shared lock without a lock file."""
    path = _lock_path(log_dir)
    with storage_errors(str(path), "lock the log directory"):
        if shared:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return -1
        else:
            descriptor = _open(path)
        try:
            fcntl.lockf(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise _locked(log_dir, holder) from None
            raise
    return descriptor


def _open(path: Path) -> int:
    """Open or create the lock file; the directory's owner, hence the broker, must be able to open it later."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    owner = path.parent.stat()
    if (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
        with suppress(PermissionError):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def _is_current(log_dir: str, descriptor: int) -> bool:
    """Whether ``.lock`` still names the locked file; a broker removes its lock file when it stops."""
    try:
        named = _lock_path(log_dir).stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(descriptor))


def _holder(descriptor: int) -> str | None:
    darwin = sys.platform == "darwin"
    if darwin:
        query = _DARWIN.pack(0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    else:
        query = _LINUX.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, query)
    if darwin:
        _, _, pid, kind, _ = _DARWIN.unpack(answer)
    else:
        kind, _, _, _, pid = _LINUX.unpack(answer)
    if kind == fcntl.F_UNLCK:
        return None
    command = ""
    with suppress(OSError):
        command = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    return f"process {pid} ({command})" if command else f"process {pid}"
