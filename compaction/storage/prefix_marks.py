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
from compaction.storage.manifest import MARKER

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
