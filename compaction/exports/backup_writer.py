"""Writes the records of a log directory as a backup set of kafka-backup.

The set has the records that a consumer with ``isolation.level=read_committed`` would read, at the same offsets. It is complete
or not at all (``new_export``): every file is read back, then the manifest is written. Its segments cover all offsets of the
logs, as those of a backup do, and a later backup of the source continues it.

A log that has records after its committed end (the lower of high watermark and last stable offset) is an error by default:
a transaction that nobody ends holds back all that was committed after it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from compaction.errors import CorruptLogError, UnsupportedLogError, UsageError
from compaction.exports import UNCOMMITTED, TargetOptions
from compaction.exports.backup import read_manifest
from compaction.exports.new_export import NewExport, new_export, require_empty
from compaction.files.filesystem import base_name, join
from compaction.files.mixed import file_system
from compaction.files.uri import is_layout, layout_path
from compaction.formats.backup import (
    MANIFEST,
    BackupManifest,
    BackupPartition,
    BackupSegment,
    Compression,
    SegmentHeader,
    encode_segment,
    format_manifest,
)
from compaction.kernels.backup_records import BACKUP_ERRORS, COMPLETE, NO_SPACE, put_backup_records
from compaction.kernels.columns import HEADERS, KEYS, VALUES, Columns
from compaction.names import TopicPartition
from compaction.screen.amounts import counted
from compaction.source.read_columns import READ_COMMITTED, read_columns
from compaction.source.read_plan import ReadEnd, ReadRequest, ReadTask, plan_read, read_ends

#: properties of a log that a set does not have, for a sentence with "no"
LOST = (
    "producer ids and sequence numbers, transactions (only committed records are written, without their markers), leader"
    " epochs, timestamp types, and delete horizons: the time until tombstones may be dropped starts again with each compaction"
)
#: plain bytes of a segment
SEGMENT_BYTES = 64 << 20
_THREADS = 2
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class BackupTarget:
    """The target of a set.

    :param base: the manifest of the set that is the source of the logs, if any, as it was before they were read
    :param source: the place of this set
    :param selected: the logs of ``base`` that the new set has, if they have no records
    :param committed_only: a log with records after its committed end is written without these
    """

    path: str
    compression: Compression = Compression.ZSTD
    base: BackupManifest | None = None
    source: str | None = None
    selected: Callable[[TopicPartition], bool] = lambda _: True
    committed_only: bool = False
    segment_bytes: int = SEGMENT_BYTES

    def write(self, log_dir: str, now_ms: int) -> str:
        """See ``ExportTarget``; ``CorruptLogError`` if the source is a set that has changed since the logs were read."""
        if self.source is not None and read_manifest(file_system([self.source]), self.source) != self.base:
            problem = "this backup set has changed while it was read"
            hint = "run the command again while nothing is written to it"
            raise CorruptLogError(problem, path=self.source, hint=hint)
        with new_export(self.path, log_dir) as export:
            return self._write(log_dir, export, now_ms)

    def _write(self, log_dir: str, export: NewExport, now_ms: int) -> str:
        request = replace(ReadRequest.parse({"path": log_dir, "isolation.level": READ_COMMITTED}), allow_empty=True)
        ends = read_ends(request)
        left_out = _check_ends(ends, committed_only=self.committed_only)
        tasks: dict[TopicPartition, list[ReadTask]] = {log: [] for log in ends}
        for task in plan_read(request, KEYS | VALUES | HEADERS):
            tasks[task.topic_partition].append(task)
        export.mkdir(export.place)
        old = {} if self.base is None else self.base.partitions

        def write_partition(log: TopicPartition) -> BackupPartition:
            partition = old.get(log, BackupPartition(()))
            start = partition.segments[0].covered_start if partition.segments else None
            return _LogWriter(export, log, self).write(tasks[log], start, max(ends[log].offset, partition.end_offset))

        # those without segments keep their offsets
        kept = {log: partition for log, partition in old.items() if not partition.segments and self.selected(log)}
        with ThreadPoolExecutor(_THREADS) as pool:
            partitions = {**kept, **dict(zip(tasks, pool.map(write_partition, tasks), strict=True))}
        topics = () if self.base is None else self.base.document["topics"]
        without_partitions = (topic["name"] for topic in topics if not topic["partitions"])
        empty = [name for name in without_partitions if self.selected(TopicPartition(name, 0))]
        compression = self.compression.name.lower()
        manifest = format_manifest(base_name(self.path), partitions, now_ms, self.base, compression, empty)
        export.write(join(export.place, MANIFEST), [manifest])
        segments = [segment for partition in partitions.values() for segment in partition.segments]
        records = counted(sum(segment.record_count for segment in segments), "record")
        summary = f"{records} in {counted(len(segments), 'segment')}"
        return summary + (f", without {counted(left_out, 'offset')} not committed" if left_out else "")


def backup_target(options: TargetOptions) -> BackupTarget:
    """The target of a command; ``UsageError`` if the losses of a backup set were not accepted, or the target is not empty."""
    if options.accepted is None:
        raise UsageError(f"a backup set has no {LOST}", hint="give --accept-loss to write it without these")
    require_empty(options.path)
    committed_only = options.accepted == UNCOMMITTED
    if not is_layout(options.source) or layout_path(options.source).layout != "backup":
        return BackupTarget(options.path, committed_only=committed_only)
    place = layout_path(options.source).place
    base = read_manifest(file_system([place]), place)
    compression = Compression.__members__.get(str(base.document.get("compression")).upper(), Compression.ZSTD)
    return BackupTarget(options.path, compression, base, place, options.selected, committed_only)


def _check_ends(ends: Mapping[TopicPartition, ReadEnd], *, committed_only: bool) -> int:
    """The number of offsets after the committed ends of logs.

    :raises UnsupportedLogError: there are some, and they must not be left out
    """
    left_out = 0
    for log, end in ends.items():
        count = end.log_end_offset - end.offset
        gap = f"{log}: {count} offsets from {end.offset} to {end.log_end_offset - 1} are not committed: {end.bound}"
        if count > 0 and not committed_only:
            hint = f"{end.remedy}, or give --accept-loss uncommitted to write the set without them"
            raise UnsupportedLogError(gap, hint=hint)
        if count > 0:
            _LOGGER.warning("%s; the set does not have them", gap)
            left_out += count
    return left_out


class _LogWriter:
    def __init__(self, export: NewExport, log: TopicPartition, target: BackupTarget) -> None:
        self._export, self._log, self._target = export, log, target
        #: of the segment being filled
        self._out, self._used, self._count = np.empty(target.segment_bytes, np.uint8), 0, 0
        #: the offsets and timestamps of some of its records, with the first and the last one
        self._records: list[tuple[int, int]] = []
        self._done: list[BackupSegment] = []
        self._covered = 0

    def write(self, tasks: list[ReadTask], start: int | None, end: int) -> BackupPartition:
        """All records; the segments cover the offsets from ``start`` (by default the log start) to ``end``."""
        self._directory = join("topics", self._log.topic, f"partition={self._log.partition}")
        if tasks:
            self._export.mkdir(join(self._export.place, self._directory))
            self._covered = tasks[0].spec.bounds.first_offset if start is None else start
        for part, spec in ((part, task.spec) for task in tasks for part in task.slices):
            for records in read_columns(part.path, part.start, part.end, spec):
                self._add(records.columns)
        self._finish(end)
        if tasks:
            self._export.files.fsync_dir(join(self._export.place, self._directory))
        return BackupPartition(tuple(self._done), (), end - 1 if end else None)

    def _add(self, columns: Columns) -> None:
        row, row_count = 0, len(columns.offset)
        while row < row_count:
            after, used, error = map(int, put_backup_records(columns, row, self._out[self._used :]))
            if after > row:
                self._records += [(int(columns.offset[at]), int(columns.timestamp_ms[at])) for at in (row, after - 1)]
            self._used, self._count, row = self._used + used, self._count + after - row, after
            if error == COMPLETE:
                return
            if error != NO_SPACE:
                problem = f"{BACKUP_ERRORS[error]}, which a backup set cannot have: offset {columns.offset[row]}"
                raise UnsupportedLogError(problem, path=str(self._log), hint="leave this topic out")
            if self._count:
                self._finish(int(columns.offset[row]))
            else:
                self._out = np.empty(2 * len(self._out), np.uint8)

    def _finish(self, end: int) -> None:
        """Write the segment, which covers the offsets up to ``end``."""
        if not self._count:
            return
        (first, first_ms), (last, last_ms) = self._records[0], self._records[-1]
        compression, count, size = self._target.compression, self._count, self._used
        data = encode_segment(memoryview(self._out[:size]), SegmentHeader(compression, count, first, last))
        key = join(self._directory, f"segment-{first:020d}.bin{compression.extension}")
        self._export.write(join(self._export.place, key), [data])
        digest, covered = hashlib.sha256(data).hexdigest(), (self._covered, max(end, last + 1))
        self._done.append(BackupSegment(key, first, last, first_ms, last_ms, count, size, len(data), digest, covered))
        self._covered = covered[1]
        self._used, self._count, self._records = 0, 0, []
