"""Marks a prefix of a store as that of one run: of two runs that begin there at once, at most one goes on.

A store has no locks, and its clients have no conditional writes. Before a run writes to an empty prefix, it puts an object of
its own there, its claim, and lists the prefix: if anything else is there, it removes its claim and fails. The claim is removed
when the marker is there. As listings are consistent, of two runs the one that lists last finds the claim, the marker or objects
of the other.
"""

from __future__ import annotations

from contextlib import suppress

from compaction.errors import StorageError, UsageError
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.listings import read_whole, stat_objects
from compaction.storage.manifest import MARKER, run_of

#: what the name of a claim begins with; the run follows
CLAIM = "_claim-"
ONE_RUN = "let one run at a time write there"


def put_marker(files: FileSystem, path: str, run: str, content: bytes) -> None:
    """Write a run's marker, if nothing else is there. Its claim has the same content.

    :raises UsageError: another run has begun to write there
    """
    claim = CLAIM + run
    files.mkdir(path)
    try:
        files.write_file(join(path, claim), content)
        _require_alone(files, path, claim)
        files.write_file(join(path, MARKER), content)
    except BaseException:
        with suppress(StorageError):
            files.unlink(join(path, claim))
        raise
    files.unlink(join(path, claim))


def _require_alone(files: FileSystem, path: str, claim: str) -> None:
    if files.listdir(path) != [claim]:
        raise UsageError("another run writes to --output-dir", path=path, hint=ONE_RUN)


def marked_by(directory: str) -> str | None:
    """The run whose marker is there; ``None`` if there is none, or it is malformed."""
    path = join(directory, MARKER)
    return None if stat_objects([path])[0] is None else run_of(read_whole(path))


def require_own(directory: str, run: str) -> None:
    """:raises StorageError: another run has begun to write there"""
    if marked_by(directory) != run:
        raise StorageError("another run writes to this directory", path=directory, hint=ONE_RUN)
