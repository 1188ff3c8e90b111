"""The part of a log in a local log directory: the segments that are not exported yet, its leader epochs and its topic id.

Leader epochs that contradict the last batches are not used: those of the batches are assigned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from compaction.formats.checkpoints import (
    EpochEntry,
    EpochRange,
    agree,
    assign_epochs,
    parse_leader_epochs,
    parse_partition_metadata,
)
from compaction.names import (
    INDEX,
    LEADER_EPOCHS,
    LOG,
    PARTITION_METADATA,
    SNAPSHOT,
    TopicPartition,
    parse_partition_dir,
    parse_segment_file,
)
from compaction.storage.contents import View
from compaction.storage.filesystem import FileRange, ReadableFileSystem, join
from compaction.storage.layouts.batch_positions import (
    batches_from,
    end_of_complete,
    end_offset_of,
    first_batch,
    indexed_position,
    read_file,
    view_of,
)
from compaction.storage.layouts.lineage import within
from compaction.storage.layouts.stored_objects import directories
from compaction.storage.segment_file import epoch_ranges
from compaction.storage.stored_log import LogFile, StoredLog, StoredSegment
from compaction.storage.text_files import read_small_text

_HINT = "restore it, or leave out the tail"
_OFFSET_MAX = 2**63 - 1


def local_logs(files: ReadableFileSystem, path: str) -> Sequence[TopicPartition]:
    """The logs of a log directory, sorted.

    :raises StorageError: it cannot be listed
    """
    logs = (parse_partition_dir(name) for name in directories(files, path))
    return sorted(log for log in logs if log is not None)


def local_log(files: ReadableFileSystem, path: str) -> StoredLog | None:
    """The segments of a partition directory; ``None`` if it does not exist.

    :raises CorruptLogError: its leader epochs are malformed, or the end of its last segment
    """
    if files.stat(path) is None:
        return None
    by_base = _segment_files(files, path)
    names = set(files.listdir(path))
    bases = sorted(base for base, kinds in by_base.items() if LOG in kinds)
    epochs: tuple[EpochEntry, ...] = ()
    if LEADER_EPOCHS in names:
        name = join(path, LEADER_EPOCHS)
        stored = parse_leader_epochs(read_small_text(files, name, _HINT), name)
        epochs = _assigned(files, path, {base: by_base[base] for base in bases}, stored)
    topic_id = None
    if PARTITION_METADATA in names:
        name = join(path, PARTITION_METADATA)
        topic_id = parse_partition_metadata(read_small_text(files, name, _HINT), name).topic_id
    ends = [*bases[1:], *(_active_end_of(files, path, base, by_base[base]) for base in bases[-1:])]
    segments = []
    for base, end in zip(bases, ends, strict=True):
        kinds = {kind: file for kind, file in by_base[base].items() if kind != SNAPSHOT}
        if SNAPSHOT in by_base.get(end, {}):
            kinds[SNAPSHOT] = by_base[end][SNAPSHOT]
        lineage = partial(_as_it_is, epochs) if epochs else None
        own = within(epochs, base, max(end, base + 1))
        segments.append(StoredSegment(join(path, f"{base:020d}{LOG}"), base, end, kinds, own, lineage, _OFFSET_MAX))
    return StoredLog(tuple(segments), topic_id)


def end_of(files: ReadableFileSystem, path: str, base_offset: int, kinds: dict[str, LogFile]) -> int:
    """The end offset of an inactive segment, by its batches after the last entry of its offset index.

    :raises CorruptLogError: a batch there is malformed, or the last one is incomplete
    """
    data = view_of(files, path, kinds[LOG])
    return end_of_complete(data, path, _last_position(files, base_offset, kinds, data), base_offset)


def _active_end_of(files: ReadableFileSystem, path: str, base_offset: int, kinds: dict[str, LogFile]) -> int:
    data = view_of(files, path, kinds[LOG])
    return end_offset_of(data, path, _last_position(files, base_offset, kinds, data), base_offset)


def _last_position(files: ReadableFileSystem, base_offset: int, kinds: Mapping[str, LogFile], data: View) -> int:
    index = kinds.get(INDEX)
    entries = b"" if index is None else read_file(files, index)
    return indexed_position(entries, base_offset, _OFFSET_MAX, data)


def _assigned(
    files: ReadableFileSystem, path: str, by_base: dict[int, dict[str, LogFile]], epochs: Sequence[EpochEntry]
) -> tuple[EpochEntry, ...]:
    """The leader epochs, with those of the last batches assigned: a broker that was killed has not stored its latest ones.

    :param by_base: the files of the segments, ascending
    """
    ranges: list[EpochRange] = []
    for base, kinds in reversed(by_base.items()):
        data = view_of(files, path, kinds[LOG])
        ends = [first_batch(data, path, 0), *batches_from(data, path, _last_position(files, base, kinds, data))]
        if len(ends[-1]) and all(agree(epochs, epoch_range) for rows in ends for epoch_range in epoch_ranges(rows)):
            break
        ranges[:0] = [epoch_range for rows in batches_from(data, path, 0) for epoch_range in epoch_ranges(rows)]
    return tuple(assign_epochs(epochs, ranges))


def _segment_files(files: ReadableFileSystem, path: str) -> dict[int, dict[str, LogFile]]:
    """The files of segments, by base offset and kind."""
    files_by_base: dict[int, dict[str, LogFile]] = {}
    for name in files.listdir(path):
        file = parse_segment_file(name)
        stat = files.stat(join(path, name)) if file is not None and not file.suffix else None
        if file is not None and stat is not None:
            content = FileRange(join(path, name), 0, stat.size)
            files_by_base.setdefault(file.base_offset, {})[file.kind] = LogFile(stat.size, stat.mtime_ns, content)
    return files_by_base


def _as_it_is(epochs: Sequence[EpochEntry]) -> Sequence[EpochEntry]:
    return epochs
