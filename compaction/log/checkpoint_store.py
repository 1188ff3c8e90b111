"""The checkpoint files of a log directory: read once per run, updated entry by entry by many threads.

Mirrors ``OffsetCheckpointFile`` and ``CheckpointFile``. Difference: Kafka treats a malformed
``log-start-offset-checkpoint`` as empty, while this package fails the logs of that directory, as losing a log start offset
would restore deleted records.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from compaction.config.entries import LONG_MAX
from compaction.errors import CorruptLogError, LogError
from compaction.files.durable import DurableSteps, replace_file
from compaction.files.filesystem import FileStat, FileSystem, join
from compaction.files.text_files import read_small_text
from compaction.formats.checkpoints import format_offset_checkpoint, parse_offset_checkpoint
from compaction.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    TopicPartition,
)

Offsets = Mapping[TopicPartition, int]

_HINT = "remove or repair it; a broker writes a new one"


@dataclass(frozen=True)
class Checkpoints:
    """The files of one log directory that a broker reads before it loads the logs; a missing or empty one has no entries.

    ``damage`` has the errors of malformed and unreadable files; they fail every log of the directory. ``recovery_points`` has
    the offsets from which a broker will recover the logs, 0 for others (Kafka: ``LogManager.loadLogs``). It is ``None`` if a
    broker will not: it was shut down cleanly, or none has used this directory. Without a ``clean_shutdown`` the active segments
    may end in any bytes.

    For the recovery of a log: ``snapshots_may_lack``: expired producers matter, so a producer snapshot does not prove that a
    segment has no transactions; ``complete_to``: the segments below this offset have all their files, whatever happened to the
    broker.
    """

    log_dir: str
    log_starts: Offsets = field(default_factory=dict)
    high_watermarks: Offsets = field(default_factory=dict)
    cleaner_offsets: Offsets = field(default_factory=dict)
    damage: tuple[LogError, ...] = ()
    recovery_points: Offsets | None = None
    clean_shutdown: bool = False
    snapshots_may_lack: bool = False
    complete_to: int = 0

    def require_valid(self) -> None:
        """:raises LogError: one of the files is malformed or unreadable"""
        for error in self.damage:
            raise error

    def first_unflushed(self, topic_partition: TopicPartition, bases: Iterable[int]) -> int:
        """The base offset of the first segment that a broker recovers because it was killed; ``LONG_MAX`` if it recovers none.

        :param bases: the base offsets of the log's segments
        """
        if self.recovery_points is None:
            return LONG_MAX
        point = self.recovery_points.get(topic_partition, 0)
        return max((base for base in bases if base <= point), default=-1)


def read_checkpoints(fs: FileSystem, log_dir: str) -> Checkpoints:
    """The checkpoints of ``log_dir``; errors are collected in ``damage``."""
    damage: list[LogError] = []
    starts, watermarks, cleaned = (_read(fs, log_dir, name, damage) for name in (LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS))
    clean = fs.stat(join(log_dir, CLEAN_SHUTDOWN)) is not None
    # a broker has used this directory; without recovery points, or with a malformed file, it recovers every log from its start
    has_points = not clean and any(fs.stat(join(log_dir, name)) is not None for name in (RECOVERY_POINTS, META_PROPERTIES))
    points = _read(fs, log_dir, RECOVERY_POINTS, []) if has_points else None
    return Checkpoints(log_dir, starts, watermarks, cleaned, tuple(damage), points, clean)


def _read(fs: FileSystem, log_dir: str, name: str, damage: list[LogError]) -> Offsets:
    try:
        return read_offsets(fs, log_dir, name)
    except LogError as error:
        damage.append(error)
        return {}


def read_offsets(fs: FileSystem, log_dir: str, file_name: str) -> dict[TopicPartition, int]:
    """The entries of a checkpoint file; empty if it is missing.

    :raises CorruptLogError: the file is malformed
    """
    path = join(log_dir, file_name)
    if fs.stat(path) is None:
        return {}
    text = read_small_text(fs, path, _HINT)
    try:
        return parse_offset_checkpoint(text, path)
    except CorruptLogError as error:
        raise CorruptLogError(error.message, path=path, hint=_HINT) from None


class Change(NamedTuple):
    """A compare-and-set of one entry of a checkpoint file: set to ``offset`` (``None``: removed), only if its current value is
    ``expected[0]`` (``None``: no entry), or unconditionally if ``expected`` is ``None``.

    A new checkpoint file takes mode and owner of the file ``like``.
    """

    topic_partition: TopicPartition
    offset: int | None
    expected: tuple[int | None] | None = None
    like: str | None = None


class CheckpointFiles:
    """The checkpoint files that a run changes, shared by its threads.

    Changes of logs that advance in step, and those made during a write, are batched, so the file of a directory with thousands
    of logs is written and synced far fewer times.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._files: dict[str, CheckpointFile] = {}

    def file(self, log_dir: str, name: str) -> CheckpointFile:
        path = join(log_dir, name)
        return self._files.get(path) or self._files.setdefault(path, CheckpointFile(self._fs, log_dir, name))


class CheckpointFile:
    """One file. The first idle writer writes all pending changes."""

    def __init__(self, fs: FileSystem, log_dir: str, file_name: str) -> None:
        self._fs, self._log_dir, self._name = fs, log_dir, file_name
        self._path = join(log_dir, file_name)
        self._condition = threading.Condition()
        #: with their outcomes
        self._pending: list[tuple[Change, Future[None]]] = []
        self._writing = False
        #: the file read last, and its entries
        self._cached: tuple[FileStat | None, dict[TopicPartition, int]] | None = None

    def offset(self, topic_partition: TopicPartition) -> int | None:
        """The current value of an entry.

        :raises CorruptLogError: the file is malformed
        """
        with self._condition:
            cached = self._cached
            # the write in progress concerns other logs: a log does not read its entry while it changes it
            entries = cached[1] if self._writing and cached is not None else self._read()
        return entries.get(topic_partition)

    def change(self, change: Change) -> DurableSteps[None]:
        """Changes an entry, durable at the end; other entries, mode and owner are kept. An unchanged file is not written.

        :raises CorruptLogError: the file is malformed; it is not changed
        :raises StorageError: the file system refused; the file is not changed
        """
        outcome: Future[None] = Future()
        with self._condition:
            self._pending.append((change, outcome))
        # meanwhile the logs in step with this one add their changes
        yield ()
        with self._condition:
            self._condition.wait_for(lambda: outcome.done() or not self._writing)
            batch: list[tuple[Change, Future[None]]] = []
            if not outcome.done():
                batch, self._pending, self._writing = self._pending, [], True
        if batch:
            self._apply(batch)
        outcome.result()

    def _apply(self, batch: list[tuple[Change, Future[None]]]) -> None:
        failure: BaseException | None = None
        try:
            self._write([change for change, _ in batch])
        except BaseException as error:
            failure = error
        with self._condition:
            self._writing = False
            for _, outcome in batch:
                if failure is None:
                    outcome.set_result(None)
                else:
                    outcome.set_exception(failure)
            self._condition.notify_all()

    def _write(self, changes: list[Change]) -> None:
        before = self._read()
        after = dict(before)
        for change in changes:
            if change.expected is not None and after.get(change.topic_partition) != change.expected[0]:
                continue
            if change.offset is None:
                after.pop(change.topic_partition, None)
            else:
                after[change.topic_partition] = change.offset
        if after == before:
            return
        like = next((change.like for change in changes if change.like is not None), None)
        # independent of the order of threads
        after = dict(sorted(after.items()))
        replace_file(self._fs, self._path, format_offset_checkpoint(after).encode(), like=like)
        self._cached = (self._fs.stat(self._path), after)

    def _read(self) -> dict[TopicPartition, int]:
        status, cached = self._fs.stat(self._path), self._cached
        if cached is None or status is None or status != cached[0]:
            cached = self._cached = status, read_offsets(self._fs, self._log_dir, self._name)
        return cached[1]
