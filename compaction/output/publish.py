"""Publishes cleaned logs as new log directories, which appear complete or not at all.

The result is a directory that a broker can load: segments, indexes, producer snapshots, leader epochs, ``partition.metadata``,
``meta.properties``, the metadata log, and the checkpoint entries of the published logs. Its storage decides how it is
committed: on a disk by a rename (``LocalTarget``), in a store by a manifest (``compaction.output.object_publish``).

On a disk files are written to a hidden directory beside the target, whose name cannot be guessed and which only its owner may
enter. They are fsynced and read back; renaming the directory is the last step. A killed run leaves only the hidden directory,
which the next run removes.

An earlier output is replaced if it is unchanged since it was written. The run compares its content at the beginning. When the
new output is complete, the earlier one is locked as a broker locks it, and one system call exchanges the two names. The
earlier output now has a hidden name, and its files are compared with those of the beginning, by inode, size and times. If they
are equal, it is removed; otherwise the names are exchanged back. If the file system has no such call, the earlier output is
renamed to a second hidden name first; if a run is killed between these two renames, the next run renames it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from compaction.config.request import CompactionRequest
from compaction.errors import StorageError, UsageError
from compaction.files.contents import digest_of, view
from compaction.files.durable import TMP, write_verified
from compaction.files.filesystem import DiskFileSystem, FileStat, FileSystem, base_name, join, parent, storage_of
from compaction.files.local import LocalFileSystem
from compaction.files.manifest import MANIFEST, MARKER, Entry, Manifest, SourceLog
from compaction.files.text_files import read_small
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.log.access import is_claim, is_mount_point, require_still_unlocked
from compaction.log.checkpoint_store import read_offsets
from compaction.log.metadata_logs import METADATA_LOG
from compaction.log.read_log import require_same_indexes, require_unchanged
from compaction.names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    INDEX,
    LOCK,
    LOG,
    LOG_STARTS,
    RECOVERY_POINTS,
    SNAPSHOT,
    TIMEINDEX,
    LogLocation,
    TopicPartition,
    is_log_dir_file,
    is_log_file,
    parse_partition_dir,
    parse_segment_file,
    segment_file,
)
from compaction.output.finished import (
    FINISHED,
    RETIRED,
    STAGED,
    Target,
    files_below,
    hidden_name,
    layout,
    remove_leftovers,
    require_as_written,
    require_replaceable,
    require_target,
)
from compaction.output.object_publish import ObjectTarget, complete_replacement
from compaction.output.segment_files import any_log, is_unfinished
from compaction.output.segment_writer import copy_recorded, copy_verified
from compaction.output.swap import SwapGroup
from compaction.rules.log_view import Segment

_THREADS = 8
_CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
_NOT_COPIED = frozenset((LOCK, MANIFEST, MARKER, FINISHED, *_CHECKPOINTS))
#: the largest entry of an index: a time index may end with one of zeros, the time 0 at its first offset
_ENTRY_BYTES = 12


class LocalTarget:
    """See ``Target``, and ``Publication``."""

    def __init__(self, fs: DiskFileSystem, output_dir: str, request: CompactionRequest) -> None:
        output_dir = str(Path(output_dir).absolute())
        require_target(output_dir, request.log_dirs)
        remove_leftovers(fs, output_dir)
        stat = fs.stat(output_dir)
        #: the files of an output to be replaced, as they were when the run began
        self._earlier: Mapping[str, FileStat] | None = None
        if stat is not None and is_mount_point(output_dir):
            hint = "name a new directory below it: the output appears by a rename, which a mount point refuses"
            raise UsageError("--output-dir is a mount point", path=output_dir, hint=hint)
        if stat is not None and (not stat.is_dir or fs.listdir(output_dir)):
            self._earlier = require_replaceable(output_dir, fs, may_replace=request.replace)[1]
        self.files, self._output_dir, self._may_replace = fs, output_dir, request.replace
        self._staging = hidden_name(output_dir, STAGED)
        self.place = join(self._staging, "data")
        try:
            fs.mkdir(parent(output_dir))
            fs.mkdir(self._staging, private=True)
        except StorageError as error:
            hint = "name a directory in one that can be written"
            raise UsageError(f"--output-dir: {error.message}", path=output_dir, hint=hint) from error
        self._lock = fs.lock(self._staging)

    def require_own(self) -> None:
        """No operation: a hidden directory has no other writer."""

    def promote(self, source: str, path: str, size: int) -> None:
        self.files.rename(source, path)

    def commit(self, written: Manifest, check: Callable[[str], None]) -> None:
        """:raises StorageError: a file that was written is missing or has another size"""
        fs, output_dir = self.files, self._output_dir
        entries = []
        for entry in written.files:
            path = join(self.place, entry.path)
            stat = fs.stat(path)
            if stat is None or stat.size != entry.size:
                hint = "nothing has appeared; check the disk, and what else writes to this directory, and run again"
                raise StorageError("file has changed since it was written", path=path, hint=hint)
            entries.append(replace(entry, mtime_ms=stat.mtime_ns // 1_000_000))
        if written.request is not None:
            empty = (Entry(name, 0, 0) for name in files_below(fs, self.place) if name.endswith("/"))
            manifest = replace(written, files=(*entries, *empty))
            write_verified(fs, join(self.place, FINISHED), manifest.to_json())
        fs.fsync_dir(self.place)
        check(self.place)
        if self._may_replace and fs.stat(output_dir) is not None and fs.listdir(output_dir):
            self._replace()
        else:
            fs.rename(self.place, output_dir)
            fs.fsync_dir(parent(output_dir))
        self.abort()

    def _replace(self) -> None:
        """Put the output in the place of an earlier one, and remove that.

        :raises UsageError: the earlier one has changed since the run began; it is in place again
        :raises LockedError: a broker or a run uses it
        :raises StorageError: the file system refused; one of the two is in place, and the next run removes the other
        """
        output_dir, fs = self._output_dir, self.files
        earlier = require_replaceable(output_dir, fs)[1] if self._earlier is None else self._earlier
        retired = hidden_name(output_dir, RETIRED)
        with ExitStack() as locks:
            for root in _roots(earlier):
                if fs.stat(join(output_dir, root)) is not None:
                    locks.enter_context(fs.lock(join(output_dir, root).rstrip("/")))
            if not self._exchange(retired, earlier):
                fs.rename(output_dir, retired)
                try:
                    _require_same(fs, retired, output_dir, earlier)
                    fs.rename(self.place, output_dir)
                except (StorageError, UsageError):
                    fs.rename(retired, output_dir)
                    raise
            fs.fsync_dir(parent(output_dir))
            # under this name the next run removes it without a comparison
            compared = hidden_name(output_dir, STAGED)
            fs.rename(retired, compared)
            fs.remove_tree(compared)

    def _exchange(self, retired: str, earlier: Mapping[str, FileStat]) -> bool:
        """Exchange the output, renamed to ``retired``, and the earlier one; ``False`` if the file system cannot do that."""
        fs, output_dir = self.files, self._output_dir
        fs.rename(self.place, retired)
        try:
            exchanged = fs.exchange(retired, output_dir)
            if exchanged:
                try:
                    _require_same(fs, retired, output_dir, earlier)
                except (StorageError, UsageError):
                    exchanged = not fs.exchange(retired, output_dir)
                    raise
        finally:
            if not exchanged:
                fs.rename(retired, self.place)
                fs.fsync_dir(parent(retired))
        return exchanged

    def abort(self, *, tasks_may_write: bool = False) -> None:
        self._lock.close()
        self.files.remove_tree(self._staging)


def _roots(files: Iterable[str]) -> list[str]:
    """The log directories of an output, of the relative paths of its files."""
    logs = {folder for folder in (name.rpartition("/")[0] for name in files) if parse_partition_dir(base_name(f"/{folder}"))}
    return sorted({"", *(log.rpartition("/")[0] for log in logs)})


def _require_same(fs: FileSystem, path: str, output_dir: str, earlier: Mapping[str, FileStat]) -> None:
    """:raises UsageError: the output, now at ``path``, has other files than when they were compared with what was written"""
    after = {name: _identity(stat) for name, stat in files_below(fs, path).items()}
    before = {name: _identity(stat) for name, stat in earlier.items()}
    changed = sorted(name for name in after.keys() | before.keys() if after.get(name) != before.get(name))
    require_as_written(output_dir, f"{changed[0]} has changed during this run" if changed else None)


def _identity(stat: FileStat) -> tuple[int, ...]:
    """The attributes that a write or a replacement changes; of a directory none, as only its emptiness counts."""
    return () if stat.is_dir else (stat.is_file, stat.inode, stat.size, stat.mtime_ns, stat.ctime_ns)


class Publication:
    """A set of log directories being written to ``output_dir``, which must be empty or missing, or an earlier output to be
    replaced, or in a store an unfinished one of the same log directories; ends with :meth:`commit` or :meth:`abort`.

    :param disk: reads the log directories
    :param request: its ``call`` is recorded in the output, so that a later run can tell whether it is the output of the same
        request; without it nothing is recorded on a disk
    :param entry_of: the entry of a file of a previous copy, by its path; ``None`` for any other file
    :raises UsageError: the directory is none of these, or inside a log directory; two log directories have the same name
    :raises LockedError: another run is publishing there, or a broker uses the earlier output
    :raises StorageError: the storage refused
    """

    def __init__(
        self,
        disk: DiskFileSystem,
        output_dir: str,
        request: CompactionRequest,
        entry_of: Callable[[str], Entry | None] = lambda path: None,
    ) -> None:
        begin: Callable[..., Target] = LocalTarget if storage_of(output_dir).renames else ObjectTarget.begin
        self._target = begin(disk, output_dir, request)
        self._fs, self._disk, self._request, self._entry_of = self._target.files, disk, request, entry_of
        self._tasks_may_write = False
        #: by log directory, the directory that its output is written to
        self._roots = layout(self._target.place, request.log_dirs)
        #: by log directory: the published logs and the new cleaner checkpoint of each
        self._added: dict[str, dict[TopicPartition, int | None]] = {log_dir: {} for log_dir in self._roots}
        #: by log directory: a file whose mode and owner new files take
        self._like: dict[str, str | None] = {}
        #: the files of the output by path
        self._written: dict[str, Entry] = {}
        #: the logs that were copied, by the directories of their copies
        self._sources: dict[str, SourceLog] = {}
        try:
            #: by log directory: the checkpoints as the run found them
            self._found = {log_dir: self._checkpoints(log_dir) for log_dir in self._roots}
        except BaseException:
            self.abort()
            raise

    def log_path(self, location: LogLocation) -> str:
        """The directory (created) in which tasks write the cleaned segments of a log."""
        self._tasks_may_write = True
        path = join(self._root(location.log_dir), base_name(location.path))
        self._fs.mkdir(path, location.path)
        return path

    def _root(self, log_dir: str) -> str:
        self._fs.mkdir(self._roots[log_dir], log_dir)
        return self._roots[log_dir]

    def add_log(
        self,
        source: FileSystem,
        location: LogLocation,
        groups: Sequence[SwapGroup],
        segments: Sequence[Segment],
        *,
        end_offset: int | None,
        identity: SourceLog | None = None,
    ) -> None:
        """Add a log: the outputs of ``groups``, and copies of all files that these do not replace.

        :param source: reads the log, recovered
        :param segments: the log's segments, as planned
        :param end_offset: the log's entry in the cleaner checkpoint; ``None`` keeps the source's
        :param identity: of its segments before they were read
        :raises CorruptLogError: a segment to be copied is damaged
        :raises StorageError: the file system refused, or the log has changed since it was planned
        """
        self._target.require_own()
        target = self.log_path(location)
        for group in groups:
            self._adopt(target, group)
        for name in self._fs.listdir(target):
            if is_unfinished(name):
                self._fs.unlink(join(target, name))
        replaced = {base for group in groups for base in group.source_base_offsets}
        vanished = replaced - {group.base_offset for group in groups}
        names = [name for name in self._log_files(source, location.path) if not _is_left_out(name, replaced, vanished)]
        valid = {segment_file(segment.base_offset, LOG): segment.size_bytes for segment in segments}
        used = {segment_file(segment.base_offset, INDEX): segment.index_bytes for segment in segments}
        used |= {segment_file(segment.base_offset, TIMEINDEX): segment.time_index_bytes for segment in segments}
        paths = {name: (join(location.path, name), join(target, name)) for name in names}
        self._copy_all(target, [partial(self._copy, source, *paths[name], valid.get(name), used.get(name)) for name in names])
        self._fs.fsync_dir(target)
        if not storage_of(target).round_trips:
            require_same_indexes(self._fs, target, (segment for segment in segments if segment.base_offset not in replaced))
        require_unchanged(source, self._disk, location.path, segments)
        self._added[location.log_dir][location.topic_partition] = end_offset
        if identity is not None:
            self._sources[self._relative(target)] = identity
        if self._like.get(location.log_dir) is None:
            self._like[location.log_dir] = _real_log(source, location.path)

    def leave_out(self, location: LogLocation) -> None:
        """Remove a log from the output, with the files that tasks wrote for it. It is left out even if that fails."""
        path = join(self._roots[location.log_dir], base_name(location.path))
        self._written = {name: written for name, written in self._written.items() if parent(name) != path}
        self._added[location.log_dir].pop(location.topic_partition, None)
        self._sources.pop(self._relative(path), None)
        self._fs.remove_tree(path)

    def commit(self, source: FileSystem) -> None:
        """Add the files that belong to the log directories, then make the output appear.

        :raises StorageError: the file system refused, or an output or a checkpoint has changed; nothing has appeared
        :raises CorruptLogError: a checkpoint of the source is malformed; nothing has appeared
        :raises LockedError: a broker has started on a source; nothing has appeared
        :raises CompactionError: the check of the request found the output wrong; nothing has appeared
        """
        self._target.require_own()
        for log_dir in self._roots:
            root = self._root(log_dir)
            for name in source.listdir(log_dir):
                known = is_log_dir_file(name) or not self._request.only_known_files
                if known and name not in _NOT_COPIED and not name.endswith(TMP) and not is_claim(name):
                    self._copy(source, join(log_dir, name), join(root, name))
            self._copy_metadata_log(source, join(log_dir, METADATA_LOG), join(root, METADATA_LOG))
            self._write_checkpoints(source, log_dir, root)
            self._fs.fsync_dir(root)
        require_still_unlocked(self._disk, list(self._roots))
        written = Manifest(tuple(self._written.values()), request=self._request.call, sources=self._sources)
        self._target.commit(written, self._check)

    def _check(self, place: str) -> None:
        for log_dir, root in layout(place, list(self._roots)).items():
            if self._request.check_copy is not None and (logs := frozenset(self._added[log_dir])):
                self._request.check_copy(log_dir, root, logs)

    def abort(self) -> None:
        self._target.abort(tasks_may_write=self._tasks_may_write)

    def _log_files(self, source: FileSystem, path: str) -> list[str]:
        """The files of a partition directory that may be copied."""
        return [name for name in source.listdir(path) if is_log_file(name) or not self._request.only_known_files]

    def _adopt(self, target: str, group: SwapGroup) -> None:
        """Give an output's files, verified by the tasks that wrote them, their final names."""
        if not group.files:
            name = join(target, segment_file(group.base_offset, LOG, group.suffix))
            raise StorageError("size and content of this run's output are unknown", path=name)
        for file in group.files:
            name, final = (join(target, segment_file(group.base_offset, file.kind, end)) for end in (group.suffix, ""))
            self._target.promote(name, final, file.size)
            self._add_file(final, file.size, group.mtime_ms, file.digest)

    def _add_file(self, path: str, size: int, mtime_ms: int, digest: str) -> None:
        self._written[path] = Entry(self._relative(path), size, mtime_ms, None, digest)

    def _relative(self, path: str) -> str:
        return path[len(self._target.place) + 1 :]

    def _copy_all(self, target: str, copies: Sequence[Callable[[], None]]) -> None:
        """Copy files into a directory."""
        if not storage_of(target).round_trips:
            for copy in copies:
                copy()
            return
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda copy: copy(), copies))

    def _copy(
        self, source: FileSystem, path: str, target: str, valid_bytes: int | None = None, used_bytes: int | None = None
    ) -> None:
        """Copy a file; anything but a regular file is skipped.

        :param valid_bytes: of a segment the batches, whose checksums must match; a torn tail is not copied
        :param used_bytes: of an index; zeros that follow were preallocated, and are not copied
        """
        stat = source.stat(path)
        if stat is None or not stat.is_file:
            return
        extent = source.real_path(path)
        if extent is None:
            self._write(target, source.read_bytes(path), like=_real_log(source, parent(path)), mtime_ns=stat.mtime_ns)
            return
        size = extent.size if valid_bytes is None else valid_bytes
        if used_bytes is not None and size > used_bytes + _ENTRY_BYTES and not view(source, path)[used_bytes:].any():
            size = used_bytes
        extent, recorded = extent._replace(size=size), self._entry_of(extent.path)
        if recorded is not None and recorded.xxh3_128 is not None and (extent.start, size) == (0, recorded.size):
            digest = recorded.xxh3_128
            copy_recorded(self._fs, extent, target, digest)
        else:
            digest = copy_verified(source, self._fs, extent, target, valid_bytes or 0)
        self._add_file(target, size, stat.mtime_ns // 1_000_000, digest)

    def _write(self, path: str, data: bytes, *, like: str | None, mtime_ns: int | None = None) -> None:
        write_verified(self._fs, path, data, like=like, mtime_ns=mtime_ns)
        self._add_file(path, len(data), (mtime_ns or 0) // 1_000_000, digest_of(data).digest)

    def _copy_metadata_log(self, source: FileSystem, path: str, target: str) -> None:
        """Without its metadata log a broker treats every log as stray."""
        stat = source.stat(path)
        if stat is not None and stat.is_dir:
            self._fs.mkdir(target, path)
            names = self._log_files(source, path)
            self._copy_all(target, [partial(self._copy, source, join(path, name), join(target, name)) for name in names])
            self._fs.fsync_dir(target)

    def _checkpoints(self, log_dir: str) -> dict[str, bytes | None]:
        """The bytes of a source's existing checkpoints, malformed ones included: planning rejects those."""
        paths = {name: join(log_dir, name) for name in _CHECKPOINTS}
        existing = {name: path for name, path in paths.items() if self._disk.stat(path) is not None}
        return {name: read_small(self._disk, path, "restore it") for name, path in existing.items()}

    def _write_checkpoints(self, source: FileSystem, log_dir: str, root: str) -> None:
        if self._checkpoints(log_dir) != self._found[log_dir]:
            hint = "make sure that no broker and no other job works on this directory, and run again; nothing has appeared"
            raise StorageError("a checkpoint has changed since the logs were planned", path=log_dir, hint=hint)
        added = self._added[log_dir]
        for name in _CHECKPOINTS:
            offsets = {tp: offset for tp, offset in read_offsets(source, log_dir, name).items() if tp in added}
            if name == CLEANER_OFFSETS:
                offsets.update({tp: end for tp, end in added.items() if end is not None})
            path = join(log_dir, name)
            extent = source.real_path(path) if source.stat(path) is not None else None
            if offsets or source.stat(path) is not None:
                like = self._like.get(log_dir) if extent is None else extent.path
                self._write(join(root, name), format_offset_checkpoint(offsets).encode(), like=like)


def finish_interrupted(output_dir: str) -> None:
    """Complete or undo the publication of a run that was stopped, and remove what it left.

    :raises CompactionError: another run publishes there, several earlier outputs were to be replaced, or the storage refused
    """
    if storage_of(output_dir).renames:
        remove_leftovers(LocalFileSystem(), output_dir)
    else:
        complete_replacement(output_dir)


def _real_log(source: FileSystem, path: str) -> str | None:
    """The real file behind one of a partition directory's log files, if there is one."""
    log = any_log(source, path)
    extent = None if log is None else source.real_path(log)
    return None if extent is None else extent.path


def _is_left_out(name: str, replaced: set[int], vanished: set[int]) -> bool:
    """Whether a log's file is not copied: temporary and renamed files, replaced segments and snapshots of removed ones."""
    file = parse_segment_file(name)
    if file is None:
        return name.endswith(TMP)
    if file.kind == SNAPSHOT:
        return bool(file.suffix) or file.base_offset in vanished
    return bool(file.suffix) or file.base_offset in replaced
