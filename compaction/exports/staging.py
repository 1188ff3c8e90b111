"""A hidden directory beside an output on a disk, which only its owner may enter.

It is locked while a run uses it. The next run with the same output removes the directories of killed runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from compaction.output.finished import STAGED, hidden_name, remove_leftovers
from compaction.storage.filesystem import DiskFileSystem, parent


@contextmanager
def staging_directory(files: DiskFileSystem, path: str) -> Iterator[str]:
    """The directory, beside ``path``; removed at the end.

    :raises LockedError: another run uses one for the same output
    """
    remove_leftovers(files, path)
    files.mkdir(parent(path))
    staging = hidden_name(path, STAGED)
    files.mkdir(staging, private=True)
    lock = files.lock(staging)
    try:
        yield staging
    finally:
        lock.release()
        files.remove_tree(staging)
