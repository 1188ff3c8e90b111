"""Writes the files of an output in an object store or on a remote file system."""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from compaction.errors import StorageError
from compaction.storage.clients import located, remote_errors
from compaction.storage.contents import read_range
from compaction.storage.filesystem import FileRange, FileStat, FileSystem, join, removed_on_failure
from compaction.storage.kinds import split
from compaction.storage.listings import is_missing, list_directory, read_whole, stat_objects
from compaction.storage.manifest import MARKER, run_of
from compaction.storage.mixed import MixedFileSystem
from compaction.storage.source_check import shared
from compaction.storage.streams import ObjectFile, ObjectOutput, RangeReader, delete_object, require_stored
from compaction.storage.uri import is_inside

#: stores in which a directory is only a prefix of keys
_FLAT = frozenset({"s3", "gcs", "abfs"})


class WrittenObject(NamedTuple):
    """An object as it was written: size, content hash (``None`` for a copy made by the store of an object without a listed
    one), and the file's modification time, ns (0: the time of the upload)."""

    size_bytes: int
    xxh3_128: str | None
    mtime_ns: int = 0


class OutputFileSystem(FileSystem):
    """The files of an unpublished output. Nothing is cached; a rename is a copy and a removal.

    ``written`` has the files by path.
    """

    def __init__(self) -> None:
        self.written: dict[str, WrittenObject] = {}
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

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return ObjectFile(path).read(start, length)

    def reader(self, path: str, start: int, end: int, *, uncached: bool = False) -> RangeReader:
        return RangeReader(path, start, end, checked=False)

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        output = ObjectOutput(path)
        output.write([data])
        output.close(sync=True)
        self.written[path] = WrittenObject(len(data), xxhash.xxh3_128_hexdigest(data), mtime_ns or 0)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        """Copy a local file or an object into a new object; within one store, the store copies it.

        :raises CorruptLogError: the file differs from its manifest entry
        """
        here = is_inside(source, split(target)[0])
        found = stat_objects([source])[0] if here else self._sources.stat(source)
        size = 0 if found is None else found.size
        part = FileRange(source, start, size - start if length is None else length)
        if here and part == (source, 0, size) and self._copy_known(source, target, size):
            return
        content = xxhash.xxh3_128()
        with removed_on_failure(ObjectOutput(target)) as output:
            for block in read_range(self._sources, part):
                content.update(block)
                output.write([block])
            output.close(sync=True)
        self.written[target] = WrittenObject(part.size, content.hexdigest())

    def _copy_known(self, source: str, target: str, size: int) -> bool:
        """Copy an object within the store; ``False`` if it must be read: its manifest entry has no ETag, or another one."""
        listed = shared().entry(source)
        xxh3_128 = None
        if listed is not None:
            if listed[0].etag is None or ObjectFile(source, shared()).etag() != listed[0].etag:
                return False
            xxh3_128 = listed[0].xxh3_128
        self.copy_within(source, target)
        self.written[target] = WrittenObject(size, xxh3_128)
        return True

    def copy_within(self, source: str, target: str) -> None:
        (store, key), (_, target_key) = located(source), located(target)
        with remote_errors(target, f"copy {source} here"):
            store.copy_file(key, target_key)

    def adopt(self, source: str, target: str, stored: WrittenObject) -> None:
        """Rename an object that a task has written.

        :raises StorageError: it is missing, or has another size
        """
        require_stored(source, stat_objects([source])[0], stored.size_bytes)
        self.copy_within(source, target)
        delete_object(source)
        self.written[target] = stored

    def rename(self, source: str, target: str) -> None:
        found = self.stat(source)
        known = self.written.pop(source, None) or WrittenObject(0 if found is None else found.size, None)
        self.adopt(source, target, known)

    def link(self, source: str, target: str) -> bool:
        """Always ``False``: stores have no links."""
        return False

    def unlink(self, path: str) -> None:
        delete_object(path)
        self.written.pop(path, None)

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

    def utime(self, path: str, mtime_ns: int) -> None:
        """Set a file's modification time for the manifest."""
        self.written[path] = self.written[path]._replace(mtime_ns=mtime_ns)

    def fsync(self, path: str) -> None:
        """No operation: an object is durable when its upload is complete."""

    def fsync_dir(self, path: str) -> None:
        """No operation: an object is durable when its upload is complete."""


def marked_by(directory: str) -> str | None:
    """The run whose marker is there; ``None`` if there is none, or it is malformed."""
    path = join(directory, MARKER)
    return None if stat_objects([path])[0] is None else run_of(read_whole(path))
