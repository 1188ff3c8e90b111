"""Writes cleaned logs to an object store or a remote file system, where they appear complete or not at all.

There is no rename that could put a directory in place, so that a manifest says when it is complete
(``compaction.storage.manifest``):

1. the marker is written: what is here belongs to an unfinished run, which the next one removes
2. objects are written under their final prefix; tasks write theirs under names of their own, which are copied within the store
3. whatever is not part of the output is removed, what is part of it is looked at once more, and the manifest is written
4. the marker goes

A stop anywhere before 3 leaves a prefix without a manifest. Two runs into one prefix cannot lock each other out: the one that
began later wins, the other finds a marker that is not its own and fails before its manifest.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from compaction.cleaning.model import Segment
from compaction.errors import StorageError, UsageError
from compaction.names import SEGMENT_KINDS, segment_file
from compaction.storage.discover import LogLocation
from compaction.storage.filesystem import Extent, FileStat, FileSystem, Lock, base_name, join
from compaction.storage.local import LocalFileSystem
from compaction.storage.manifest import MANIFEST, MARKER, Entry, Manifest, marker, run_of
from compaction.storage.places import is_inside, is_remote, resolved, split
from compaction.storage.publish import Copy, Publication, layout
from compaction.storage.remote import RemoteFileSystem, list_directory, look_up
from compaction.storage.stores import located, remote_errors
from compaction.storage.streams import COPY_BYTES, ObjectOutput, RangeReader, delete_object, etag_of, read_whole
from compaction.storage.swap import SwapGroup

_LOG = logging.getLogger(__name__)
_THREADS = 8
#: kinds of stores in which a directory is nothing but the prefix of its objects
_FLAT = frozenset({"s3", "gcs", "abfs"})


class OutputFileSystem:
    """The place of an output that nobody reads yet: nothing is remembered, a rename is a copy and a removal.

    ``written`` has the files by path, with their own time of last modification, ns (0: when they were written).
    """

    def __init__(self) -> None:
        self.written: dict[str, int] = {}
        self._local = LocalFileSystem()

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(name for name in list_directory(path) if name)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return []
            raise

    def stat(self, path: str) -> FileStat | None:
        return look_up([path])[0]

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return RemoteFileSystem().read_bytes(path, start, length)

    def reader(self, path: str, start: int, end: int, *, fresh: bool = False) -> RangeReader:
        return RangeReader(path, start, end)

    def real_path(self, path: str) -> Extent | None:
        return RemoteFileSystem().real_path(path)

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> ObjectOutput:
        return ObjectOutput(path)

    def link_new(self, path: str, data: bytes, like: str) -> bool:
        """:raises StorageError: always; a store cannot do that"""
        raise StorageError("a store gives no names in one step", path=path)

    def lock(self, log_dir: str, *, shared: bool = False) -> Lock:
        """:raises StorageError: always; a store has no locks"""
        raise StorageError("a store has no locks", path=log_dir)

    def lock_holder(self, log_dir: str) -> str | None:
        """Nobody: a store has no locks."""
        return None

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        output = ObjectOutput(path)
        output.write([data])
        output.close(sync=True)
        self.written[path] = mtime_ns or 0

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        """A file of any place to a new object; within a store, by the store."""
        found = self._local.stat(source) if not is_remote(source) else None
        if is_remote(source):
            size = 0 if (there := look_up([source])[0]) is None else there.size
            end = size if length is None else start + length
            if (start, end) == (0, size) and split(source)[0] == split(target)[0]:
                self._copy_within(source, target)
            else:
                self._stream(source, target, start, end)
        else:
            self._upload(source, target, start, length)
        self.written[target] = 0 if found is None else found.mtime_ns

    def _copy_within(self, source: str, target: str) -> None:
        (store, key), (_, target_key) = located(source), located(target)
        with remote_errors(target, f"copy {source} here"):
            store.copy_file(key, target_key)

    def _stream(self, source: str, target: str, start: int, end: int) -> None:
        reader, output = RangeReader(source, start, end), ObjectOutput(target)
        try:
            buffer = memoryview(bytearray(min(COPY_BYTES, max(1, end - start))))
            at = start
            while at < end and (n := reader.read_into(buffer[: end - at], at, at)):
                output.write([buffer[:n]])
                at += n
            output.close(sync=True)
        except BaseException:
            output.remove()
            raise
        finally:
            reader.close()

    def _upload(self, source: str, target: str, start: int, length: int | None) -> None:
        output = ObjectOutput(target)
        try:
            end = None if length is None else start + length
            while data := self._local.read_bytes(source, start, COPY_BYTES if end is None else min(COPY_BYTES, end - start)):
                output.write([data])
                start += len(data)
            output.close(sync=True)
        except BaseException:
            output.remove()
            raise

    def rename(self, source: str, target: str) -> None:
        self._copy_within(source, target)
        delete_object(source)
        self.written[target] = self.written.pop(source, 0)

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
            if not isinstance(error.__cause__, FileNotFoundError):
                raise

    def utime(self, path: str, mtime_ns: int) -> None:
        self.written[path] = mtime_ns

    def fsync(self, path: str) -> None:
        """Nothing to make safe."""

    def fsync_dir(self, path: str) -> None:
        """Nothing to make safe."""


class ObjectPublication(Publication):
    """A set of log directories in the making, in a remote place. Begin with :meth:`begin`."""

    def __init__(self, output: OutputFileSystem, disk: FileSystem, place: str, log_dirs: Sequence[str], run: str) -> None:
        super().__init__(output, disk, place, layout(place, log_dirs))
        self._output, self._place, self._run = output, place, run

    @classmethod
    def begin(cls, output_dir: str, log_dirs: Sequence[str], disk: FileSystem) -> ObjectPublication:
        """Prepare to publish to ``output_dir``, which must be empty, not there, or unfinished.

        :raises UsageError: it is something else, or lies in a log directory; log directories of one name
        :raises StorageError: the store refused
        """
        for log_dir in log_dirs:
            if is_inside(output_dir, resolved(log_dir)):
                what = f"--output-dir lies in the log directory {log_dir}"
                raise UsageError(what, path=output_dir, hint="name another place")
        layout(output_dir, log_dirs)
        output, run = OutputFileSystem(), uuid.uuid4().hex
        names = output.listdir(output_dir)
        if MANIFEST in names or (names and MARKER not in names):
            raise UsageError("--output-dir exists and is not empty", path=output_dir, hint="name a new directory")
        if names:
            _LOG.warning("%s: what an earlier run left unfinished is removed", output_dir)
        output.mkdir(output_dir)
        output.write_file(join(output_dir, MARKER), marker(run))
        made = cls(output, disk, output_dir, log_dirs, run)
        made._remove(name for name in names if name != MARKER)
        return made

    def log_path(self, location: LogLocation) -> str:
        """The directory where the tasks write the cleaned segments of a log."""
        path = join(self._root(location.log_dir), base_name(location.path))
        self._output.mkdir(path)
        return path

    def _root(self, log_dir: str) -> str:
        self._output.mkdir(self._roots[log_dir])
        return self._roots[log_dir]

    def add_log(
        self,
        source: FileSystem,
        location: LogLocation,
        groups: Sequence[SwapGroup],
        segments: Sequence[Segment],
        *,
        end_offset: int | None,
    ) -> None:
        """See ``Publication``."""
        self._require_own()
        super().add_log(source, location, groups, segments, end_offset=end_offset)

    def commit(self, source: FileSystem) -> None:
        """Add what belongs to the log directories and write the manifest.

        :raises StorageError: the store refused, or another run writes here
        :raises CorruptLogError: a checkpoint of the source is garbled
        """
        self._require_own()
        super().commit(source)

    def _adopt(self, target: str, group: SwapGroup) -> None:
        super()._adopt(target, group)
        for kind in SEGMENT_KINDS:
            name = join(target, segment_file(group.base_offset, kind))
            if name in self._output.written:
                self._output.utime(name, group.mtime_ms * 1_000_000)

    def _copy_all(self, source: FileSystem, copies: Sequence[Copy]) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda each: self._copy(source, each), copies))

    def _copy(self, source: FileSystem, each: Copy) -> None:
        found = source.stat(each.path)
        super()._copy(source, each)
        if found is not None and found.is_file:
            self._output.utime(each.target, found.mtime_ns)

    def _is_own(self) -> bool:
        path = join(self._place, MARKER)
        return look_up([path])[0] is not None and run_of(read_whole(path)) == self._run

    def _require_own(self) -> None:
        """:raises StorageError: another run has begun to write here"""
        if not self._is_own():
            raise StorageError("another run writes to this place", path=self._place, hint="let one run at a time write there")

    def _appear(self) -> None:
        self._require_own()
        wanted = {path[len(self._place) + 1 :]: path for path in self._output.written}
        wanted.pop(MARKER)
        found = list_directory(self._place, recursive=True)
        files = {name: stat for name, stat in found.items() if stat.is_file}
        missing = sorted(wanted.keys() - files.keys())
        if missing:
            raise StorageError("output of this run has vanished", path=wanted[missing[0]], hint="run again")
        for name in files.keys() - wanted.keys() - {MARKER}:
            delete_object(join(self._place, name))
        with ThreadPoolExecutor(_THREADS) as pool:
            etags = dict(zip(wanted, pool.map(etag_of, wanted.values()), strict=True))
        entries = (
            Entry(name, files[name].size, (self._output.written[path] or files[name].mtime_ns) // 1_000_000, etags[name])
            for name, path in wanted.items()
        )
        manifest = Manifest(tuple(entries))
        self._require_own()
        self._output.write_file(join(self._place, MANIFEST), manifest.to_json())
        delete_object(join(self._place, MARKER))

    def abort(self) -> None:
        """Give up: what this run has written goes, the marker last."""
        try:
            if self._is_own():
                self._remove(name for name in self._output.listdir(self._place) if name != MARKER)
                delete_object(join(self._place, MARKER))
        except StorageError as error:
            _LOG.warning("%s; the next run into this place removes what is left", error)

    def _remove(self, names: Iterable[str]) -> None:
        found = list_directory(self._place)
        for name in names:
            path = join(self._place, name)
            if found[name].is_dir:
                self._output.remove_tree(path)
            else:
                delete_object(path)
