"""Writes cleaned logs to an object store or a remote file system, where they appear complete or not at all.

There is no rename that could put a directory in place, so that a manifest says when it is complete
(``compaction.stores.manifest``):

1. the marker is written: what is here belongs to an unfinished run, which the next one removes
2. objects are written under their final prefix; tasks write theirs under names of their own, which are copied within the store
3. the listing is held against what was written, by size; whatever is not part of the output is removed, and it is listed again
4. the manifest is written and read back
5. the marker goes

A stop anywhere before 4 leaves a prefix without a manifest. A run that fails removes what it has written and leaves the marker,
as tasks that were killed may still write: under names of their own, which the next run into the prefix removes, and which are
hidden from whoever reads a finished output. Two runs into one prefix cannot lock each other out: the one that began later wins,
the other finds a marker that is not its own and fails before its manifest.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from compaction.cleaning.log_view import Segment
from compaction.errors import CorruptLogError, StorageError, UsageError
from compaction.fs.filesystem import DiskFileSystem, FileSystem, base_name, join
from compaction.fs.uri import is_inside, resolved
from compaction.logdir.discover import LogLocation
from compaction.names import LOG, segment_file
from compaction.output.publish import Copy, Publication, layout
from compaction.output.swap import SwapGroup
from compaction.stores.listings import list_directory, stat_objects
from compaction.stores.manifest import MANIFEST, MARKER, Entry, Manifest, marker, run_of
from compaction.stores.object_output import OutputFileSystem, WrittenObject
from compaction.stores.streams import ObjectFile, delete_object, read_whole, require_stored

_LOG = logging.getLogger(__name__)
_THREADS = 8


class ObjectPublication(Publication):
    """A set of log directories in the making, in a remote place. Begin with :meth:`begin`."""

    def __init__(self, output: OutputFileSystem, disk: DiskFileSystem, place: str, log_dirs: Sequence[str], run: str) -> None:
        super().__init__(output, disk, place, layout(place, log_dirs))
        self._output, self._place, self._run = output, place, run
        #: whether tasks may write
        self._handed_out = False

    @classmethod
    def begin(cls, output_dir: str, log_dirs: Sequence[str], disk: DiskFileSystem) -> ObjectPublication:
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
        if names and not _is_unfinished(output_dir, names):
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
        self._handed_out = True
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
        """See ``Publication``.

        :raises CorruptLogError: a file of the source is not the one that its manifest lists
        """
        self._require_own()
        super().add_log(source, location, groups, segments, end_offset=end_offset)

    def leave_out(self, location: LogLocation) -> None:
        """See ``Publication``. What cannot be removed now is no part of the output either, and is removed with the commit."""
        below = f"{join(self._roots[location.log_dir], base_name(location.path))}/"
        for path in [path for path in self._output.written if path.startswith(below)]:
            del self._output.written[path]
        super().leave_out(location)

    def commit(self, source: FileSystem) -> None:
        """Add what belongs to the log directories and write the manifest.

        :raises StorageError: the store refused, or another run writes here
        :raises CorruptLogError: a checkpoint of the source is garbled
        """
        self._require_own()
        super().commit(source)

    def _adopt(self, target: str, group: SwapGroup) -> None:
        if not group.files:
            name = join(target, segment_file(group.base_offset, LOG, group.suffix))
            raise StorageError("output of this run is not known by size and content", path=name)
        for written in group.files:
            name, final = (join(target, segment_file(group.base_offset, written.kind, end)) for end in (group.suffix, ""))
            self._output.adopt(name, final, WrittenObject(written.size, written.digest, group.mtime_ms * 1_000_000))

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
        return stat_objects([path])[0] is not None and run_of(read_whole(path)) == self._run

    def _require_own(self) -> None:
        """:raises StorageError: another run has begun to write here"""
        if not self._is_own():
            raise StorageError("another run writes to this place", path=self._place, hint="let one run at a time write there")

    def _appear(self) -> None:
        self._require_own()
        wanted = {path[len(self._place) + 1 :]: path for path in self._output.written}
        wanted.pop(MARKER)
        # what tasks that were killed are still sending may come between the two
        self._keep_only(wanted)
        times = self._keep_only(wanted)
        manifest = Manifest(tuple(self._entries(wanted, times)), self._run, self._place)
        self._require_own()
        path, data = join(self._place, MANIFEST), manifest.to_json()
        self._output.write_file(path, data)
        if read_whole(path) != data:
            raise StorageError("is not as it was written", path=path, hint="run again; the store has changed it")
        try:
            delete_object(join(self._place, MARKER))
        except StorageError as error:
            _LOG.warning("%s; the output is complete all the same", error)

    def _keep_only(self, wanted: Mapping[str, str]) -> dict[str, int]:
        """Remove what is not part of the output, and make sure that the rest is there; times of last modification, ns."""
        listed = list_directory(self._place, recursive=True)
        files = {name: stat for name, stat in listed.items() if stat.is_file and name}
        for name, path in sorted(wanted.items()):
            require_stored(path, files.get(name), self._output.written[path].size_bytes)
        for name in files.keys() - wanted.keys() - {MARKER}:
            delete_object(join(self._place, name))
        return {name: files[name].mtime_ns for name in wanted}

    def _entries(self, wanted: Mapping[str, str], times: Mapping[str, int]) -> list[Entry]:
        """What the manifest lists. Sizes and hashes are of what was written, ETags of objects of these sizes."""

        def entry(name: str) -> Entry:
            stored, file = self._output.written[wanted[name]], ObjectFile(wanted[name])
            if file.size() != stored.size_bytes:
                raise StorageError("is replaced by somebody else", path=wanted[name], hint="let one run at a time write there")
            mtime_ms = (stored.mtime_ns or times[name]) // 1_000_000
            return Entry(name, stored.size_bytes, mtime_ms, file.etag(), stored.xxh3_128)

        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(entry, sorted(wanted)))

    def abort(self) -> None:
        """Give up: what this run has written goes. The marker stays if tasks may still write: nobody then takes what they leave
        for an output, or for somebody else's data."""
        try:
            if not self._is_own():
                return
            names = self._output.listdir(self._place)
            # without its manifest the output is unfinished, whatever else is there
            self._remove([name for name in names if name == MANIFEST])
            self._remove(name for name in names if name not in (MANIFEST, MARKER))
            if self._handed_out:
                told = "%s: %s stays, as tasks may still write here; the next run into this place cleans up"
                _LOG.warning(told, self._place, MARKER)
            else:
                delete_object(join(self._place, MARKER))
        except StorageError as error:
            _LOG.warning("%s; the next run into this place removes what is left", error)

    def _remove(self, names: Iterable[str]) -> None:
        found = list_directory(self._place)
        for name in names:
            path = join(self._place, name)
            if name in found and found[name].is_dir:
                self._output.remove_tree(path)
            else:
                delete_object(path)


def _is_unfinished(place: str, names: Sequence[str]) -> bool:
    """Whether a place holds what a run has begun to write and not completed: its marker is not that of its manifest's run."""
    if MARKER not in names:
        return False
    if MANIFEST not in names:
        return True
    path = join(place, MANIFEST)
    try:
        found = Manifest.parse(read_whole(path), path).run
    except CorruptLogError:
        # it may have been finished
        return False
    return found is not None and found != run_of(read_whole(join(place, MARKER)))
