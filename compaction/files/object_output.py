"""Writes the files of an output in an object store or on a remote file system.

Marks a prefix of a store as that of one run: of two runs that begin there at once, at most one goes on.

A store has no locks, and its clients have no conditional writes. Before a run writes to an empty prefix, it puts an object of
its own there, its claim, and lists the prefix: if anything else is there, it removes its claim and fails. The claim is removed
when the marker is there. As listings are consistent, of two runs the one that lists last finds the claim, the marker or objects
of the other.
"""

from __future__ import annotations

from contextlib import suppress

from compaction.errors import StorageError, UsageError
from compaction.files.contents import read_range
from compaction.files.filesystem import File, FileRange, FileStat, FileSystem, join, removed_on_failure, split
from compaction.files.manifest import MARKER, run_of, shared
from compaction.files.mixed import MixedFileSystem
from compaction.files.object_store import (
    ObjectFile,
    ObjectOutput,
    delete_object,
    is_missing,
    list_directory,
    located,
    read_whole,
    remote_errors,
    stat_objects,
)
from compaction.files.remote import open_sequential
from compaction.files.uri import is_inside

#: stores in which a directory is only a prefix of keys
_FLAT = frozenset({"s3", "gcs", "abfs"})


class OutputFileSystem(FileSystem):
    """The files of an unpublished output. Nothing is cached; a rename is a copy and a removal."""

    def __init__(self) -> None:
        self._sources = MixedFileSystem()

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(name for name in list_directory(path) if name)
        except StorageError as error:
            if is_missing(error):
                return []
            raise

    def stat(self, path: str) -> FileStat | None:
        return stat_objects([path])[0]

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        return ObjectFile(path) if end is None else open_sequential(path, start, end, checked=False)

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        output = ObjectOutput(path)
        output.write([data])
        output.close(sync=True)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        """Copy a local file or an object into a new object; within one store, the store copies it.

        :raises CorruptLogError: the file differs from its manifest entry
        """
        stat = stat_objects([source])[0] if is_inside(source, split(target)[0]) else self._sources.stat(source)
        size = 0 if stat is None else stat.size
        part = FileRange(source, start, size - start if length is None else length)
        if part == (source, 0, size) and self.copy_inside(source, target):
            return
        with removed_on_failure(ObjectOutput(target)) as output:
            for block in read_range(self._sources, part):
                output.write([block])
            output.close(sync=True)

    def copy_inside(self, source: str, target: str) -> bool:
        """Let the store copy an object of its own, unless it differs from its manifest entry."""
        if not is_inside(source, split(target)[0]) or not _is_as_listed(source):
            return False
        self.copy_within(source, target)
        return True

    def copy_within(self, source: str, target: str) -> None:
        (store, key), (_, target_key) = located(source), located(target)
        with remote_errors(target, f"copy {source} here"):
            store.copy_file(key, target_key)

    def rename(self, source: str, target: str) -> None:
        self.copy_within(source, target)
        delete_object(source)

    def link(self, source: str, target: str) -> bool:
        """Always ``False``: stores have no links."""
        return False

    def unlink(self, path: str) -> None:
        delete_object(path)

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        """Make a directory on a remote file system; a store has none."""
        store, key = located(path)
        if store.type_name not in _FLAT:
            with remote_errors(path, "make the directory"):
                store.create_dir(key, recursive=True)

    def remove_tree(self, path: str) -> None:
        store, key = located(path)
        try:
            with remote_errors(path, "remove the directory"):
                store.delete_dir(key)
        except StorageError as error:
            if not is_missing(error):
                raise

    def fsync(self, path: str) -> None:
        """No operation: an object is durable when its upload is complete."""

    def fsync_dir(self, path: str) -> None:
        """No operation: an object is durable when its upload is complete."""


def _is_as_listed(source: str) -> bool:
    """Whether an object need not be read to be copied: its manifest has no entry of it, or one with its ETag."""
    listed = shared().entry(source)
    return listed is None or (listed[0].etag is not None and ObjectFile(source, shared().check).etag() == listed[0].etag)


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
