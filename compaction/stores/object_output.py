"""Files of an output in an object store or on a remote file system, as they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from compaction.errors import StorageError
from compaction.fs.filesystem import Chunk, FileRange, FileStat
from compaction.fs.local import LocalFileSystem
from compaction.fs.uri import is_remote, split
from compaction.stores.clients import located, remote_errors
from compaction.stores.listings import is_missing, list_directory, stat_objects
from compaction.stores.source_check import shared
from compaction.stores.streams import COPY_BYTES, ObjectFile, ObjectOutput, RangeReader, delete_object, require_stored

#: kinds of stores in which a directory is nothing but the prefix of its objects
_FLAT = frozenset({"s3", "gcs", "abfs"})


@dataclass(frozen=True)
class WrittenObject:
    """An object as it was written: its bytes (no hash for what the store copied from an object that has none listed), and the
    file's own time of last modification, ns (0: when it was written)."""

    size_bytes: int
    xxh3_128: str | None
    mtime_ns: int = 0


class OutputFileSystem:
    """The place of an output that nobody reads yet: nothing is remembered, a rename is a copy and a removal.

    ``written`` has the files by path.
    """

    def __init__(self) -> None:
        self.written: dict[str, WrittenObject] = {}
        self._local = LocalFileSystem()

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
        file = ObjectFile(path)
        end = file.size() if length is None else min(file.size(), start + length)
        return file.read_at(end - start, start) if end > start else b""

    def reader(self, path: str, start: int, end: int, *, uncached: bool = False) -> RangeReader:
        return RangeReader(path, start, end, checked=False)

    def real_path(self, path: str) -> FileRange | None:
        found = self.stat(path)
        return FileRange(path, 0, 0 if found is None else found.size)

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        output = ObjectOutput(path)
        output.write([data])
        self._close(output, mtime_ns or 0)

    def _close(self, output: ObjectOutput, mtime_ns: int = 0) -> None:
        output.close(sync=True)
        if output.content is not None:
            self.written[output.path] = WrittenObject(*output.content, mtime_ns)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        """A file of any place to a new object; within a store, by the store.

        :raises CorruptLogError: the file is not the one that its manifest lists
        """
        if not is_remote(source):
            local = self._local.stat(source)
            self._store(self._local_blocks(source, start, length), target, 0 if local is None else local.mtime_ns)
            return
        found = stat_objects([source])[0]
        size = 0 if found is None else found.size
        end = size if length is None else start + length
        if (start, end) == (0, size) and split(source)[0] == split(target)[0] and self._copy_known(source, target, size):
            return
        with closing(RangeReader(source, start, end)) as reader:
            self._store(reader.blocks(), target)

    def _copy_known(self, source: str, target: str, size: int) -> bool:
        """Copy an object within the store, unless its content needs a look: a manifest lists it, and not with this ETag."""
        listed = shared().entry(source)
        xxh3_128 = None
        if listed is not None:
            if listed[0].etag is None or ObjectFile(source, shared()).etag() != listed[0].etag:
                return False
            xxh3_128 = listed[0].xxh3_128
        self._copy_within(source, target)
        self.written[target] = WrittenObject(size, xxh3_128)
        return True

    def _copy_within(self, source: str, target: str) -> None:
        (store, key), (_, target_key) = located(source), located(target)
        with remote_errors(target, f"copy {source} here"):
            store.copy_file(key, target_key)

    def _store(self, blocks: Iterable[Chunk], target: str, mtime_ns: int = 0) -> None:
        output = ObjectOutput(target)
        try:
            for block in blocks:
                output.write([block])
            self._close(output, mtime_ns)
        except BaseException:
            output.remove()
            raise

    def _local_blocks(self, path: str, start: int, length: int | None) -> Iterator[bytes]:
        end = None if length is None else start + length
        while data := self._local.read_bytes(path, start, COPY_BYTES if end is None else min(COPY_BYTES, end - start)):
            yield data
            start += len(data)

    def adopt(self, source: str, target: str, stored: WrittenObject) -> None:
        """Give an object that a task has written its final name.

        :raises StorageError: it is not there
        """
        require_stored(source, stat_objects([source])[0], stored.size_bytes)
        self._copy_within(source, target)
        delete_object(source)
        self.written[target] = stored

    def rename(self, source: str, target: str) -> None:
        found = self.stat(source)
        known = self.written.pop(source, None) or WrittenObject(0 if found is None else found.size, None)
        self.adopt(source, target, known)

    def link(self, source: str, target: str) -> bool:
        """Never: an object has one name."""
        return False

    def unlink(self, path: str) -> None:
        delete_object(path)
        self.written.pop(path, None)

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        """A directory, where the place has any: in a store it is there when it has an object."""
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
        self.written[path] = replace(self.written[path], mtime_ns=mtime_ns)

    def fsync(self, path: str) -> None:
        """Nothing to make safe."""

    def fsync_dir(self, path: str) -> None:
        """Nothing to make safe."""
