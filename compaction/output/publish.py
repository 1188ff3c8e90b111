"""Writes cleaned logs to another place, which appears complete or not at all.

Everything is gathered in a hidden directory beside the target, of a name that nobody can guess and where nobody else may enter,
fsynced, read back, and renamed into place as the last step. A killed run leaves only the hidden directory, which the next one
removes. The result is a log directory that a broker can load: segments, indexes, snapshots, leader epochs,
``partition.metadata``, ``meta.properties`` and the checkpoints of the logs published.
"""

from __future__ import annotations

import os
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from compaction.cleaning.log_view import Segment
from compaction.errors import StorageError, UsageError
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.fs.durable import TMP, write_verified
from compaction.fs.filesystem import DiskFileSystem, FileSystem, base_name, join, parent
from compaction.fs.text_files import read_small
from compaction.fs.uri import is_inside, is_remote, resolved
from compaction.locking.access import require_still_unlocked
from compaction.locking.claim import is_claim
from compaction.locking.mounts import is_mount_point
from compaction.logdir.changes import require_unchanged
from compaction.logdir.checkpoint_store import read_offsets
from compaction.logdir.discover import LogLocation
from compaction.logdir.segments import require_same_indexes
from compaction.names import (
    CLEANER_OFFSETS,
    CLUSTER_METADATA_TOPIC,
    HIGH_WATERMARKS,
    LOCK,
    LOG,
    LOG_STARTS,
    RECOVERY_POINTS,
    SNAPSHOT,
    TopicPartition,
    parse_segment_file,
    segment_file,
)
from compaction.output.swap import SwapGroup, any_log, is_unfinished
from compaction.output.verification import copy_verified
from compaction.stores.manifest import MANIFEST, MARKER

METADATA_LOG = f"{CLUSTER_METADATA_TOPIC}-0"
_CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)
_STAGING = re.compile(r"[0-9a-f]{32}\.partial")


class Publication(ABC):
    """A set of log directories in the making; ends with :meth:`commit` or :meth:`abort`.

    :param fs: of the place that is written to
    :param disk: of the log directories
    :param roots: by log directory, where its output is gathered
    """

    def __init__(self, fs: FileSystem, disk: DiskFileSystem, output_dir: str, roots: Mapping[str, str]) -> None:
        self._fs, self._disk = fs, disk
        self._output_dir = output_dir
        self._roots = dict(roots)
        #: per log directory: the logs published and where cleaning has come to in each
        self._added: dict[str, dict[TopicPartition, int | None]] = {log_dir: {} for log_dir in roots}
        #: per log directory: the checkpoints as the run found them
        self._found = {log_dir: self._checkpoints(log_dir) for log_dir in roots}
        #: per log directory: a file whose mode and owner new files take
        self._like: dict[str, str | None] = {}
        #: the size of each file written
        self._sizes: dict[str, int] = {}

    def log_path(self, location: LogLocation) -> str:
        """The directory (made) where the tasks write the cleaned segments of a log."""
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
        """Take a log in: the outputs of ``groups``, and copies of all its files that these do not replace.

        :param source: where the log is read from, recovered
        :param segments: the log's, as planned
        :param end_offset: the log's entry in the cleaner checkpoint; ``None`` keeps the source's
        :raises CorruptLogError: a segment that is to be copied is damaged
        :raises StorageError: the file system refused, or the log has changed since it was planned
        """
        target = self.log_path(location)
        for group in groups:
            self._adopt(target, group)
        for name in self._fs.listdir(target):
            if is_unfinished(name):
                self._fs.unlink(join(target, name))
        replaced = {base for group in groups for base in group.source_base_offsets}
        vanished = replaced - {group.base_offset for group in groups}
        names = [name for name in source.listdir(location.path) if not _is_left_out(name, replaced, vanished)]
        valid = {segment_file(segment.base_offset, LOG): segment.size_bytes for segment in segments}
        copies = [Copy(join(location.path, name), join(target, name), valid.get(name, 0)) for name in names]
        self._copy_all(source, copies)
        self._fs.fsync_dir(target)
        if not is_remote(target):
            require_same_indexes(self._fs, target, (each for each in segments if each.base_offset not in replaced))
        require_unchanged(source, self._disk, location.path, segments)
        self._added[location.log_dir][location.topic_partition] = end_offset
        if self._like.get(location.log_dir) is None:
            self._like[location.log_dir] = _real_log(source, location.path)

    def leave_out(self, location: LogLocation) -> None:
        """Forget a log, and what tasks wrote of it."""
        path = join(self._roots[location.log_dir], base_name(location.path))
        self._sizes = {name: size for name, size in self._sizes.items() if parent(name) != path}
        self._fs.remove_tree(path)

    def commit(self, source: FileSystem) -> None:
        """Add what belongs to the log directories and put everything in place.

        :raises StorageError: the file system refused; nothing has appeared
        :raises CorruptLogError: a checkpoint of the source is malformed; nothing has appeared
        :raises LockedError: a broker has begun to work in a source; nothing has appeared
        """
        for log_dir in self._roots:
            root = self._root(log_dir)
            for name in source.listdir(log_dir):
                if name not in (LOCK, MANIFEST, MARKER, *_CHECKPOINTS) and not name.endswith(TMP) and not is_claim(name):
                    self._copy(source, Copy(join(log_dir, name), join(root, name)))
            self._copy_metadata(source, join(log_dir, METADATA_LOG), join(root, METADATA_LOG))
            self._write_checkpoints(source, log_dir, root)
            self._fs.fsync_dir(root)
        require_still_unlocked(self._disk, list(self._roots))
        self._appear()

    @abstractmethod
    def _appear(self) -> None:
        """Put what is complete in place."""

    @abstractmethod
    def abort(self) -> None:
        """Give up: what was gathered goes."""

    def _adopt(self, target: str, group: SwapGroup) -> None:
        """Give the files of an output their names: they were verified by the tasks that wrote them."""
        for written in group.files:
            name, final = (join(target, segment_file(group.base_offset, written.kind, end)) for end in (group.suffix, ""))
            self._fs.rename(name, final)
            self._sizes[final] = written.size

    def _copy_all(self, source: FileSystem, copies: Sequence[Copy]) -> None:
        """Copy files; what is no file is passed over."""
        for each in copies:
            self._copy(source, each)

    def _copy(self, source: FileSystem, each: Copy) -> None:
        found = source.stat(each.path)
        if found is None or not found.is_file:
            return
        extent = source.real_path(each.path)
        if extent is not None:
            copy_verified(source, self._fs, extent, each.target, each.valid_bytes)
            self._sizes[each.target] = extent.size
            return
        data = source.read_bytes(each.path)
        self._write(each.target, data, like=_real_log(source, parent(each.path)), mtime_ns=found.mtime_ns)

    def _write(self, path: str, data: bytes, *, like: str | None, mtime_ns: int | None = None) -> None:
        write_verified(self._fs, path, data, like=like, mtime_ns=mtime_ns)
        self._sizes[path] = len(data)

    def _copy_metadata(self, source: FileSystem, path: str, target: str) -> None:
        """The metadata log as it is: without it a broker takes every log for a stray."""
        found = source.stat(path)
        if found is not None and found.is_dir:
            self._fs.mkdir(target, path)
            self._copy_all(source, [Copy(join(path, name), join(target, name)) for name in source.listdir(path)])
            self._fs.fsync_dir(target)

    def _checkpoints(self, log_dir: str) -> dict[str, bytes | None]:
        """The bytes of the checkpoints of a source, as far as there are any; malformed ones are for planning to refuse."""
        paths = {name: join(log_dir, name) for name in _CHECKPOINTS}
        there = {name: path for name, path in paths.items() if self._disk.stat(path) is not None}
        return {name: read_small(self._disk, path, "restore it") for name, path in there.items()}

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


class LocalPublication(Publication):
    """A set of log directories in the making, on a disk: gathered in a directory of this run's own beside the target."""

    def __init__(self, fs: DiskFileSystem, output_dir: str, staging: str, log_dirs: Sequence[str]) -> None:
        self._data = join(staging, "data")
        super().__init__(fs, fs, output_dir, layout(self._data, log_dirs))
        self._staging = staging
        self._lock = fs.lock(staging)

    @classmethod
    def begin(cls, fs: DiskFileSystem, output_dir: str, log_dirs: Sequence[str]) -> LocalPublication:
        """Prepare to publish to ``output_dir``, which must be empty or not there.

        :raises UsageError: it is something else, or lies in a log directory; log directories of one name
        :raises LockedError: another run publishes there now
        """
        output_dir = str(Path(output_dir).absolute())
        check_target(fs, output_dir, log_dirs)
        above, stem = parent(output_dir), f".{base_name(output_dir)}."
        fs.mkdir(above)
        for name in fs.listdir(above):
            if name.startswith(stem) and _STAGING.fullmatch(name[len(stem) :]):
                _remove_unless_in_use(fs, join(above, name))
        staging = join(above, f"{stem}{uuid.uuid4().hex}.partial")
        fs.mkdir(staging, private=True)
        return cls(fs, output_dir, staging, log_dirs)

    def _appear(self) -> None:
        self._require_all()
        self._fs.fsync_dir(self._data)
        self._fs.rename(self._data, self._output_dir)
        self._fs.fsync_dir(parent(self._output_dir))
        self.abort()

    def _require_all(self) -> None:
        """:raises StorageError: a file that was written is not there any more, or has another size"""
        for path, size in self._sizes.items():
            found = self._fs.stat(path)
            if found is None or found.size != size:
                hint = "nothing has appeared; check the disk, and what else works here, and run again"
                raise StorageError("file has changed since it was written", path=path, hint=hint)

    def abort(self) -> None:
        """Give up: the hidden directory goes."""
        self._lock.release()
        self._fs.remove_tree(self._staging)


class Copy(NamedTuple):
    """A file to be copied. The first ``valid_bytes`` are batches, whose checksums must hold."""

    path: str
    target: str
    valid_bytes: int = 0


def _remove_unless_in_use(fs: DiskFileSystem, staging: str) -> None:
    """Remove what a killed run has gathered: a directory of this user's own, whose lock nobody holds.

    :raises LockedError: another run publishes there now
    """
    found = fs.stat(staging)
    if found is not None and found.is_dir and found.uid == os.geteuid():
        # shared, as that makes no file: this may be a link that somebody planted
        fs.lock(staging, shared=True).release()
        fs.remove_tree(staging)


def _real_log(source: FileSystem, path: str) -> str | None:
    """A real segment's log file of a partition directory, if there is one."""
    log = any_log(source, path)
    extent = None if log is None else source.real_path(log)
    return None if extent is None else extent.path


def layout(root: str, log_dirs: Sequence[str]) -> dict[str, str]:
    """Where each log directory goes: a single one takes ``root`` itself, several take a directory of their name each.

    :raises UsageError: two have the same name
    """
    if len(log_dirs) == 1:
        return {log_dirs[0]: root}
    names = [base_name(log_dir) for log_dir in log_dirs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two log directories are called {name}", hint="publish them one at a time")
    return {log_dir: join(root, name) for log_dir, name in zip(log_dirs, names, strict=True)}


def check_target(fs: FileSystem, output_dir: str, log_dirs: Sequence[str]) -> None:
    """:raises UsageError: ``output_dir`` is no place to publish to"""
    found = fs.stat(output_dir)
    if found is not None and (not found.is_dir or fs.listdir(output_dir)):
        raise UsageError("--output-dir exists and is not empty", path=output_dir, hint="name a new directory")
    if found is not None and is_mount_point(output_dir):
        hint = "name a new directory below it: the output appears by a rename, which a mount point refuses"
        raise UsageError("--output-dir is a mount point", path=output_dir, hint=hint)
    for log_dir in log_dirs:
        if is_inside(resolved(output_dir), resolved(log_dir)):
            raise UsageError(f"--output-dir lies in the log directory {log_dir}", path=output_dir, hint="name another place")
    layout(output_dir, log_dirs)


def _is_left_out(name: str, replaced: set[int], vanished: set[int]) -> bool:
    file = parse_segment_file(name)
    if file is None:
        return name.endswith(TMP)
    if file.kind == SNAPSHOT:
        return bool(file.suffix) or file.base_offset in vanished
    return bool(file.suffix) or file.base_offset in replaced
