"""Repairs what lies beside the segments that were not flushed when a broker was killed: indexes and leader epochs.

Mirrors ``LogLoader.recoverLog``, ``LogSegment.recover`` and ``LeaderEpochFileCache.assign`` (Kafka 4.4.0), of the segments from
the one that contains the recovery point on:

1. offset and time indexes become those of the batches;
2. the leader epochs of the batches are assigned (``formats.assigned_epochs``).

Files with the bytes that recovery writes, and then zeros only, are not written. Checksums are verified by the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compaction.errors import CorruptLogError
from compaction.formats.assigned_epochs import assign_epochs
from compaction.formats.checkpoints import format_leader_epochs, parse_leader_epochs
from compaction.names import INDEX, LEADER_EPOCHS, LOG, TIMEINDEX, segment_file
from compaction.recovery.header_scan import HeaderScan, Recovered
from compaction.recovery.rebuild import write_like_log
from compaction.storage.durable import replace_file
from compaction.storage.filesystem import FileSystem, join
from compaction.storage.ranges import view
from compaction.storage.text_files import read_small_text


def repair_indexes(
    fs: FileSystem, log_path: str, base_offset: int, found: Recovered, again: Callable[[], Recovered | None]
) -> bool:
    """Writes the indexes of a segment if they are not those of its batches; whether any was written.

    :param again: scans the segment once more: the scan of headers verifies no checksum
    :raises CorruptLogError: both scans differ
    """
    data = {INDEX: found.offset_index, TIMEINDEX: found.time_index}
    wrong = [kind for kind in data if not _holds(fs, join(log_path, segment_file(base_offset, kind)), data[kind])]
    if wrong and again() != found:
        what = "two reads of its batch headers differ"
        raise CorruptLogError(what, path=join(log_path, segment_file(base_offset, LOG)), hint="check the disk, and run again")
    for kind in wrong:
        write_like_log(fs, log_path, base_offset, kind, data[kind])
    return bool(wrong)


def _holds(fs: FileSystem, path: str, data: bytes) -> bool:
    """Whether a file has these bytes, and then zeros only."""
    if fs.stat(path) is None:
        return False
    content = view(fs, path)
    return content[: len(data)].tobytes() == data and not content[len(data) :].any()


def repair_epochs(fs: FileSystem, log_path: str, bases: Sequence[int], scans: Mapping[int, HeaderScan]) -> bool:
    """Writes the leader epochs of a log if its batches contradict them; whether it did. A malformed file is not touched: a
    broker does not start with it.

    :param bases: base offsets of the segments, ascending
    :param scans: of the unflushed segments, by their indexes in ``bases``; others are ignored
    """
    ranges = [each for index in sorted(scans) if (found := scans[index].recovered) is not None for each in found.epochs]
    path = join(log_path, LEADER_EPOCHS)
    try:
        text = "" if fs.stat(path) is None else read_small_text(fs, path, "")
        entries = parse_leader_epochs(text, path) if text else []
    except CorruptLogError:
        return False
    assigned = assign_epochs(entries, ranges)
    if assigned == entries:
        return False
    replace_file(fs, path, format_leader_epochs(assigned).encode(), like=join(log_path, segment_file(bases[-1], LOG)))
    return True
