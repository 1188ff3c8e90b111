"""The layout of kafka-backup: ``manifest.json`` and ``topics/<topic>/partition=<n>/segment-<start offset>.bin[.zst|.lz4]``.

The log of a partition has the records that a restore of the set would write, at the offsets of the source, in batches without
producers and leader epochs. Offsets that the manifest does not mention (sets before version 0.25) or lists as lost or pruned
are holes of the log, as after a compaction; other holes are missing segments. Every segment is inactive. Objects that the
manifest does not name are ignored, as by a restore.

The size of a segment as batches is not known before it is converted, and its compressed stream has no entry points. So each
segment is converted once, a few megabytes at a time, into a file of the run's spool directory, which the processes of a run
share. The bytes depend on the segment only: a process on another machine converts it again to the same file. The process that
chose the directory removes it; if it was killed, the next run does (``compaction.files.calls``).
"""

from __future__ import annotations

import hashlib
import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, StorageError, UnsupportedLogError
from compaction.exports import DecodedObject, ExportLayout, LogFile, Place, StoredLog, StoredSegment, when_writing
from compaction.exports.stored_segments import in_parallel
from compaction.files.calls import use_spool
from compaction.files.contents import read_range
from compaction.files.filesystem import File, FileRange, FileStat, ReadableFileSystem, join, storage_errors
from compaction.files.local import LocalFileSystem, free_space
from compaction.files.text_files import read_small
from compaction.files.uri import SPOOL, options_of
from compaction.formats.backup import (
    MANIFEST,
    READ_COMMITTED,
    BackupManifest,
    BackupPartition,
    BackupSegment,
    Compression,
    SegmentHeader,
    SegmentStream,
    parse_manifest,
)
from compaction.formats.primitives import FormatError
from compaction.kernels.backup_records import BACKUP_ERRORS, COMPLETE, COUNT, FLOOR, NO_SPACE, POSITION, USED, batches_of_backup
from compaction.names import LOG, TopicPartition
from compaction.screen.amounts import size as amount

#: bounds memory; a manifest has about 600 bytes for each segment, and a backup begins one for each partition and minute
MAX_MANIFEST_BYTES = 1 << 30
HINT = "restore the object from another copy of the set"


class SegmentObject(NamedTuple):
    """A segment's object: its path and size, and its entry in the manifest."""

    path: str
    stat: FileStat
    entry: BackupSegment


def read_manifest(files: ReadableFileSystem, place: str) -> BackupManifest:
    """The manifest of the set in a directory.

    :raises StorageError: there is none
    :raises CorruptLogError: it is malformed
    """
    path = join(place, MANIFEST)
    if files.stat(path) is None:
        inner = [name for name in files.listdir(place) if files.stat(join(place, name, MANIFEST)) is not None]
        hint = f"give one of the sets below it, e.g. {join(place, inner[0])}" if inner else "give the directory of one set"
        raise StorageError(f"no backup set here: it has no {MANIFEST}", path=place, hint=hint)
    try:
        return parse_manifest(read_small(files, path, HINT, MAX_MANIFEST_BYTES))
    except FormatError as error:
        raise CorruptLogError(error.message, path=path, position=error.position, hint=HINT) from error


#: uncompressed bytes of a batch that is converted
BATCH_BYTES = 64 * 1024
_STEP_BYTES = 4 << 20
#: bounds memory: no broker accepts a larger record
_MAX_RECORD_BYTES = 256 << 20
#: the reciprocal of the share of the file system that remains free, at most ``_MAX_RESERVE_BYTES``
_RESERVE = 100
_MAX_RESERVE_BYTES = 1 << 30
#: limits concurrent lz4 segments, each of which is completely in memory, compressed and uncompressed
_IN_MEMORY = threading.BoundedSemaphore(2)
_OTHER_DIRECTORY = "free some space, or name another directory by ?spool=DIR in the address"


def convert(files: ReadableFileSystem, stored: SegmentObject) -> Iterator[memoryview]:
    """The batches of a segment.

    :raises CorruptLogError: the segment is malformed, or differs from the manifest. Positions behind the header count from the
        first record's plain bytes
    """
    path, stat, entry = stored
    try:
        stream = SegmentStream(read_range(files, FileRange(path, 0, stat.size)), stat.size)
        conversion = _Conversion(stream.header, entry)
        try:
            with _IN_MEMORY if stream.header.compression is Compression.LZ4 else nullcontext():
                for plain in _limited(stream.plain(_STEP_BYTES), entry.uncompressed_size):
                    yield from conversion.add(plain)
            conversion.end()
        except FormatError:
            # a wrong checksum explains any other error
            stream.check_end()
            raise
        digest = stream.check_end()
    except FormatError as error:
        problem = f"{error.message}; the segment has offsets {entry.start_offset} to {entry.end_offset}"
        raise CorruptLogError(problem, path=path, position=error.position, hint=HINT) from error
    if entry.sha256 and entry.sha256 != digest:
        raise CorruptLogError(f"segment has SHA-256 {digest}, {entry.sha256} in the manifest", path=path, hint=HINT)


def _limited(blocks: Iterator[memoryview], plain_bytes: int) -> Iterator[memoryview]:
    """The blocks.

    :param plain_bytes: the limit, 0 for none
    :raises FormatError: there are more bytes
    """
    size = 0
    for block in blocks:
        size += len(block)
        if size > plain_bytes > 0:
            raise FormatError(f"segment has more than the {plain_bytes} plain bytes of the manifest")
        yield block


class _Conversion:
    """Converts the records of a segment into batches as they arrive; ``FormatError`` if the header and the manifest differ."""

    def __init__(self, header: SegmentHeader, entry: BackupSegment) -> None:
        in_header, in_manifest = header[1:], (entry.record_count, entry.start_offset, entry.end_offset)
        if in_header != in_manifest:
            text = "{} records at offsets {} to {}"
            raise FormatError(f"segment has {text.format(*in_header)}, {text.format(*in_manifest)} in the manifest", 8)
        self._header = header
        self._data: NDArray[np.uint8] = np.empty(2 * _STEP_BYTES, np.uint8)
        self._out = np.empty(2 * _STEP_BYTES, np.uint8)
        self._end, self._position = 0, 0
        self._state = np.zeros(4, np.int64)
        self._state[FLOOR] = header.start_offset

    def add(self, plain: memoryview) -> Iterator[memoryview]:
        """The batches of all records that are complete with these bytes; ``FormatError`` if a record is malformed."""
        state = self._state
        unread_bytes = self._end - int(state[POSITION])
        if unread_bytes + len(plain) > _MAX_RECORD_BYTES:
            raise FormatError(f"record of more than {_MAX_RECORD_BYTES} bytes", self._position)
        unread = self._data[int(state[POSITION]) : self._end]
        if unread_bytes + len(plain) > len(self._data):
            self._data = np.empty(2 * (unread_bytes + len(plain)), np.uint8)
        self._data[:unread_bytes] = unread.copy()
        self._data[unread_bytes : unread_bytes + len(plain)] = np.frombuffer(plain, np.uint8)
        self._position += int(state[POSITION])
        state[POSITION], self._end = 0, unread_bytes + len(plain)
        while True:
            outcome = batches_of_backup(self._data, self._end, BATCH_BYTES, self._out, state)
            yield memoryview(self._out[: int(state[USED])])
            if outcome == COMPLETE:
                return
            if outcome != NO_SPACE:
                problem = f"{BACKUP_ERRORS[outcome]}, after {state[COUNT]} records"
                raise FormatError(problem, self._position + int(state[POSITION]))
            if not state[USED]:
                self._out = np.empty(2 * len(self._out), np.uint8)

    def end(self) -> None:
        """:raises FormatError: bytes remain after the last record, or the records differ from the header"""
        _, record_count, _, end_offset = self._header
        unread_bytes = self._end - int(self._state[POSITION])
        if unread_bytes:
            raise FormatError(f"{unread_bytes} bytes left after {self._state[COUNT]} records")
        if self._state[COUNT] != record_count or self._state[FLOOR] != end_offset + 1:
            records = f"{self._state[COUNT]} records up to offset {self._state[FLOOR] - 1}"
            raise FormatError(f"segment has {records}, {record_count} up to {end_offset} in its header")


_LOGGER = logging.getLogger(__name__)
_LOCAL = LocalFileSystem()


class BackupReader:
    def __init__(self, place: Place) -> None:
        self._files, self._root, self._place = place.files, place.root, place.path
        #: the directory of converted segments, created with the first one, readable by its owner only
        self._spool = options_of(place.root)[SPOOL]

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
        for segment in partition.segments:
            if ".json" in segment.key.rpartition("/")[2]:
                problem = "segments in JSON, of kafka-backup's first versions, are not supported"
                raise UnsupportedLogError(problem, path=join(self._place, segment.key), hint="back the topic up again")
        objects = list(map(self._object, partition.segments))
        plain_bytes, free = sum(segment.uncompressed_size for segment in partition.segments), free_space(self._spool).free_bytes
        if free < plain_bytes:
            problem = f"its records take about {amount(plain_bytes)} in {self._spool}, which has {amount(free)} free"
            raise StorageError(problem, path=join(self._place, "topics", str(log)), hint=_OTHER_DIRECTORY)
        segments = []
        for stored, file, bounds in zip(objects, in_parallel(self._converted, objects), _bounds(partition), strict=True):
            content = FileRange(join(self._root, stored.entry.key), 0, file.size())
            segments.append(StoredSegment(stored.path, *bounds, {LOG: LogFile(file.size(), file.mtime_ns, content)}))
        return StoredLog(tuple(segments))

    def open(self, within: str) -> SpooledSegment:
        for partition in self._manifest.partitions.values():
            for segment in partition.segments:
                if segment.key == within:
                    return self._converted(self._object(segment))
        raise CorruptLogError("the manifest names no such segment", path=join(self._place, within), hint=HINT)

    def _object(self, segment: BackupSegment) -> SegmentObject:
        """The object of a segment; ``CorruptLogError`` if it is missing, or its size is not the manifest's."""
        path = join(self._place, segment.key)
        offsets = f"offsets {segment.start_offset} to {segment.end_offset}"
        status = self._files.stat(path)
        if status is None:
            raise CorruptLogError(f"segment is missing; the manifest says that it has {offsets}", path=path, hint=HINT)
        if segment.compressed_size and status.size != segment.compressed_size:
            problem = f"segment of {offsets} has {status.size} bytes, {segment.compressed_size} in the manifest"
            raise CorruptLogError(problem, path=path, hint=HINT)
        return SegmentObject(path, status, segment)

    def _converted(self, stored: SegmentObject) -> SpooledSegment:
        """A segment, which is converted unless another process has done so.

        :raises CorruptLogError: the segment is malformed, or differs from the manifest
        :raises StorageError: it cannot be read, or there is no space for it
        """
        path = f"{self._spool}/{hashlib.sha256(stored.path.encode()).hexdigest()[:32]}.log"
        if Path(path).exists():
            return SpooledSegment(path, stored.stat.mtime_ns)
        attempt = Path(f"{path}.{uuid.uuid4().hex}")
        try:
            use_spool(self._spool)
            with storage_errors(path, "write a temporary file"):
                size = self._write(attempt, convert(self._files, stored), stored.path)
                if (written := attempt.stat().st_size) != size:
                    problem = f"temporary file has {written} bytes, {size} were written"
                    raise StorageError(problem, path=path, hint=_OTHER_DIRECTORY)
                attempt.rename(path)
        finally:
            attempt.unlink(missing_ok=True)
        return SpooledSegment(path, stored.stat.mtime_ns)

    def _write(self, attempt: Path, blocks: Iterator[memoryview], source_path: str) -> int:
        """Write a new file, buffered, because a raw file's ``write`` may write fewer bytes; returns their number.

        :raises StorageError: a write would leave less free than the reserve
        """
        size = 0
        with attempt.open("xb") as file:
            for block in blocks:
                _, free, total = free_space(self._spool)
                if free - len(block) < min(total // _RESERVE, _MAX_RESERVE_BYTES):
                    problem = f"its records would fill {self._spool}, which has {amount(free)} free"
                    raise StorageError(problem, path=source_path, hint=_OTHER_DIRECTORY)
                size += file.write(block)
        return size


class SpooledSegment(DecodedObject):
    def __init__(self, path: str, mtime_ns: int) -> None:
        self._path, self.mtime_ns = path, mtime_ns
        status = _LOCAL.stat(path)
        self._size = 0 if status is None else status.size

    def size(self) -> int:
        return self._size

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        return _LOCAL.read_bytes(self._path, start, length)

    def sequential(self, start: int, end: int) -> File:
        return _LOCAL.open(self._path, start, end)


def _bounds(partition: BackupPartition) -> list[tuple[int, int]]:
    """Per segment, the offsets ``[start, end)`` of its records and of a legitimate hole after them."""
    covered = [(segment.covered_start, segment.covered_end) for segment in partition.segments]
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


LAYOUT = ExportLayout(
    "backup set",
    BackupReader,
    when_writing("compaction.exports.backup_writer:backup_target"),
    "a backup set has a manifest of all its segments, and no backup or restore may meet a set that is half changed",
    spools=True,
)
