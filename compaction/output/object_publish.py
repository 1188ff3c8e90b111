"""Publishes cleaned logs to an object store or a remote file system, where a manifest makes the output complete.

An object store has no rename that could put a directory in place (see ``compaction.stores.manifest``). Steps:

1. The marker is written: these objects belong to an unfinished run, and the next run removes them.
2. Objects are written under their final prefix. Tasks write under temporary names; the store copies these to the final names.
3. The listing is compared with what was written, by size. Objects that are not part of the output are removed, and the prefix
   is listed again.
4. The manifest is written and read back.
5. The marker is removed.

An interruption before step 4 leaves a prefix without a manifest. A failed run removes what it has written and keeps the marker,
because killed tasks may still upload: under temporary names, which readers of a finished output do not see and which the next
run removes. An object store has no locks. If two runs write to the same prefix, the later one wins; the other finds a marker
that is not its own and fails before it writes its manifest.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from compaction.errors import CorruptLogError, StorageError, UsageError
from compaction.fs.filesystem import DiskFileSystem, FileSystem, join
from compaction.names import LOG, LogLocation, segment_file
from compaction.output.publish import Copy, Publication, layout, require_target
from compaction.output.swap import SwapGroup
from compaction.stores.listings import list_directory, read_whole, stat_objects
from compaction.stores.manifest import MANIFEST, MARKER, Entry, Manifest, marker, run_of
from compaction.stores.object_output import OutputFileSystem, WrittenObject
from compaction.stores.streams import ObjectFile, delete_object, require_stored

_LOG = logging.getLogger(__name__)
_THREADS = 8
_ONE_RUN = "let one run at a time write there"


class ObjectPublication(Publication):
    """See ``Publication``. Begin with :meth:`begin`."""

    def __init__(
        self, output: OutputFileSystem, disk: DiskFileSystem, output_dir: str, log_dirs: Sequence[str], run: str
    ) -> None:
        super().__init__(output, disk, output_dir, layout(output_dir, log_dirs))
        self._output, self._run = output, run
        self._tasks_may_write = False

    @classmethod
    def begin(cls, output_dir: str, log_dirs: Sequence[str], disk: DiskFileSystem) -> ObjectPublication:
        """Prepare to publish to ``output_dir``, which must be empty, missing or unfinished.

        :raises UsageError: it is none of these, or is inside a log directory; two log directories have the same name
        :raises StorageError: the store refused
        """
        require_target(output_dir, log_dirs)
        output, run = OutputFileSystem(), uuid.uuid4().hex
        names = output.listdir(output_dir)
        if names and not _is_unfinished(output_dir, names):
            raise UsageError("--output-dir exists and is not empty", path=output_dir, hint="name a new directory")
        if names:
            _LOG.warning("%s: removing the unfinished output of an earlier run", output_dir)
        output.mkdir(output_dir)
        output.write_file(join(output_dir, MARKER), marker(run))
        publication = cls(output, disk, output_dir, log_dirs, run)
        publication._remove(name for name in names if name != MARKER)
        return publication

    def log_path(self, location: LogLocation) -> str:
        """See ``Publication``."""
        self._tasks_may_write = True
        return super().log_path(location)

    def _adopt(self, target: str, group: SwapGroup) -> None:
        if not group.files:
            name = join(target, segment_file(group.base_offset, LOG, group.suffix))
            raise StorageError("size and content of this run's output are unknown", path=name)
        for written in group.files:
            name, final = (join(target, segment_file(group.base_offset, written.kind, end)) for end in (group.suffix, ""))
            self._output.adopt(name, final, WrittenObject(written.size, written.digest, group.mtime_ms * 1_000_000))
            self._sizes[final] = written.size

    def _copy_all(self, source: FileSystem, copies: Sequence[Copy]) -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda each: self._copy(source, each), copies))

    def _copy(self, source: FileSystem, each: Copy) -> None:
        found = source.stat(each.path)
        super()._copy(source, each)
        if found is not None and found.is_file:
            self._output.utime(each.target, found.mtime_ns)

    def _is_own(self) -> bool:
        path = join(self._output_dir, MARKER)
        return stat_objects([path])[0] is not None and run_of(read_whole(path)) == self._run

    def _require_own(self) -> None:
        if not self._is_own():
            raise StorageError("another run writes to this directory", path=self._output_dir, hint=_ONE_RUN)

    def _appear(self) -> None:
        self._require_own()
        paths = {path[len(self._output_dir) + 1 :]: path for path in self._sizes}
        # twice: an upload of a killed task may arrive while the first listing is compared
        self._keep_only(paths)
        times = self._keep_only(paths)
        manifest = Manifest(tuple(self._entries(paths, times)), self._run, self._output_dir)
        self._require_own()
        path, data = join(self._output_dir, MANIFEST), manifest.to_json()
        self._output.write_file(path, data)
        if read_whole(path) != data:
            raise StorageError("is not as it was written", path=path, hint="run again; the store has changed it")
        try:
            delete_object(join(self._output_dir, MARKER))
        except StorageError as error:
            _LOG.warning("%s; the output is complete nevertheless", error)

    def _keep_only(self, paths: Mapping[str, str]) -> dict[str, int]:
        """Check that the output's objects exist and remove all others; returns modification times, ns, by relative path.

        :raises StorageError: an object is missing or has another size
        """
        listed = list_directory(self._output_dir, recursive=True)
        files = {name: stat for name, stat in listed.items() if stat.is_file and name}
        for name, path in sorted(paths.items()):
            require_stored(path, files.get(name), self._sizes[path])
        for name in files.keys() - paths.keys() - {MARKER}:
            delete_object(join(self._output_dir, name))
        return {name: files[name].mtime_ns for name in paths}

    def _entries(self, paths: Mapping[str, str], times: Mapping[str, int]) -> list[Entry]:
        """The manifest's entries, by relative path: sizes and hashes as written, ETags of objects of these sizes."""

        def entry(name: str) -> Entry:
            path = paths[name]
            stored, file = self._output.written[path], ObjectFile(path)
            if file.size() != self._sizes[path]:
                raise StorageError("was replaced by another writer", path=path, hint=_ONE_RUN)
            mtime_ms = (stored.mtime_ns or times[name]) // 1_000_000
            return Entry(name, self._sizes[path], mtime_ms, file.etag(), stored.xxh3_128)

        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(entry, sorted(paths)))

    def abort(self) -> None:
        """Remove what this run has written. The marker is kept if tasks may still write, so that nobody takes their objects for
        an output or for someone else's data."""
        try:
            if not self._is_own():
                return
            names = self._output.listdir(self._output_dir)
            # the manifest first: without it the output is unfinished, whatever else exists
            self._remove([name for name in names if name == MANIFEST])
            self._remove(name for name in names if name not in (MANIFEST, MARKER))
            if self._tasks_may_write:
                message = "%s: keeping %s, as tasks may still write here; the next run into this directory cleans up"
                _LOG.warning(message, self._output_dir, MARKER)
            else:
                delete_object(join(self._output_dir, MARKER))
        except StorageError as error:
            _LOG.warning("%s; the next run into this directory removes the rest", error)

    def _remove(self, names: Iterable[str]) -> None:
        found = list_directory(self._output_dir)
        for name in names:
            path = join(self._output_dir, name)
            if name in found and found[name].is_dir:
                self._output.remove_tree(path)
            else:
                delete_object(path)


def _is_unfinished(output_dir: str, names: Sequence[str]) -> bool:
    """Whether a directory holds an unfinished output: it has a marker, and no manifest of the same run."""
    if MARKER not in names:
        return False
    if MANIFEST not in names:
        return True
    path = join(output_dir, MANIFEST)
    try:
        found = Manifest.parse(read_whole(path), path).run
    except CorruptLogError:
        # it may be the manifest of a finished output
        return False
    return found is not None and found != run_of(read_whole(join(output_dir, MARKER)))
