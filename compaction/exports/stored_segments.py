"""What readers of several layouts have in common: listings of objects, and positions in segments, by the headers of batches.

Also the part of a log in a local log directory: the segments that are not exported yet, its leader epochs and its topic id.
Leader epochs that contradict the last batches are not used: those of the batches are assigned.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

import numpy as np

from compaction.errors import CorruptLogError
from compaction.exports import LogFile, Place, StoredLog, StoredSegment
from compaction.exports.lineage import within
from compaction.files.contents import View
from compaction.files.filesystem import OBJECTS, FileRange, FileStat, ReadableFileSystem, join, storage_of
from compaction.files.object_store import read_whole
from compaction.files.segment_file import Rows, SegmentScan, epoch_ranges
from compaction.files.text_files import MAX_SMALL_BYTES, read_small_text
from compaction.formats import indexes
from compaction.formats.checkpoints import (
    EpochEntry,
    EpochRange,
    agree,
    assign_epochs,
    parse_leader_epochs,
    parse_partition_metadata,
)
from compaction.kernels.tables import BATCH_ROW
from compaction.names import INDEX, LEADER_EPOCHS, LOG, PARTITION_METADATA, SNAPSHOT, parse_segment_file

T = TypeVar("T")
R = TypeVar("R")

_THREADS = 16
#: a topic's name and 22 characters of URL-safe base64
TOPIC_AND_ID = r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<id>[A-Za-z0-9_-]{22})"


def directories(files: ReadableFileSystem, path: str) -> Iterator[str]:
    """The names of the directories in a directory, sorted."""
    for name in files.listdir(path):
        stat = files.stat(join(path, name))
        if stat is not None and stat.is_dir:
            yield name


def objects(files: ReadableFileSystem, path: str) -> dict[str, FileStat]:
    """The files of a directory, by name."""
    stats = {name: files.stat(join(path, name)) for name in files.listdir(path)}
    return {name: stat for name, stat in stats.items() if stat is not None and stat.is_file}


def read_object(files: ReadableFileSystem, path: str, limit_bytes: int = MAX_SMALL_BYTES) -> bytes:
    """All bytes of a small object; for several threads.

    :raises CorruptLogError: it is larger than ``limit_bytes``
    :raises StorageError: it cannot be read
    """
    stat = files.stat(path)
    if stat is not None and stat.size > limit_bytes:
        message = f"is larger than {limit_bytes >> 20} MiB, the limit for such objects"
        raise CorruptLogError(message, path=path, hint="restore the object from another copy")
    return read_whole(path) if storage_of(path) is OBJECTS else files.read_bytes(path)


def in_parallel(read: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The results of a call for each, in order."""
    if len(items) < 2:
        return [read(one) for one in items]
    with ThreadPoolExecutor(min(_THREADS, len(items))) as pool:
        return list(pool.map(read, items))


def matching_directories(place: Place, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """The matches of the names of an export's directories, after the prefix that all of them have."""
    names = directories(place.files, place.path)
    matches = (pattern.fullmatch(name.removeprefix(place.prefix)) for name in names if name.startswith(place.prefix))
    return (match for match in matches if match is not None)


def uploads_of(
    place: Place, paths: Sequence[tuple[str, str]], pattern: re.Pattern[str], required: Sequence[str]
) -> tuple[str | None, dict[str, dict[str, FileStat]], int]:
    """The uploads of a log in tiered storage: its topic id; the objects of complete ones by path without suffix, then by
    suffix; the number of others.

    :param paths: its directories, after the prefix, and their topic ids
    :param pattern: of the names of objects, with the groups ``name`` and ``suffix``
    :param required: the suffixes of a complete upload
    :raises CorruptLogError: there are directories of several topics of one name
    :raises StorageError: the directory cannot be listed
    """
    if len(paths) > 1:
        names = ", ".join(path.partition("/")[0] for path, _ in paths)
        hint = "the topic was created again; copy the directory of one of them elsewhere"
        raise CorruptLogError(f"has objects of several topics of one name: {names}", path=place.path, hint=hint)
    uploads: dict[str, dict[str, FileStat]] = {}
    for name, _ in paths:
        path = join(place.path, place.prefix + name)
        for file, stat in sorted(objects(place.files, path).items()):
            match = pattern.fullmatch(file)
            if match is not None:
                uploads.setdefault(join(path, match["name"]), {})[match["suffix"]] = stat
    complete = {path: stats for path, stats in uploads.items() if all(suffix in stats for suffix in required)}
    return paths[0][1] if paths else None, complete, len(uploads) - len(complete)


_HINT = "restore the object from another copy"
_OFFSET_MAX = 2**63 - 1


class Batches:
    """The batches of a segment, to which its offset index leads: ``data`` has them, ``path`` names the segment in errors.

    Each method raises ``CorruptLogError`` for a malformed batch that it reads. Tables of batches are of ``BATCH_ROW``.
    """

    def __init__(self, path: str, data: View, base_offset: int, index: bytes = b"") -> None:
        self.path, self.data, self._base_offset, self.index = path, data, base_offset, index

    @classmethod
    def of(cls, files: ReadableFileSystem, path: str, base_offset: int, kinds: Mapping[str, LogFile]) -> Batches:
        return cls(path, view_of(files, path, kinds[LOG]), base_offset, read_file(files, kinds.get(INDEX)))

    def tables(self, position: int = 0) -> Iterator[Rows]:
        """The complete batches from the position of a batch on; an incomplete one ends them."""
        yield from self._checked(SegmentScan(self.data, position))

    def _checked(self, scan: SegmentScan) -> Iterator[Rows]:
        yield from scan
        if scan.error is not None:
            raise CorruptLogError(scan.error, path=self.path, position=scan.position, hint=_HINT)

    def first(self, position: int, offset: int = 0) -> Rows:
        """The first batch from ``position`` on that ends at or past ``offset``: shape (1,), or (0,) for none."""
        found = (rows[rows["last_offset"] >= offset][:1] for rows in self.tables(position))
        return next(filter(len, found), np.empty(0, BATCH_ROW))

    def before(self, offset: int) -> int:
        """The position of a batch before ``offset``, by the offset index; 0 without an entry, or if the batch there is a later
        one than the entry says. It may be an earlier one: older brokers wrote one entry for several batches.
        """
        rows = indexes.OFFSET_INDEX.read(self.index, self._base_offset)
        for entry in rows[(rows["offset"] < offset) & (rows["position"] < len(self.data))][-1:]:
            with suppress(CorruptLogError):
                batch = self.first(position := int(entry["position"]))
                if len(batch) and self._base_offset <= batch["base_offset"][0] <= batch["last_offset"][0] <= entry["offset"]:
                    return position
        return 0

    def position_of(self, offset: int) -> int:
        """The position of the first batch whose offsets are at or past ``offset``; the end of the batches if there is none.

        :raises CorruptLogError: a batch has offsets on both sides
        """
        end = self.before(offset)
        for rows in self.tables(end):
            for batch in rows[rows["last_offset"] >= offset][:1]:
                if batch["base_offset"] < offset:
                    offsets = f"{batch['base_offset']} to {batch['last_offset']}"
                    message = f"offset {offset} is within the batch of offsets {offsets}"
                    raise CorruptLogError(message, path=self.path, position=int(batch["position"]), hint=_HINT)
                return int(batch["position"])
            end = int(rows["position"][-1] + rows["size"][-1])
        return end

    def end_offset(self, default: int) -> int:
        """The offset after the last complete batch; ``default`` if there is none."""
        return max((int(rows["last_offset"][-1]) + 1 for rows in self.tables(self.before(_OFFSET_MAX))), default=default)

    def inactive_end_offset(self, end_offset: int = _OFFSET_MAX) -> int:
        """The offset after the last batch of an inactive segment; its base offset if there is none.

        :param end_offset: the batches from the last index entry before it on are read
        :raises CorruptLogError: the last batch is incomplete
        """
        scan = SegmentScan(self.data, self.before(end_offset))
        deque(self._checked(scan), 0)
        if scan.position < len(self.data):
            message = f"its complete batches end at byte {scan.position}, the segment has {len(self.data)} bytes"
            raise CorruptLogError(message, path=self.path, position=scan.position, hint=_HINT)
        return self._base_offset if scan.next_offset is None else scan.next_offset

    def have_holes(self) -> bool:
        """Whether offsets between the batches are missing, as in a segment that was compacted."""
        offset = self._base_offset
        for rows in self.tables():
            if (rows["base_offset"] > np.append(offset, rows["last_offset"][:-1] + 1)).any():
                return True
            offset = int(rows["last_offset"][-1]) + 1
        return False


def read_file(files: ReadableFileSystem, file: LogFile | None, start: int = 0, length: int | None = None) -> bytes:
    """Up to ``length`` bytes of a file of a log from ``start``; none of a missing one."""
    if file is None:
        return b""
    end = file.size if length is None else min(file.size, start + length)
    if not isinstance(file.content, FileRange):
        return file.content()[start:end]
    return files.read_bytes(file.content.path, file.content.start + start, end - start) if end > start else b""


def view_of(files: ReadableFileSystem, path: str, file: LogFile) -> View:
    """A view of a file of a log; ``path`` is for errors."""
    return View(path, partial(read_file, files, file), file.size)


_TAIL_HINT = "restore it, or leave out the tail"


def local_log(files: ReadableFileSystem, path: str) -> StoredLog:
    """The segments of a partition directory; none if it does not exist.

    :raises CorruptLogError: its leader epochs are malformed, or the end of its last segment
    """
    if files.stat(path) is None:
        return StoredLog(())
    by_base, names = _segment_files(files, path), files.listdir(path)
    bases = sorted(base for base, kinds in by_base.items() if LOG in kinds)
    epochs: tuple[EpochEntry, ...] = ()
    if LEADER_EPOCHS in names:
        name = join(path, LEADER_EPOCHS)
        stored = parse_leader_epochs(read_small_text(files, name, _TAIL_HINT), name)
        epochs = _assigned(files, path, {base: by_base[base] for base in bases}, stored)
    topic_id = None
    if PARTITION_METADATA in names:
        name = join(path, PARTITION_METADATA)
        topic_id = parse_partition_metadata(read_small_text(files, name, _TAIL_HINT), name)
    ends = [*bases[1:], *(Batches.of(files, path, base, by_base[base]).end_offset(base) for base in bases[-1:])]
    segments = []
    for base, end in zip(bases, ends, strict=True):
        kinds = {kind: file for kind, file in by_base[base].items() if kind != SNAPSHOT}
        if SNAPSHOT in by_base.get(end, {}):
            kinds[SNAPSHOT] = by_base[end][SNAPSHOT]
        lineage = partial(tuple, epochs) if epochs else None
        own = within(epochs, base, max(end, base + 1))
        segments.append(StoredSegment(join(path, f"{base:020d}{LOG}"), base, end, kinds, own, lineage, _OFFSET_MAX))
    return StoredLog(tuple(segments), topic_id)


def end_of(files: ReadableFileSystem, path: str, base_offset: int, kinds: Mapping[str, LogFile]) -> int:
    """The end offset of an inactive segment, by its batches after the last entry of its offset index.

    :raises CorruptLogError: a batch there is malformed, or the last one is incomplete
    """
    return Batches.of(files, path, base_offset, kinds).inactive_end_offset()


def _assigned(
    files: ReadableFileSystem, path: str, by_base: dict[int, dict[str, LogFile]], epochs: Sequence[EpochEntry]
) -> tuple[EpochEntry, ...]:
    """The leader epochs, with those of the last batches assigned: a broker that was killed has not stored its latest ones.

    :param by_base: the files of the segments, ascending
    """
    ranges: list[EpochRange] = []
    for base, kinds in reversed(by_base.items()):
        batches = Batches.of(files, path, base, kinds)
        ends = [batches.first(0), *batches.tables(batches.before(_OFFSET_MAX))]
        if len(ends[-1]) and all(agree(epochs, epoch_range) for rows in ends for epoch_range in epoch_ranges(rows)):
            break
        ranges[:0] = [epoch_range for rows in batches.tables() for epoch_range in epoch_ranges(rows)]
    return tuple(assign_epochs(epochs, ranges))


def _segment_files(files: ReadableFileSystem, path: str) -> dict[int, dict[str, LogFile]]:
    files_by_base: dict[int, dict[str, LogFile]] = {}
    for name in files.listdir(path):
        file = parse_segment_file(name)
        stat = files.stat(join(path, name)) if file is not None and not file.suffix else None
        if file is not None and stat is not None:
            files_by_base.setdefault(file.base_offset, {})[file.kind] = LogFile.of(join(path, name), stat)
    return files_by_base
