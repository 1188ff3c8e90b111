"""Publishes cleaned logs as new log directories, which appear complete or not at all.

The result is a directory that a broker can load: segments, indexes, producer snapshots, leader epochs, ``partition.metadata``,
``meta.properties``, the metadata log, and the checkpoint entries of the published logs. ``LocalPublication`` writes to a disk,
``ObjectPublication`` to an object store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from compaction.cleaning.log_view import Segment
from compaction.errors import StorageError, UsageError
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.locking.access import require_still_unlocked
from compaction.locking.claim import is_claim
from compaction.logdir.checkpoint_store import read_offsets
from compaction.logdir.segments import require_same_indexes, require_unchanged
from compaction.logdir.settings.metadata_topic import METADATA_LOG
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
    parse_segment_file,
    segment_file,
)
from compaction.output.finished import FINISHED
from compaction.output.segment_files import any_log, is_unfinished
from compaction.output.swap import SwapGroup
from compaction.output.verification import copy_verified
from compaction.storage.contents import digest_of
from compaction.storage.durable import TMP, write_verified
from compaction.storage.filesystem import DiskFileSystem, FileSystem, base_name, join, parent
from compaction.storage.kinds import storage_of
from compaction.storage.manifest import MANIFEST, MARKER
from compaction.storage.ranges import view
from compaction.storage.text_files import read_small
from compaction.storage.uri import is_inside, resolved

_CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
_NOT_COPIED = frozenset((LOCK, MANIFEST, MARKER, FINISHED, *_CHECKPOINTS))


#: the largest entry of an index: a time index may end with one of zeros, the time 0 at its first offset
_ENTRY_BYTES = 12


class Copy(NamedTuple):
    """A file to be copied. Of a segment only the first ``valid_bytes`` are: batches whose checksums must match, without a torn
    tail. Zeros that follow the first ``used_bytes`` of an index were preallocated, and are not copied. ``None`` for others."""

    path: str
    target: str
    valid_bytes: int | None = None
    used_bytes: int | None = None


class PublishOptions(NamedTuple):
    """``call`` is recorded in the output, so that a later run can tell whether it is the output of the same request; ``None``:
    nothing is recorded. ``replace``: an earlier output is replaced. ``only_known``: files that no broker loads are not copied:
    they may have what was erased."""

    call: Mapping[str, Any] | None = None
    replace: bool = False
    only_known: bool = False


NEW_OUTPUT = PublishOptions()


class Publication(ABC):
    """A set of log directories being written; ends with :meth:`commit` or :meth:`abort`.

    :param fs: writes the output
    :param disk: reads the log directories
    :param roots: by log directory, the directory that its output is written to
    """

    def __init__(
        self, fs: FileSystem, disk: DiskFileSystem, output_dir: str, roots: Mapping[str, str], goal: PublishOptions = NEW_OUTPUT
    ) -> None:
        self._fs, self._disk, self._goal = fs, disk, goal
        self._output_dir = output_dir
        self._roots = dict(roots)
        #: by log directory: the published logs and the new cleaner checkpoint of each
        self._added: dict[str, dict[TopicPartition, int | None]] = {log_dir: {} for log_dir in roots}
        #: by log directory: the checkpoints as the run found them
        self._found = {log_dir: self._checkpoints(log_dir) for log_dir in roots}
        #: by log directory: a file whose mode and owner new files take
        self._like: dict[str, str | None] = {}
        #: the files of the output and their sizes, as written
        self._sizes: dict[str, int] = {}
        #: the hashes of their contents, as far as known
        self._hashes: dict[str, str] = {}

    def log_path(self, location: LogLocation) -> str:
        """The directory (created) in which tasks write the cleaned segments of a log."""
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
    ) -> None:
        """Add a log: the outputs of ``groups``, and copies of all files that these do not replace.

        :param source: reads the log, recovered
        :param segments: the log's segments, as planned
        :param end_offset: the log's entry in the cleaner checkpoint; ``None`` keeps the source's
        :raises CorruptLogError: a segment to be copied is damaged
        :raises StorageError: the file system refused, or the log has changed since it was planned
        """
        self._require_own()
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
        copies = [Copy(*paths[name], valid.get(name), used.get(name)) for name in names]
        self._copy_all(source, copies)
        self._fs.fsync_dir(target)
        if not storage_of(target).round_trips:
            require_same_indexes(self._fs, target, (each for each in segments if each.base_offset not in replaced))
        require_unchanged(source, self._disk, location.path, segments)
        self._added[location.log_dir][location.topic_partition] = end_offset
        if self._like.get(location.log_dir) is None:
            self._like[location.log_dir] = _real_log(source, location.path)

    def leave_out(self, location: LogLocation) -> None:
        """Remove a log from the output, with the files that tasks wrote for it. It is left out even if that fails."""
        path = join(self._roots[location.log_dir], base_name(location.path))
        self._sizes = {name: size for name, size in self._sizes.items() if parent(name) != path}
        self._fs.remove_tree(path)

    def commit(self, source: FileSystem) -> None:
        """Add the files that belong to the log directories, then make the output appear.

        :raises StorageError: the file system refused, or an output or a checkpoint has changed; nothing has appeared
        :raises CorruptLogError: a checkpoint of the source is malformed; nothing has appeared
        :raises LockedError: a broker has started on a source; nothing has appeared
        """
        self._require_own()
        for log_dir in self._roots:
            root = self._root(log_dir)
            for name in source.listdir(log_dir):
                known = is_log_dir_file(name) or not self._goal.only_known
                if known and name not in _NOT_COPIED and not name.endswith(TMP) and not is_claim(name):
                    self._copy(source, Copy(join(log_dir, name), join(root, name)))
            self._copy_metadata_log(source, join(log_dir, METADATA_LOG), join(root, METADATA_LOG))
            self._write_checkpoints(source, log_dir, root)
            self._fs.fsync_dir(root)
        require_still_unlocked(self._disk, list(self._roots))
        self._appear()

    def _log_files(self, source: FileSystem, path: str) -> list[str]:
        """The files of a partition directory that may be copied."""
        return [name for name in source.listdir(path) if is_log_file(name) or not self._goal.only_known]

    def _require_own(self) -> None:  # noqa: B027 - a local staging directory has no other writer
        """:raises StorageError: another run has begun to write to the output"""

    @abstractmethod
    def _appear(self) -> None:
        """Check that every file of the output is there, and make the output visible."""

    @abstractmethod
    def abort(self) -> None:
        """Remove everything that was written."""

    @abstractmethod
    def _adopt(self, target: str, group: SwapGroup) -> None:
        """Give an output's files, verified by the tasks that wrote them, their final names."""

    def _copy_all(self, source: FileSystem, copies: Sequence[Copy]) -> None:
        for each in copies:
            self._copy(source, each)

    def _copy(self, source: FileSystem, each: Copy) -> None:
        """Copy a file; anything but a regular file is skipped."""
        found = source.stat(each.path)
        if found is None or not found.is_file:
            return
        extent = source.real_path(each.path)
        if extent is not None:
            size = _without_preallocated(source, each, extent.size) if each.valid_bytes is None else each.valid_bytes
            extent = extent._replace(size=size)
            self._hashes[each.target] = copy_verified(source, self._fs, extent, each.target, each.valid_bytes or 0)
            self._sizes[each.target] = extent.size
            return
        data = source.read_bytes(each.path)
        self._write(each.target, data, like=_real_log(source, parent(each.path)), mtime_ns=found.mtime_ns)

    def _write(self, path: str, data: bytes, *, like: str | None, mtime_ns: int | None = None) -> None:
        write_verified(self._fs, path, data, like=like, mtime_ns=mtime_ns)
        self._sizes[path], self._hashes[path] = len(data), digest_of(data).digest

    def _copy_metadata_log(self, source: FileSystem, path: str, target: str) -> None:
        """Without its metadata log a broker treats every log as stray."""
        found = source.stat(path)
        if found is not None and found.is_dir:
            self._fs.mkdir(target, path)
            self._copy_all(source, [Copy(join(path, name), join(target, name)) for name in self._log_files(source, path)])
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


def layout(root: str, log_dirs: Sequence[str]) -> dict[str, str]:
    """The output directory of each log directory: ``root`` itself if there is one, else a subdirectory of the same name.

    :raises UsageError: two log directories have the same name
    """
    if len(log_dirs) == 1:
        return {log_dirs[0]: root}
    names = [base_name(log_dir) for log_dir in log_dirs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two log directories are called {name}", hint="publish them one at a time")
    return {log_dir: join(root, name) for log_dir, name in zip(log_dirs, names, strict=True)}


def require_target(output_dir: str, log_dirs: Sequence[str]) -> None:
    """:raises UsageError: ``output_dir`` is inside a log directory, or two log directories have the same name"""
    for log_dir in log_dirs:
        if is_inside(resolved(output_dir), resolved(log_dir)):
            what = f"--output-dir is inside the log directory {log_dir}"
            raise UsageError(what, path=output_dir, hint="name another directory")
    layout(output_dir, log_dirs)


def _real_log(source: FileSystem, path: str) -> str | None:
    """The real file behind one of a partition directory's log files, if there is one."""
    log = any_log(source, path)
    extent = None if log is None else source.real_path(log)
    return None if extent is None else extent.path


def _without_preallocated(source: FileSystem, each: Copy, size: int) -> int:
    """The size of the copy of a file of ``size`` bytes."""
    used = each.used_bytes
    if used is None or size <= used + _ENTRY_BYTES or view(source, each.path)[used:].any():
        return size
    return used


def _is_left_out(name: str, replaced: set[int], vanished: set[int]) -> bool:
    """Whether a log's file is not copied: temporary and renamed files, replaced segments and snapshots of removed ones."""
    file = parse_segment_file(name)
    if file is None:
        return name.endswith(TMP)
    if file.kind == SNAPSHOT:
        return bool(file.suffix) or file.base_offset in vanished
    return bool(file.suffix) or file.base_offset in replaced
