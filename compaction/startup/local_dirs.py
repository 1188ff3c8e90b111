"""Private directories for the temporary files of a session. Everyone may read what Spark writes to its own, and it remains if a
run is killed: it is what is shuffled, which for some commands are whole keys.

So Spark is given directories that nobody else may enter; this package's own files are in such directories, too. A lock says
that the run has not ended. The next run of the same user removes directories that nobody has locked. Links, directories of
others, and all where others could have renamed directories of this user, are left alone.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from compaction.kernels.compiling.ownership import why_not_private

_PREFIX = "kafka-log-compaction-local-"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def private_dirs(parents: str) -> str:
    """New private directories, one in each of ``parents``; both are separated by commas, as in ``spark.local.dir``.

    They are removed when this process ends.

    :raises OSError: one cannot be created
    """
    return ",".join(_private_dir(Path(parent.strip()).absolute()) for parent in parents.split(","))


def _private_dir(parent: Path) -> str:
    parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(parent)
    new = Path(tempfile.mkdtemp(prefix=".kafka-log-compaction-", dir=parent))
    # the descriptor is never closed: it holds the lock
    _locked(new)
    # locked before another run could take it for abandoned
    path = new.rename(parent / f"{_PREFIX}{new.name.rpartition('-')[2]}")
    atexit.register(_remove, path, os.getpid())
    return str(path)


def _remove(path: Path, pid: int) -> None:
    # forks of this process are not its end
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    if why_not_private(parent, shared=True):
        return
    for path in parent.glob(f"{_PREFIX}*"):
        opened = _locked(path)
        if opened is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(opened)


def _locked(directory: Path) -> int | None:
    """A descriptor that locks a private directory of this user; ``None`` if it is none, or another process has locked it."""
    try:
        opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        found = os.fstat(opened)
        if found.st_uid == os.geteuid() and not found.st_mode & _OTHERS:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return opened
    except OSError:
        # another process has locked it, or this file system has no locks
        pass
    os.close(opened)
    return None
