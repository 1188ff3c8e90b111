"""The segments that are written in a layout of tiered storage.

If the source is tiered storage, each of its complete uploads is written again, under its topic id, segment id and offsets, with
the copy's records of these offsets: the cluster's metadata stays valid, except for sizes. Uploads with the same offsets as
others are written as well, because only the metadata knows which one is in use. Otherwise the segments of the copy are written,
under new ids.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import NamedTuple

from compaction.cleaning.producer_state import ProducerStates
from compaction.config.entries import LONG_MAX
from compaction.errors import CorruptLogError
from compaction.formats.checkpoints import EpochEntry
from compaction.formats.producer_snapshot import write_snapshot
from compaction.logdir.read_log import read_segments, replay_segment
from compaction.names import SNAPSHOT, TopicPartition
from compaction.storage.filesystem import FileSystem, ReadableFileSystem
from compaction.storage.layouts.batch_positions import read_file
from compaction.storage.layouts.lineage import newest_lineage, valid_pieces
from compaction.storage.layouts.log_tail import local_log
from compaction.storage.stored_log import StoredLog, StoredSegment

_NO_EPOCHS = (EpochEntry(0, 0),)


class TopicLog(NamedTuple):
    """A log and the id of its topic."""

    name: TopicPartition
    topic_id: str


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

    log: TopicLog
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
        """22 characters of base64."""
        return self.name.partition("-")[2]


def uploads_again(files: ReadableFileSystem, log: TopicPartition, stored: StoredLog) -> Iterator[Upload]:
    """The uploads of tiered storage.

    :raises CorruptLogError: one has no producer snapshot
    """
    newest = newest_lineage(stored.segments)
    for segment in stored.segments:
        snapshot, lineage = segment.files.get(SNAPSHOT), segment.lineage
        if snapshot is None or lineage is None or segment.name is None or stored.topic_id is None:
            raise CorruptLogError("has no producer snapshot", path=segment.path, hint="restore it from another copy")
        yield Upload(
            log=TopicLog(log, stored.topic_id),
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
    stored = local_log(files, path) or StoredLog(())
    segments = [segment for segment in stored.segments if segment.end_offset > segment.start_offset]
    owner = TopicLog(log, stored.topic_id or _id("topic", log.topic))
    snapshots = _Snapshots(files, path)
    for segment in segments:
        lineage = tuple(() if segment.lineage is None else segment.lineage()) or _NO_EPOCHS
        begun = [entry for entry in lineage if entry.start_offset < segment.end_offset] or [lineage[0]]
        begun[0] = begun[0]._replace(start_offset=min(begun[0].start_offset, segments[0].start_offset))
        epochs = segment.epochs or begun[-1:]
        name = _id("segment", owner.topic_id, log.partition, segment.start_offset, segment.end_offset)
        yield Upload(
            log=owner,
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
        """Reads the snapshot after a segment."""
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
    for attempt in range(1 << 10):
        digest = hashlib.sha256("\0".join(map(str, (*parts, attempt))).encode()).digest()
        text = base64.urlsafe_b64encode(uuid.UUID(bytes=digest[:16], version=4).bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
    raise AssertionError("unreachable")
