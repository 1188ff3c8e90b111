"""Locks log directories for a run as a broker does, with claims in case locks do not work.

A run that changes a directory holds its lock and a claim. A run that reads it holds a shared lock, if there is a lock file. One
that copies it makes that file, as a broker does, if the directory can be written: who comes first is served first. A dry run
holds nothing, and reports processes that do.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from compaction.errors import LockedError, StorageError, UsageError
from compaction.files.durable import remove_temporary
from compaction.files.filesystem import NO_LOCK, DiskFileSystem, join, storage_of
from compaction.log.claim import NO_OWNER, Claim, Identity, Owner
from compaction.names import LOCK

_LOG = logging.getLogger(__name__)


class Purpose(enum.Enum):
    #: nothing is locked
    READ = "read"
    SHARE = "share"
    COPY = "copy"
    CHANGE = "change"


@dataclass(frozen=True)
class Access:
    """The claim on each directory that the run changes, and the directories locked by other processes."""

    owners: Mapping[str, Owner] = field(default_factory=dict)
    in_use: frozenset[str] = frozenset()

    def owner(self, log_dir: str) -> Owner:
        return self.owners.get(log_dir, NO_OWNER)


@contextmanager
def access(files: DiskFileSystem, log_dirs: Sequence[str], purpose: Purpose) -> Iterator[Access]:
    """Lock log directories for a run.

    :raises LockedError: a broker or another run holds one
    :raises UsageError: a lock or a claim cannot be taken
    """
    owners: dict[str, Owner] = {}
    with ExitStack() as stack:
        if purpose is Purpose.READ:
            yield Access(in_use=frozenset(_in_use(files, log_dirs)))
            return
        identity = Identity.of_this_process()
        for log_dir in log_dirs:
            try:
                if purpose is Purpose.COPY:
                    _make_lock_file(files, log_dir)
                lock = files.lock(log_dir, shared=purpose is not Purpose.CHANGE)
                stack.callback(lock.release)
                if purpose is Purpose.CHANGE and lock is not NO_LOCK:
                    claim = Claim.take(files, log_dir, identity)
                    stack.callback(claim.release)
                    owners[log_dir] = claim
                    remove_temporary(files, log_dir)
            except StorageError as error:
                raise UsageError(error.message, path=error.path, hint=error.hint) from error
        yield Access(owners)


def _make_lock_file(files: DiskFileSystem, log_dir: str) -> None:
    """Without one, nobody would see the lock of a run that copies the directory."""
    path = join(log_dir, LOCK)
    # where the run may not write, others that change the directory are found out when the copy is complete
    with suppress(StorageError):
        if storage_of(log_dir).locks and files.stat(path) is None:
            files.link_new(path, b"", like=log_dir)


def require_still_unlocked(files: DiskFileSystem, log_dirs: Sequence[str]) -> None:
    """Check directories that were copied, possibly without a lock file.

    :raises LockedError: a broker or another run has locked one since
    """
    for log_dir in log_dirs:
        holder = files.lock_holder(log_dir)
        if holder is not None:
            hint = "stop it and run again; no output was published"
            raise LockedError(f"{holder} locked this directory while the logs were copied", path=log_dir, hint=hint)


def _in_use(files: DiskFileSystem, log_dirs: Sequence[str]) -> Iterator[str]:
    for log_dir in log_dirs:
        holder = files.lock_holder(log_dir)
        if holder is not None:
            _LOG.warning("%s: %s is at work here: figures are a snapshot", log_dir, holder)
            yield log_dir
