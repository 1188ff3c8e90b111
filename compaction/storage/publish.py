"""Writes cleaned logs to another place, which appears complete or not at all.

Everything is gathered in a hidden directory beside the target, fsynced, and renamed into place as the last step. A killed
run leaves only the hidden directory, which the next one removes. The result is a log directory that a broker can load:
segments, indexes, snapshots, leader epochs, ``partition.metadata``, ``meta.properties`` and the checkpoints of the logs
published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from compaction.errors import UsageError
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.names import (
    CLEANER_OFFSETS,
    CLUSTER_METADATA_TOPIC,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    RECOVERY_POINTS,
    SEGMENT_KINDS,
    SNAPSHOT,
    TopicPartition,
    parse_segment_file,
    segment_file,
)
from compaction.storage.checkpoint_store import read_offsets
from compaction.storage.discover import LogLocation
from compaction.storage.durable import TMP
from compaction.storage.filesystem import FileStat, FileSystem, base_name, join, parent
from compaction.storage.lock import LogDirLock
from compaction.storage.manifest import MANIFEST, MARKER
from compaction.storage.places import is_inside, resolved
from compaction.storage.swap import SwapGroup, any_log, is_unfinished

METADATA_LOG = f"{CLUSTER_METADATA_TOPIC}-0"
_CHECKPOINTS = (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS)


class Publication:
    """A set of log directories in the making. Begin with :meth:`start`; end with :meth:`commit` or :meth:`abort`."""

    def __init__(self, fs: FileSystem, output_dir: str, roots: Mapping[str, str], lock: LogDirLock | None = None) -> None:
        self._fs = fs
        self._output_dir = output_dir
        self._staging = staging_dir(output_dir)
        self._roots = dict(roots)
        self._lock = lock
        #: per log directory: the logs published and where cleaning has come to in each
        self._added: dict[str, dict[TopicPartition, int | None]] = {log_dir: {} for log_dir in roots}
        #: per log directory: a file whose mode and owner new files take
        self._like: dict[str, FileStat | None] = {}

    @classmethod
    def start(cls, fs: FileSystem, output_dir: str, log_dirs: Sequence[str]) -> Publication:
        """Prepare to publish to ``output_dir``, which must be empty or not there.

        :raises UsageError: it is something else, or lies in a log directory; log directories of one name
        :raises LockedError: another run publishes there now
        """
        output_dir = str(Path(output_dir).absolute())
        check_target(fs, output_dir, log_dirs)
        staging = staging_dir(output_dir)
        fs.mkdir(staging, _writable(fs.stat(log_dirs[0]) if len(log_dirs) == 1 else None))
        lock = LogDirLock.acquire(staging)
        for name in fs.listdir(staging):
            if name != LOCK:
                remove_tree(fs, join(staging, name))
        return cls(fs, output_dir, layout(staging, log_dirs), lock)

    def log_path(self, location: LogLocation) -> str:
        """The directory (made) where the tasks write the cleaned segments of a log."""
        path = join(self._root(location.log_dir), base_name(location.path))
        self._fs.mkdir(path, _writable(self._fs.stat(location.path)))
        return path

    def _root(self, log_dir: str) -> str:
        self._fs.mkdir(self._roots[log_dir], _writable(self._fs.stat(log_dir)))
        return self._roots[log_dir]

    def add_log(
        self, source: FileSystem, location: LogLocation, groups: Sequence[SwapGroup], *, end_offset: int | None
    ) -> None:
        """Take a log in: the outputs of ``groups``, and copies of all its files that these do not replace.

        :param source: where the log is read from, recovered
        :param end_offset: the log's entry in the cleaner checkpoint; ``None`` keeps the source's
        :raises StorageError: the file system refused
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
        self._copy_all(source, [(join(location.path, name), join(target, name)) for name in names])
        self._fs.fsync_dir(target)
        self._added[location.log_dir][location.topic_partition] = end_offset
        if location.log_dir not in self._like and (log := any_log(source, location.path)) is not None:
            self._like[location.log_dir] = source.stat(log)

    def leave_out(self, location: LogLocation) -> None:
        """Forget a log, and what tasks wrote of it."""
        target = join(self._roots[location.log_dir], base_name(location.path))
        if self._fs.stat(target) is not None:
            remove_tree(self._fs, target)

    def commit(self, source: FileSystem) -> None:
        """Add what belongs to the log directories and put everything in place.

        :raises StorageError: the file system refused; nothing has appeared
        :raises CorruptLogError: a checkpoint of the source is garbled; nothing has appeared
        """
        for log_dir in self._roots:
            root = self._root(log_dir)
            for name in source.listdir(log_dir):
                if name not in (LOCK, MANIFEST, MARKER, *_CHECKPOINTS) and not name.endswith(TMP):
                    self._copy(source, join(log_dir, name), join(root, name))
            self._copy_metadata(source, join(log_dir, METADATA_LOG), join(root, METADATA_LOG))
            self._write_checkpoints(source, log_dir, root)
            self._fs.fsync_dir(root)
        self._appear()

    def _appear(self) -> None:
        """Put what is complete in place."""
        self._fs.unlink(join(self._staging, LOCK))
        self._fs.fsync_dir(self._staging)
        self._fs.rename(self._staging, self._output_dir)
        self._fs.fsync_dir(parent(self._output_dir))
        self._release()

    def abort(self) -> None:
        """Give up: the hidden directory goes."""
        if self._fs.stat(self._staging) is not None:
            remove_tree(self._fs, self._staging)
        self._release()

    def _adopt(self, target: str, group: SwapGroup) -> None:
        for kind in SEGMENT_KINDS:
            name = join(target, segment_file(group.base_offset, kind, group.suffix))
            if self._fs.stat(name) is not None:
                self._fs.fsync(name)
                self._fs.rename(name, join(target, segment_file(group.base_offset, kind)))

    def _copy_all(self, source: FileSystem, pairs: Sequence[tuple[str, str]]) -> None:
        """Copy files to the second path of each pair; what is no file is passed over."""
        for path, target in pairs:
            self._copy(source, path, target)

    def _copy(self, source: FileSystem, path: str, target: str) -> None:
        found = source.stat(path)
        if found is None or not found.is_file:
            return
        if source.in_memory(path):
            self._fs.write_file(target, source.read_bytes(path), found)
            self._fs.utime(target, found.mtime_ns)
        else:
            extent = source.real_path(path)
            self._fs.copy(extent.path, target, extent.start, extent.size)
        self._fs.fsync(target)

    def _copy_metadata(self, source: FileSystem, path: str, target: str) -> None:
        """The metadata log as it is: without it a broker takes every log for a stray."""
        found = source.stat(path)
        if found is not None and found.is_dir:
            self._fs.mkdir(target, _writable(found))
            self._copy_all(source, [(join(path, name), join(target, name)) for name in source.listdir(path)])
            self._fs.fsync_dir(target)

    def _write_checkpoints(self, source: FileSystem, log_dir: str, root: str) -> None:
        added = self._added[log_dir]
        for name in _CHECKPOINTS:
            offsets = {tp: offset for tp, offset in read_offsets(source, log_dir, name).items() if tp in added}
            if name == CLEANER_OFFSETS:
                offsets.update({tp: end for tp, end in added.items() if end is not None})
            found = source.stat(join(log_dir, name))
            if offsets or found is not None:
                data = format_offset_checkpoint(offsets).encode()
                self._fs.write_file(join(root, name), data, found or self._like.get(log_dir))
                self._fs.fsync(join(root, name))

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _writable(like: FileStat | None) -> FileStat | None:
    """Mode and owner of a directory, such that its owner can make files in one like it."""
    return None if like is None else like._replace(mode=like.mode | 0o700)


def staging_dir(output_dir: str) -> str:
    """The hidden directory beside the target."""
    return join(parent(output_dir), f".{base_name(output_dir)}.partial")


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
    for log_dir in log_dirs:
        if is_inside(resolved(output_dir), resolved(log_dir)):
            raise UsageError(f"--output-dir lies in the log directory {log_dir}", path=output_dir, hint="name another place")
    layout(output_dir, log_dirs)


def remove_tree(fs: FileSystem, path: str) -> None:
    """Remove a file, or a directory and all in it."""
    found = fs.stat(path)
    if found is None or not found.is_dir:
        fs.unlink(path)
        return
    for name in fs.listdir(path):
        remove_tree(fs, join(path, name))
    fs.rmdir(path)


def _is_left_out(name: str, replaced: set[int], vanished: set[int]) -> bool:
    file = parse_segment_file(name)
    if file is None:
        return name.endswith(TMP)
    if file.kind == SNAPSHOT:
        return bool(file.suffix) or file.base_offset in vanished
    return bool(file.suffix) or file.base_offset in replaced
