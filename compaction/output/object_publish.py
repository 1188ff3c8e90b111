"""Publishes cleaned logs to an object store or a remote file system, where a manifest makes the output complete.

An object store cannot rename a directory (see ``compaction.storage.manifest``). Steps:

1. The marker is written: these objects belong to an unfinished run over these log directories. The next run over the same
   directories removes them; other runs refuse the prefix (``compaction.output.unfinished``).
2. Objects are written under their final prefix. Tasks write under temporary names; the store copies these to the final names.
3. The listing is compared with what was written, by size. Objects of stopped runs are removed, and the prefix is listed again.
4. The manifest is written and read back.
5. The marker is removed.

An interruption before step 4 leaves a prefix without a manifest. A failed run removes its objects and keeps the marker,
because killed tasks may still upload under temporary names. Readers of a finished output do not see these names, and the next
run removes them. An object store has no locks. If two runs begin at an empty prefix, one continues
(``compaction.storage.prefix_marks``). If a run is repeated while it is active, the later run wins: the other one finds the
later marker and fails before it writes its manifest.

To replace a finished output, the new one is written and finished under a name beside it. Then a marker that names the new one
is written to the old one, the store copies the new objects there, and steps 3 to 5 follow. The old output is changed only when
the new one is finished, and only if it is unchanged since it was written. A run that finds such a marker completes the
replacement. A complete output therefore exists at any time.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from compaction.errors import CorruptLogError, StorageError, UsageError
from compaction.names import LOG, LogLocation, segment_file
from compaction.output.finished import STAGED, read_finished
from compaction.output.publish import NEW_OUTPUT, Copy, Publication, PublishOptions, layout, require_target
from compaction.output.swap import SwapGroup
from compaction.output.unfinished import (
    OwnNames,
    is_taken_over,
    marker_of,
    remove_own,
    require_replaceable_objects,
    require_taken_over,
)
from compaction.storage.filesystem import DiskFileSystem, FileSystem, join, parent
from compaction.storage.kinds import split
from compaction.storage.listings import list_directory, read_whole, stat_objects
from compaction.storage.manifest import MANIFEST, MARKER, Entry, Manifest, marker, run_of, staged_of
from compaction.storage.object_output import OutputFileSystem, WrittenObject, marked_by
from compaction.storage.prefix_marks import CLAIM, ONE_RUN, put_marker
from compaction.storage.streams import ObjectFile, delete_object, require_stored

_LOG = logging.getLogger(__name__)
_THREADS = 8


class ObjectPublication(Publication):
    """See ``Publication``. Begin with :meth:`begin`."""

    def __init__(self, disk: DiskFileSystem, output_dir: str, log_dirs: Sequence[str], run: str, goal: PublishOptions) -> None:
        self._output = OutputFileSystem()
        super().__init__(self._output, disk, output_dir, layout(output_dir, log_dirs), goal)
        self._run = run
        self._own = OwnNames(disk, output_dir, self._roots)
        self._tasks_may_write = False
        #: the output to be replaced by this one, and the run that wrote it
        self._replaced: tuple[str, str | None] | None = None
        self._replacing = False

    @classmethod
    def begin(
        cls, output_dir: str, log_dirs: Sequence[str], disk: DiskFileSystem, goal: PublishOptions = NEW_OUTPUT
    ) -> ObjectPublication:
        """Prepare to publish to ``output_dir``, which must be empty, missing, unfinished, or an output to be replaced.

        :raises UsageError: it is none of these, or is inside a log directory; two log directories have the same name
        :raises StorageError: the store refused
        """
        require_target(output_dir, log_dirs)
        output, run, place = OutputFileSystem(), uuid.uuid4().hex, output_dir
        complete_replacement(disk, output_dir)
        names = output.listdir(output_dir)
        replaced = None
        if names and not _is_unfinished(output_dir, names):
            replaced = (output_dir, _to_be_replaced(output_dir, goal))
            place, names = f"{output_dir}.{run}{STAGED}", []
            _remove_staged(output, output_dir, log_dirs)
        publication = cls(disk, place, log_dirs, run, goal)
        publication._replaced = replaced
        if names:
            require_taken_over(output_dir, names, publication._own, log_dirs)
            output.write_file(join(place, MARKER), marker_of(run, log_dirs))
            publication._remove(name for name in names if name != MARKER)
        else:
            put_marker(output, place, run, marker_of(run, log_dirs))
        return publication

    def log_path(self, location: LogLocation) -> str:
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

    def _take_over(self, staged: str, entry: Entry) -> None:
        """Let the store copy an object of a finished output to this one."""
        target = join(self._output_dir, entry.path)
        self._output.copy_within(join(staged, entry.path), target)
        self._output.written[target] = WrittenObject(entry.size, entry.xxh3_128, entry.mtime_ms * 1_000_000)
        self._sizes[target] = entry.size

    def _is_own(self) -> bool:
        return marked_by(self._output_dir) == self._run

    def _require_own(self) -> None:
        if not self._is_own():
            raise StorageError("another run writes to this directory", path=self._output_dir, hint=ONE_RUN)

    def _appear(self) -> None:
        self._finish()
        if self._replaced is None:
            return
        replaced, run = self._replaced
        require_replaceable_objects(replaced)
        found = read_finished(replaced)
        if found is None or found.run != run:
            raise StorageError("another run has replaced this output", path=replaced, hint=ONE_RUN)
        self._replacing = True
        _replace(self._disk, self._output_dir, replaced)

    def _finish(self) -> None:
        """Check that every file of the output is there, and write the manifest."""
        self._require_own()
        paths = {path[len(self._output_dir) + 1 :]: path for path in self._sizes}
        # twice: an upload of a killed task may arrive while the first listing is compared
        self._keep_only(paths)
        times = self._keep_only(paths)
        manifest = Manifest(tuple(self._entries(paths, times)), self._run, self._output_dir, self._goal.call)
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
        """Check that the output's objects exist and remove others that a run has written; returns modification times, ns, by
        relative path.

        :raises StorageError: an object is missing or has another size
        """
        listed = list_directory(self._output_dir, recursive=True)
        files = {name: stat for name, stat in listed.items() if stat.is_file and name}
        for name, path in sorted(paths.items()):
            require_stored(path, files.get(name), self._sizes[path])
        others = files.keys() - paths.keys() - {MARKER}
        for name in others.difference(self._own.foreign(others)):
            delete_object(join(self._output_dir, name))
        return {name: files[name].mtime_ns for name in paths}

    def _entries(self, paths: Mapping[str, str], times: Mapping[str, int]) -> list[Entry]:
        """The manifest's entries, by relative path: sizes and hashes as written, ETags of objects of these sizes."""

        def entry(name: str) -> Entry:
            path = paths[name]
            stored, file = self._output.written[path], ObjectFile(path)
            if file.size() != self._sizes[path]:
                raise StorageError("was replaced by another writer", path=path, hint=ONE_RUN)
            mtime_ms = (stored.mtime_ns or times[name]) // 1_000_000
            return Entry(name, self._sizes[path], mtime_ms, file.etag(), stored.xxh3_128)

        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(entry, sorted(paths)))

    def abort(self) -> None:
        """Remove what this run has written. The marker is kept if tasks may still write, so that nobody takes their objects for
        an output or for someone else's data. An output that has begun to replace an earlier one is complete, and is kept."""
        if self._replacing:
            return
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
        remove_own(self._output, self._output_dir, names, self._own)


def complete_replacement(disk: DiskFileSystem, output_dir: str) -> None:
    """Complete the replacement of an output by a run that was stopped.

    :raises StorageError: the store refused
    """
    path = join(output_dir, MARKER)
    if stat_objects([path])[0] is None:
        return
    staged = staged_of(read_whole(path))
    # the name in a marker is only believed if it is one that a run gives to its output
    if staged is None or not _is_staged(staged, output_dir) or read_finished(staged) is None:
        return
    _LOG.warning("%s: completing the replacement of this output by %s", output_dir, staged)
    _replace(disk, staged, output_dir)


def _replace(disk: DiskFileSystem, staged: str, output_dir: str) -> None:
    """Replace the output at ``output_dir`` by the finished one at ``staged``, and remove that."""
    manifest = read_finished(staged)
    if manifest is None or manifest.run is None:
        raise StorageError("the output to be put in place is unfinished", path=staged, hint=ONE_RUN)
    copy = ObjectPublication(disk, output_dir, (), manifest.run, PublishOptions(manifest.request))
    copy._own = OwnNames(disk, output_dir, {}, _names_of(output_dir))
    copy._output.write_file(join(output_dir, MARKER), marker(manifest.run, staged))
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda entry: copy._take_over(staged, entry), manifest.files))
    copy._finish()
    copy._output.remove_tree(staged)


def _names_of(output_dir: str) -> list[str]:
    """The names in the manifest of an output, whatever its state; none if it is malformed."""
    path = join(output_dir, MANIFEST)
    try:
        manifest = None if stat_objects([path])[0] is None else Manifest.parse(read_whole(path), path)
    except CorruptLogError:
        manifest = None
    return [] if manifest is None else [entry.path for entry in manifest.files]


def _to_be_replaced(output_dir: str, goal: PublishOptions) -> str | None:
    """The run that wrote the output to be replaced.

    :raises UsageError: there is no finished output, or it must not be replaced
    """
    if not goal.replace:
        hint = "name a new directory, or give --replace if it is an earlier output"
        raise UsageError("--output-dir exists and is not empty", path=output_dir, hint=hint)
    if not split(output_dir)[1]:
        hint = "name a prefix in it: the new output is first written beside the old one"
        raise UsageError("--replace: the output is a whole bucket", path=output_dir, hint=hint)
    require_replaceable_objects(output_dir)
    found = read_finished(output_dir)
    return None if found is None else found.run


def _is_staged(name: str, output_dir: str) -> bool:
    return re.fullmatch(rf"{re.escape(output_dir)}\.[0-9a-f]{{32}}{re.escape(STAGED)}", name) is not None


def _remove_staged(output: OutputFileSystem, output_dir: str, log_dirs: Sequence[str]) -> None:
    """Remove what stopped runs over these log directories left beside an output that they did not begin to replace."""
    above = parent(output_dir)
    for place in (join(above, name) for name in output.listdir(above)):
        if _is_staged(place, output_dir) and is_taken_over(place, output.listdir(place), log_dirs):
            output.remove_tree(place)


def _is_unfinished(output_dir: str, names: Sequence[str]) -> bool:
    """Whether a directory holds an unfinished output: it has a marker, and no manifest of the same run; or only claims."""
    if MARKER not in names:
        return all(name.startswith(CLAIM) for name in names)
    if MANIFEST not in names:
        return True
    path = join(output_dir, MANIFEST)
    try:
        found = Manifest.parse(read_whole(path), path).run
    except CorruptLogError:
        # it may be the manifest of a finished output
        return False
    return found is not None and found != run_of(read_whole(join(output_dir, MARKER)))
