"""The segments that are written in a layout of tiered storage.

If the source is tiered storage, each of its complete uploads is written again, under its topic id, segment id and offsets, with
the copy's records of these offsets: the cluster's metadata stays valid, except for sizes. Uploads with the same offsets as
others are written as well, because only the metadata knows which one is in use. Otherwise the segments of the copy are written,
under new ids.

The content of a segment is the records that the copy has in its offsets, with their indexes. A compacted segment may have lost
its last batches. Brokers then search in the next one, since Kafka 3.8 (KAFKA-15388), and a plugin may not be able to read a
segment without bytes at all. So a segment ends with a batch of its last offset: without one, an empty batch is added, like
those of the cleaner (``DefaultRecordBatch.writeEmptyHeader``).
"""

from __future__ import annotations

import hashlib
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, count, pairwise
from threading import Lock

from compaction.config.entries import LONG_MAX
from compaction.errors import CorruptLogError
from compaction.exports import StoredLog, StoredSegment
from compaction.exports.lineage import newest_lineage, valid_pieces
from compaction.exports.stored_segments import Batches, local_log, read_file
from compaction.files.contents import READ_BYTES, View, view
from compaction.files.filesystem import FileRange, FileSystem, ReadableFileSystem, join
from compaction.files.segment_file import SegmentScan
from compaction.formats import indexes
from compaction.formats.checkpoints import EpochEntry, topic_id_text
from compaction.formats.primitives import crc32c
from compaction.formats.producer_snapshot import write_snapshot
from compaction.formats.record_batch import CRC_START, HEADER, LOG_OVERHEAD_BYTES, MAGIC, BatchHeader
from compaction.log.read_log import read_segments, replay_segment, segment_bases
from compaction.names import INDEX, LOG, SNAPSHOT, TIMEINDEX, TXNINDEX, TopicPartition, segment_file
from compaction.output.segment_writer import IndexBuilder
from compaction.recovery.indexes import INDEX_INTERVAL_BYTES
from compaction.rules.producer_state import ProducerStates

_NO_EPOCHS = (EpochEntry(0, 0),)


@dataclass(frozen=True)
class Upload:
    """A segment to be written; ``end_offset`` is exclusive.

    :param name: ``<start offset>-<segment id>``, as its files are named
    :param epochs: the leader epochs of its batches, ascending; the first starts at ``start_offset``
    :param lineage: reads the leader epochs of the log up to the segment's end
    :param snapshot: reads the producer snapshot at its end
    :param source: the segment in the source; ``None`` if the source is not tiered storage
    :param valid_end_offset: from there on, a later leader has truncated it and brokers do not read it: it is written without
        these records
    """

    log: TopicPartition
    topic_id: str
    name: str
    start_offset: int
    end_offset: int
    valid_end_offset: int
    epochs: tuple[EpochEntry, ...]
    lineage: Callable[[], Sequence[EpochEntry]]
    snapshot: Callable[[], bytes]
    source: StoredSegment | None = None

    @property
    def segment_id(self) -> str:
        return self.name.partition("-")[2]


def uploads_again(files: ReadableFileSystem, log: TopicPartition, stored: StoredLog) -> Iterator[Upload]:
    """The uploads of tiered storage; ``CorruptLogError`` if one has no producer snapshot."""
    newest = newest_lineage(stored.segments)
    for segment in stored.segments:
        snapshot, lineage = segment.files.get(SNAPSHOT), segment.lineage
        if snapshot is None or lineage is None or segment.name is None or stored.topic_id is None:
            raise CorruptLogError("has no producer snapshot", path=segment.path, hint="restore it from another copy")
        yield Upload(
            log=log,
            topic_id=stored.topic_id,
            name=segment.name,
            start_offset=segment.start_offset,
            end_offset=segment.end_offset,
            valid_end_offset=max((piece.end_offset for piece in valid_pieces(segment, newest)), default=segment.start_offset),
            epochs=segment.epochs or (EpochEntry(0, segment.start_offset),),
            lineage=lineage,
            snapshot=partial(read_file, files, snapshot),
            source=segment,
        )


def new_uploads(files: FileSystem, log: TopicPartition, path: str) -> Iterator[Upload]:
    """The segments of a log's directory, except for an empty last one."""
    stored = local_log(files, path)
    segments = [segment for segment in stored.segments if segment.end_offset > segment.start_offset]
    topic_id = stored.topic_id or _id("topic", log.topic)
    snapshots = _Snapshots(files, path)
    for segment in segments:
        lineage = tuple(() if segment.lineage is None else segment.lineage()) or _NO_EPOCHS
        begun = [entry for entry in lineage if entry.start_offset < segment.end_offset] or [lineage[0]]
        begun[0] = begun[0]._replace(start_offset=min(begun[0].start_offset, segments[0].start_offset))
        epochs = segment.epochs or begun[-1:]
        name = _id("segment", topic_id, log.partition, segment.start_offset, segment.end_offset)
        yield Upload(
            log=log,
            topic_id=topic_id,
            name=f"{segment.start_offset:020d}-{name}",
            start_offset=segment.start_offset,
            end_offset=segment.end_offset,
            valid_end_offset=segment.end_offset,
            epochs=(epochs[0]._replace(start_offset=segment.start_offset), *epochs[1:]),
            lineage=partial(tuple, begun),
            snapshot=snapshots.at_end_of(segment),
        )


class _Snapshots:
    """The producer snapshots at the ends of a log's segments, as a broker would have stored them; for several threads.

    Missing snapshots are replayed when the first of them is read, and held until each is read. Segments are written log by log,
    so snapshots of only few logs are in memory.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files, self._path = files, path
        #: base offsets of the segments without a stored snapshot
        self._to_replay: set[int] = set()
        self._replayed: dict[int, bytes] = {}
        self._lock = Lock()

    def at_end_of(self, segment: StoredSegment) -> Callable[[], bytes]:
        stored = segment.files.get(SNAPSHOT)
        if stored is not None:
            return partial(read_file, self._files, stored)
        self._to_replay.add(segment.start_offset)
        return partial(self._read, segment.start_offset)

    def _read(self, base_offset: int) -> bytes:
        with self._lock:
            if base_offset not in self._replayed:
                self._replayed = self._replay()
            return self._replayed.pop(base_offset)

    def _replay(self) -> dict[int, bytes]:
        """The producers after each segment, by base offset; from all batches, also of expired producers."""
        states, snapshots = ProducerStates(), {}
        for segment in read_segments(self._files, self._path):
            replay_segment(self._files, self._path, segment, (0, LONG_MAX), states)
            if segment.base_offset in self._to_replay:
                snapshots[segment.base_offset] = write_snapshot(states.entries())
        return snapshots


def _id(*parts: object) -> str:
    """An id that depends on the parts only, in Kafka's text form. Like Kafka's ids, it never begins with ``-``."""
    hashes = (hashlib.sha256("\0".join(map(str, (*parts, attempt))).encode()) for attempt in count())
    ids = (topic_id_text(uuid.UUID(bytes=each.digest()[:16], version=4).bytes) for each in hashes)
    return next(text for text in ids if not text.startswith("-"))


def empty_batch(offset: int, leader_epoch: int) -> bytes:
    header = BatchHeader(offset, HEADER.size - LOG_OVERHEAD_BYTES, leader_epoch, MAGIC, 0, 0, 0, -1, -1, -1, -1, -1, 0)
    data = bytearray(HEADER.pack(header))
    HEADER.put(data, "crc", crc32c(memoryview(data)[CRC_START:]))
    return bytes(data)


@dataclass(frozen=True)
class SegmentContent:
    """The files of a segment. The log file consists of ``parts`` and ``end``.

    :param indexes: ``.index``, ``.timeindex``, and ``.txnindex`` if it has entries
    """

    files: ReadableFileSystem
    parts: tuple[FileRange, ...]
    end: bytes
    indexes: dict[str, bytes]

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate((part.size for part in self.parts), initial=0))

    @property
    def size(self) -> int:
        """The size of the log file, in bytes."""
        return self._starts[-1] + len(self.end)

    def ranges(self, start: int, end: int) -> Iterator[FileRange]:
        """The file ranges of the bytes ``[start, end)``, without those of ``end``."""
        while start < min(end, self._starts[-1]):
            number = bisect_right(self._starts, start) - 1
            part, before = self.parts[number], start - self._starts[number]
            size = min(part.size - before, end - start)
            yield part.part(before, before + size)
            start += size

    def read(self, start: int, length: int) -> bytes:
        """Up to ``length`` bytes of the log file from ``start``."""
        end, after = min(self.size, start + length), self._starts[-1]
        chunks = [self.files.read_bytes(*part) for part in self.ranges(start, end)]
        return b"".join([*chunks, self.end[max(0, start - after) : max(0, end - after)]])

    def blocks(self, block_bytes: int = READ_BYTES) -> Iterator[bytes]:
        """The log file in blocks of ``block_bytes``; the last may be shorter."""
        for start in range(0, self.size, block_bytes):
            yield self.read(start, block_bytes)


class CopiedLog:
    def __init__(self, files: ReadableFileSystem, path: str, name: TopicPartition) -> None:
        self._files, self._path, self.name = files, path, name
        bases = segment_bases(files, path)
        #: base offsets, and those of the next segments
        self._segments = list(pairwise([*bases, LONG_MAX])) if bases else []
        #: the parts of all contents; several threads append to it
        self._used: list[FileRange] = []

    def content(self, upload: Upload) -> SegmentContent:
        """The log's records in the offsets of an upload.

        :raises CorruptLogError: a batch has offsets on both sides of its start or end
        """
        start, end = upload.start_offset, upload.valid_end_offset
        base_offsets = [base for base, following in self._segments if base < end and following > start]
        parts = {base: part for base in base_offsets if (part := self._part(base, start, end)).size}
        self._used.extend(parts.values())
        ends = (self._batches(base, part.start + part.size).end_offset(start) for base, part in parts.items())
        last = max(ends, default=start)
        closing = b"" if last >= upload.end_offset else empty_batch(upload.end_offset - 1, upload.epochs[-1].epoch)
        content = SegmentContent(self._files, tuple(parts.values()), closing, {})
        built = self._whole_indexes(parts, start) or rebuilt_indexes(content, upload)
        txns = b"".join(indexes.txn_entries_between(self._read(base, TXNINDEX), start, end) for base in base_offsets)
        if txns:
            built[TXNINDEX] = txns
        return replace(content, indexes=built)

    def unused_from(self) -> int | None:
        """The offset of the first batch that is in no content; ``None`` if every byte of the log is in one."""
        used = sorted(self._used)
        for base, _ in self._segments:
            batches, position = self._batches(base), 0
            path = batches.path
            for part in used[bisect_left(used, (path,)) : bisect_left(used, (path, LONG_MAX))]:
                position = max(position, part.start + part.size) if part.start <= position else position
            if position < len(batches.data):
                return next(map(int, batches.first(position)["base_offset"]), base)
        return None

    def _file(self, base: int, kind: str) -> str:
        return join(self._path, segment_file(base, kind))

    def _read(self, base: int, kind: str) -> bytes:
        path = self._file(base, kind)
        return b"" if self._files.stat(path) is None else self._files.read_bytes(path)

    def _batches(self, base: int, end: int | None = None) -> Batches:
        """The batches of a segment, up to a position."""
        path = self._file(base, LOG)
        return Batches(path, view(self._files, path)[:end], base, self._read(base, INDEX))

    def _part(self, base: int, start: int, end: int) -> FileRange:
        batches = self._batches(base)
        first, after = map(batches.position_of, (start, end))
        return FileRange(batches.path, first, after - first)

    def _whole_indexes(self, parts: dict[int, FileRange], start: int) -> dict[str, bytes] | None:
        """The indexes of a completely copied segment; ``None`` if they must be rebuilt."""
        if list(parts) != [start]:
            return None
        status = self._files.stat(self._file(start, LOG))
        paths = {kind: self._file(start, kind) for kind in (INDEX, TIMEINDEX)}
        if status is None or parts[start].size != status.size or any(self._files.stat(path) is None for path in paths.values()):
            return None
        return {kind: self._files.read_bytes(path) for kind, path in paths.items()}


def rebuilt_indexes(content: SegmentContent, upload: Upload) -> dict[str, bytes]:
    builder = IndexBuilder(upload.start_offset, INDEX_INTERVAL_BYTES)
    data = View(upload.name, content.read, content.size)
    for rows in SegmentScan(data):
        builder.add(rows)
    offsets, times = builder.finish()
    return {INDEX: offsets, TIMEINDEX: times}
