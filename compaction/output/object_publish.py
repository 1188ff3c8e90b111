"""Publishes cleaned logs to an object store or a remote file system, where a manifest makes the output complete.

An object store cannot rename a directory (see ``compaction.files.manifest``). Steps:

1. The marker is written: these objects belong to an unfinished run over these log directories. The next run over the same
   directories removes them; other runs refuse the prefix.
2. Objects are written under their final prefix. Tasks write under temporary names; the store copies these to the final names.
3. The listing is compared with what was written, by size. Objects of stopped runs are removed, and the prefix is listed again.
4. The manifest is written and read back.
5. The marker is removed.

An interruption before step 4 leaves a prefix without a manifest. A failed run removes its objects and keeps the marker,
because killed tasks may still upload under temporary names. Readers of a finished output do not see these names, and the next
run removes them. An object store has no locks. If two runs begin at an empty prefix, one continues
(``compaction.files.mixed``). If a run is repeated while it is active, the later run wins: the other one finds the
later marker and fails before it writes its manifest.

To replace a finished output, the new one is written and finished under a name beside it. Then a marker that names the new one
is written to the old one, the store copies the new objects there, and steps 3 to 5 follow. The old output is changed only when
the new one is finished, and only if it is unchanged since it was written. A run that finds such a marker completes the
replacement. A complete output therefore exists at any time. An output that is checked before it is published appears in the
same way, even if there is no old one: until the check has ended, readers of its prefix find nothing.

A run removes only objects that an earlier run can have written. It takes over an unfinished output under two conditions: the
marker names the log directories of this run, as in a repetition of a stopped run, and every object has a name that such a run
writes: a file of a log or of a log directory, or a name that the source also has. Objects of runs over other log directories,
of exports, and of other programs are refused and remain. A finished output is only replaced if it is unchanged since it was
written.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from compaction.config.request import CompactionRequest
from compaction.errors import CorruptLogError, StorageError, UsageError
from compaction.files.filesystem import DiskFileSystem, ReadableFileSystem, base_name, join, parent, split
from compaction.files.local import LocalFileSystem
from compaction.files.manifest import MANIFEST, MARKER, Entry, Manifest, Marker, marker
from compaction.files.mixed import CLAIM, ONE_RUN, OutputFileSystem, marked_by, put_marker, require_own
from compaction.files.object_store import (
    ObjectFile,
    delete_object,
    list_directory,
    objects_below,
    read_whole,
    require_stored,
    stat_objects,
)
from compaction.files.uri import resolved
from compaction.names import is_significant, parse_partition_dir, parse_segment_file
from compaction.output.finished import STAGED, layout, read_finished, require_replaceable, require_target

_LOG = logging.getLogger(__name__)
_THREADS = 8
_YOURSELF = "if no run is writing there, remove it yourself, or name another one"


def marker_of(run: str, log_dirs: Sequence[str]) -> bytes:
    """The marker of a run that copies these log directories."""
    return marker(run, sources=[resolved(log_dir) for log_dir in log_dirs])


def is_taken_over(output_dir: str, names: Sequence[str], log_dirs: Sequence[str]) -> bool:
    """Whether an output is that of a run over the same log directories, by its marker; one without a marker is finished."""
    marked = any(name == MARKER or name.startswith(CLAIM) for name in names)
    return not marked or _sources(output_dir, names) == sorted(map(resolved, log_dirs))


def _sources(output_dir: str, names: Sequence[str]) -> list[str] | None:
    mark = MARKER if MARKER in names else next(name for name in names if name.startswith(CLAIM))
    return Marker.parse(read_whole(join(output_dir, mark))).sources


class ObjectTarget:
    """See ``Target``. Begin with :meth:`begin`.

    :param disk: reads the log directories
    :param replaced: the URI at which this output appears, if that is not its own, and the run whose output is replaced there,
        or this one if there is none
    :param known: names of its objects, relative to it, besides those of files of logs and of the log directories
    """

    def __init__(
        self,
        disk: ReadableFileSystem,
        place: str,
        run: str,
        log_dirs: Sequence[str],
        replaced: tuple[str, str | None] | None = None,
        known: Iterable[str] = (),
    ) -> None:
        self.files, self.place = OutputFileSystem(), place
        self._disk, self._run, self._roots, self._known = disk, run, layout(place, log_dirs), frozenset(known)
        self._replaced, self._replacing = replaced, False

    @classmethod
    def begin(cls, disk: DiskFileSystem, output_dir: str, request: CompactionRequest) -> ObjectTarget:
        """See ``Publication``."""
        output, run, log_dirs = OutputFileSystem(), uuid.uuid4().hex, request.log_dirs
        require_target(output_dir, log_dirs)
        complete_replacement(output_dir)
        names = output.listdir(output_dir)
        replaced = bool(names) and not _is_unfinished(output_dir, names)
        if not replaced and request.check_copy is None:
            return cls(disk, output_dir, run, log_dirs)._marked(names)
        earlier = require_replaceable(output_dir, may_replace=request.replace)[0].run if replaced else run
        if not split(output_dir)[1]:
            hint = "name a prefix in it: the new output is first written beside it"
            raise UsageError("--output-dir is a whole bucket", path=output_dir, hint=hint)
        if not replaced:
            cls(disk, output_dir, run, log_dirs)._marked(names)
        _remove_staged(output, output_dir, log_dirs)
        return cls(disk, f"{output_dir}.{run}{STAGED}", run, log_dirs, (output_dir, earlier))._marked([])

    def _marked(self, names: Sequence[str]) -> ObjectTarget:
        """Itself, with a marker beside these names: none, or those of an unfinished output, which is removed.

        :raises UsageError: it has one of a run over other log directories, or objects of somebody else
        """
        place, log_dirs = self.place, list(self._roots)
        if not names:
            put_marker(self.files, place, self._run, marker_of(self._run, log_dirs))
            return self
        if not is_taken_over(place, names, log_dirs):
            sources = _sources(place, names)
            whose = "an export, or of an earlier version" if sources is None else f"a run over {', '.join(map(str, sources))}"
            raise UsageError(f"--output-dir is the unfinished output of {whose}", path=place, hint=_YOURSELF)
        foreign = self.foreign(objects_below(place))
        if foreign:
            message = f"--output-dir is an unfinished output with {foreign[0]}, which no run has written"
            raise UsageError(message, path=place, hint="move it away, or name another directory")
        _LOG.warning("%s: removing the unfinished output of an earlier run", place)
        self.files.write_file(join(place, MARKER), marker_of(self._run, log_dirs))
        self._remove(name for name in names if name != MARKER)
        return self

    def foreign(self, names: Iterable[str]) -> list[str]:
        """The names, relative to the output, that none of its objects can have."""
        return sorted(name for name in names if not self._has(name))

    def _has(self, name: str) -> bool:
        folder, file = join(self.place, name).rsplit("/", 1)
        if name in (MANIFEST, MARKER) or name.startswith(CLAIM) or name in self._known:
            return True
        of_log = parse_partition_dir(base_name(folder)) is not None
        # tasks may have written to a log that the source has no more
        if (of_log and parse_segment_file(file) is not None) or (
            is_significant(file) and (of_log or folder in self._roots.values())
        ):
            return True
        for log_dir, root in self._roots.items():
            if f"{folder}/".startswith(f"{root}/"):
                stat = self._disk.stat(join(log_dir, *filter(None, (folder[len(root) + 1 :], file))))
                if stat is not None and stat.is_file:
                    return True
        return False

    def promote(self, source: str, path: str, size: int) -> None:
        require_stored(source, self.files.stat(source), size)
        self.files.rename(source, path)

    def require_own(self) -> None:
        require_own(self.place, self._run)

    def commit(self, written: Manifest, check: Callable[[str], None]) -> None:
        # with the marker of its own run it can be read, and it is removed by the next run if this one is killed
        self._write_manifest(written)
        check(self.place)
        try:
            delete_object(join(self.place, MARKER))
        except StorageError as error:
            _LOG.warning("%s; the output is complete nevertheless", error)
        if self._replaced is None:
            return
        replaced, run = self._replaced
        if run == self._run:
            require_own(replaced, run)
        elif require_replaceable(replaced)[0].run != run:
            raise StorageError("another run has replaced this output", path=replaced, hint=ONE_RUN)
        self._replacing = True
        _replace(self.place, replaced)

    def _write_manifest(self, written: Manifest) -> None:
        self.require_own()
        files = sorted(written.files, key=lambda entry: entry.path)
        # twice: an upload of a killed task may arrive while the first listing is compared
        self._keep_only(files)
        with ThreadPoolExecutor(_THREADS) as pool:
            entries = list(pool.map(self._as_stored, files, self._keep_only(files)))
        manifest = replace(written, files=tuple(entries), run=self._run, place=self.place)
        self.require_own()
        path, data = join(self.place, MANIFEST), manifest.to_json()
        self.files.write_file(path, data)
        if read_whole(path) != data:
            raise StorageError("is not as it was written", path=path, hint="run again; the store has changed it")

    def _keep_only(self, files: Sequence[Entry]) -> list[int]:
        """Check that the output's objects exist and remove others that a run has written; returns the modification time, ms,
        of each.

        :raises StorageError: an object is missing or has another size
        """
        objects = objects_below(self.place)
        for entry in files:
            require_stored(join(self.place, entry.path), objects.get(entry.path), entry.size)
        others = objects.keys() - {MARKER, *(entry.path for entry in files)}
        for name in others.difference(self.foreign(others)):
            delete_object(join(self.place, name))
        return [objects[entry.path].mtime_ns // 1_000_000 for entry in files]

    def _as_stored(self, written: Entry, mtime_ms: int) -> Entry:
        """The manifest's entry of a file: size and hash as written, the ETag of an object of this size."""
        path = join(self.place, written.path)
        file = ObjectFile(path)
        if file.size() != written.size:
            raise StorageError("was replaced by another writer", path=path, hint=ONE_RUN)
        return replace(written, mtime_ms=written.mtime_ms or mtime_ms, etag=file.etag())

    def abort(self, *, tasks_may_write: bool) -> None:
        """Remove what this run has written. The marker is kept if tasks may still write, so that nobody takes their objects for
        an output or for someone else's data. An output that has begun to replace an earlier one is complete, and is kept."""
        if self._replacing:
            return
        try:
            if marked_by(self.place) != self._run:
                return
            names = self.files.listdir(self.place)
            # the manifest first: without it the output is unfinished, whatever else exists
            self._remove([name for name in names if name == MANIFEST])
            self._remove(name for name in names if name not in (MANIFEST, MARKER))
            if tasks_may_write:
                message = "%s: keeping %s, as tasks may still write here; the next run into this directory cleans up"
                _LOG.warning(message, self.place, MARKER)
            else:
                delete_object(join(self.place, MARKER))
            if self._replaced is not None and marked_by(self._replaced[0]) == self._run:
                delete_object(join(self._replaced[0], MARKER))
        except StorageError as error:
            _LOG.warning("%s; the next run into this directory removes the rest", error)

    def _remove(self, names: Iterable[str]) -> None:
        """Remove entries of the output, but for objects that no run has written."""
        found, foreign = list_directory(self.place), self.foreign(objects_below(self.place))
        for name in names:
            path = join(self.place, name)
            is_dir = name in found and found[name].is_dir
            kept = [entry for entry in foreign if entry == name or entry.startswith(f"{name}/")]
            if kept:
                _LOG.warning("%s: keeping %s, which no run has written", self.place, kept[0])
            if is_dir and kept:
                inside = [entry for entry in objects_below(self.place) if entry.startswith(f"{name}/")]
                for extra in set(inside).difference(kept):
                    delete_object(join(self.place, extra))
            elif is_dir:
                self.files.remove_tree(path)
            elif not kept:
                delete_object(path)


def complete_replacement(output_dir: str) -> None:
    """Complete the replacement of an output by a run that was stopped.

    :raises StorageError: the store refused
    """
    path = join(output_dir, MARKER)
    if stat_objects([path])[0] is None:
        return
    staged = Marker.parse(read_whole(path)).staged
    # the name in a marker is only believed if it is one that a run gives to its output
    if staged is None or not _is_staged(staged, output_dir) or read_finished(staged) is None:
        return
    _LOG.warning("%s: completing the replacement of this output by %s", output_dir, staged)
    _replace(staged, output_dir)


def _replace(staged: str, output_dir: str) -> None:
    """Replace the output at ``output_dir`` by the finished one at ``staged``, and remove that."""
    manifest = read_finished(staged)
    if manifest is None or manifest.run is None:
        raise StorageError("the output to be put in place is unfinished", path=staged, hint=ONE_RUN)
    earlier = _any_manifest(output_dir)
    names = () if earlier is None else (entry.path for entry in earlier.files)
    copy = ObjectTarget(LocalFileSystem(), output_dir, manifest.run, (), known=names)
    copy.files.write_file(join(output_dir, MARKER), marker(manifest.run, staged))
    for folder in manifest.folders:
        copy.files.mkdir(join(output_dir, *filter(None, [folder])))
    paths = [entry.path for entry in manifest.files]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda path: copy.files.copy_within(join(staged, path), join(output_dir, path)), paths))
    copy.commit(manifest, lambda place: None)
    copy.files.remove_tree(staged)


def _any_manifest(output_dir: str) -> Manifest | None:
    """The manifest of an output, finished or not; ``None`` if it has none, or a malformed one."""
    path = join(output_dir, MANIFEST)
    try:
        return None if stat_objects([path])[0] is None else Manifest.parse(read_whole(path), path)
    except CorruptLogError:
        return None


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
    # a malformed one may be that of a finished output
    manifest = _any_manifest(output_dir)
    return manifest is not None and manifest.run not in (None, Marker.parse(read_whole(join(output_dir, MARKER))).run)
