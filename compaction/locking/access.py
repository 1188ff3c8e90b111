"""A run's hold on its log directories: locks as a broker takes them, and claims in case locks do not work.

Who changes a directory holds its lock and a claim; who copies it elsewhere holds a shared lock, if there is a lock file; who
only looks holds nothing, and learns of others.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from compaction.errors import LockedError, StorageError, UsageError
from compaction.fs.durable import remove_temporary
from compaction.fs.filesystem import DiskFileSystem
from compaction.fs.uri import is_remote
from compaction.locking.claim import NO_OWNER, PROCESSES, Claim, Owner, Runs

_LOG = logging.getLogger(__name__)


class Purpose(enum.Enum):
    """What a run does to its log directories."""

    READ = "read"
    COPY = "copy"
    CHANGE = "change"


@dataclass(frozen=True)
class Access:
    """A run's hold: the claim on each directory that it changes, and the directories that somebody else has locked."""

    owners: Mapping[str, Owner] = field(default_factory=dict)
    in_use: frozenset[str] = frozenset()

    def owner(self, log_dir: str) -> Owner:
        """The claim on a directory."""
        return self.owners.get(log_dir, NO_OWNER)


@contextmanager
def access(files: DiskFileSystem, log_dirs: Sequence[str], purpose: Purpose, runs: Runs = PROCESSES) -> Iterator[Access]:
    """Hold log directories for a run. Addresses have no lock that a broker could hold.

    :param runs: tells this run from others
    :raises LockedError: a live broker or another run holds one
    :raises UsageError: a lock or a claim cannot be taken
    """
    local = [each for each in log_dirs if not is_remote(each)]
    owners: dict[str, Owner] = {}
    with ExitStack() as stack:
        if purpose is Purpose.READ:
            yield Access(in_use=frozenset(_in_use(files, local)))
            return
        identity = runs.begin()
        for log_dir in local:
            with _wrong_call():
                stack.callback(files.lock(log_dir, shared=purpose is Purpose.COPY).release)
                if purpose is Purpose.CHANGE:
                    claim = Claim.take(files, log_dir, identity, runs.is_over)
                    stack.callback(claim.release)
                    owners[log_dir] = claim
                    remove_temporary(files, log_dir)
        yield Access(owners)


def require_still_unlocked(files: DiskFileSystem, log_dirs: Sequence[str]) -> None:
    """For who copies directories that may have had no lock file.

    :raises LockedError: a broker or another run has taken a lock meanwhile
    """
    for log_dir in log_dirs:
        holder = None if is_remote(log_dir) else files.lock_holder(log_dir)
        if holder is not None:
            hint = "stop it and run again; nothing has appeared"
            raise LockedError(f"{holder} has begun to work here while the logs were copied", path=log_dir, hint=hint)


def _in_use(files: DiskFileSystem, log_dirs: Sequence[str]) -> Iterator[str]:
    for log_dir in log_dirs:
        holder = files.lock_holder(log_dir)
        if holder is not None:
            _LOG.warning("%s: %s is at work here: figures are a snapshot", log_dir, holder)
            yield log_dir


@contextmanager
def _wrong_call() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise UsageError(error.what, path=error.path, hint=error.hint) from error
