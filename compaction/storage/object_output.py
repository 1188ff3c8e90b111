"""Writes the files of an output in an object store or on a remote file system."""

from __future__ import annotations

from compaction.errors import StorageError
from compaction.storage.clients import located, remote_errors
from compaction.storage.contents import read_range
from compaction.storage.filesystem import File, FileRange, FileStat, FileSystem, removed_on_failure
from compaction.storage.kinds import split
from compaction.storage.listings import is_missing, list_directory, stat_objects
from compaction.storage.mixed import MixedFileSystem
from compaction.storage.source_check import shared
from compaction.storage.streams import ObjectFile, ObjectOutput, delete_object, open_sequential
from compaction.storage.uri import is_inside

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
    return listed is None or (listed[0].etag is not None and ObjectFile(source, shared()).etag() == listed[0].etag)
