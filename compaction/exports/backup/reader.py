"""The layout of kafka-backup: ``manifest.json`` and ``topics/<topic>/partition=<n>/segment-<start offset>.bin[.zst|.lz4]``.

The log of a partition has the records that a restore of the set would write, at the offsets of the source, in batches without
producers and leader epochs. Offsets that the manifest does not mention (sets before version 0.25) or lists as lost or pruned
are holes of the log, as after a compaction; other holes are missing segments. Every segment is inactive. Objects that the
manifest does not name are ignored, as by a restore.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import pairwise

from compaction.errors import CorruptLogError, UnsupportedLogError
from compaction.exports.backup.segment_spool import SegmentSpool
from compaction.exports.backup.set_objects import HINT, SegmentObject, read_manifest, stored_segment
from compaction.formats.backup_manifest import (
    READ_COMMITTED,
    BackupManifest,
    BackupPartition,
    BackupSegment,
)
from compaction.names import LOG, TopicPartition
from compaction.storage.filesystem import ByteSource, FileRange, join
from compaction.storage.layouts.stored_objects import in_parallel
from compaction.storage.local import LocalFileSystem
from compaction.storage.stored_log import LogFile, Place, StoredLog, StoredSegment
from compaction.storage.uri import SPOOL, options_of

_LOGGER = logging.getLogger(__name__)
_LOCAL = LocalFileSystem()


class BackupReader:
    """A set."""

    def __init__(self, place: Place) -> None:
        self._files, self._root, self._place = place.files, place.root, place.path
        self._spool = SegmentSpool(options_of(place.root)[SPOOL])

    @cached_property
    def _manifest(self) -> BackupManifest:
        manifest = read_manifest(self._files, self._place)
        if manifest.isolation_level != READ_COMMITTED:
            warning = "the set was not read with isolation_level read_committed"
            _LOGGER.warning("%s: %s; aborted data and markers of transactions in it are plain records", self._place, warning)
        return manifest

    def logs(self) -> Sequence[TopicPartition]:
        return sorted(log for log, partition in self._manifest.partitions.items() if partition.segments)

    def stored(self, log: TopicPartition) -> StoredLog:
        partition = self._manifest.partitions[log]
        path = join(self._place, "topics", str(log))
        _require_binary(self._place, partition)
        objects = [stored_segment(self._files, self._place, segment) for segment in partition.segments]
        self._spool.require_space(sum(segment.uncompressed_size for segment in partition.segments), path)
        spooled = in_parallel(partial(self._spool.converted, self._files), objects)
        bounds = _bounds(partition)
        rows = zip(partition.segments, objects, spooled, bounds, strict=True)
        return StoredLog(tuple(self._segment(*row) for row in rows))

    def _segment(self, segment: BackupSegment, stored: SegmentObject, spooled: str, bounds: tuple[int, int]) -> StoredSegment:
        status = _LOCAL.stat(spooled)
        size = 0 if status is None else status.size
        content = FileRange(join(self._root, segment.key), 0, size)
        return StoredSegment(stored.path, *bounds, {LOG: LogFile(size, stored.mtime_ns, content)})

    def open(self, within: str) -> SpooledContent:
        for partition in self._manifest.partitions.values():
            for segment in partition.segments:
                if segment.key == within:
                    stored = stored_segment(self._files, self._place, segment)
                    return SpooledContent(self._spool.converted(self._files, stored), stored.mtime_ns)
        raise CorruptLogError("the manifest names no such segment", path=join(self._place, within), hint=HINT)


class SpooledContent:
    """A converted segment."""

    def __init__(self, path: str, mtime_ns: int) -> None:
        self._path, self.mtime_ns = path, mtime_ns
        status = _LOCAL.stat(path)
        self.size = 0 if status is None else status.size

    def read(self, start: int, length: int) -> bytes:
        return _LOCAL.read_bytes(self._path, start, length)

    def reader(self, start: int, end: int) -> ByteSource:
        return _LOCAL.reader(self._path, start, end)


def _require_binary(place: str, partition: BackupPartition) -> None:
    """:raises UnsupportedLogError: the partition has segments of the first versions, which were JSON"""
    for segment in partition.segments:
        if ".json" in segment.key.rpartition("/")[2]:
            problem = "segments in JSON, of kafka-backup's first versions, are not supported"
            raise UnsupportedLogError(problem, path=join(place, segment.key), hint="back the topic up again")


def _bounds(partition: BackupPartition) -> list[tuple[int, int]]:
    """Per segment, the offsets ``[start, end)`` of its records and of a legitimate hole after them."""
    covered = [segment.covered or (segment.start_offset, segment.end_offset + 1) for segment in partition.segments]
    ends = []
    for (before, (_, end)), (after, (start, _)) in pairwise(zip(partition.segments, covered, strict=True)):
        is_hole = before.covered is None or after.covered is None or _is_absent(partition, end, start)
        ends.append(start if is_hole else end)
    if covered:
        ends.append(max(covered[-1][1], partition.end_offset))
    return [(start, end) for (start, _), end in zip(covered, ends, strict=True)]


def _is_absent(partition: BackupPartition, start: int, end: int) -> bool:
    """Whether the manifest lists all offsets ``[start, end)`` as absent."""
    for low, high in sorted(partition.absent):
        if low <= start < high:
            start = high
    return start >= end
