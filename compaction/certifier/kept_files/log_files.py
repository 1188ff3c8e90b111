"""Checks the files beside the records of a log, which cleaning does not change.

In a copy:

1. its entries in ``replication-offset-checkpoint`` and ``recovery-point-offset-checkpoint`` are those of before. A lower high
   watermark hides records that consumers have seen, a higher one serves records that were not replicated; before a higher
   recovery point a broker repairs nothing after a crash, from a lower one it reads the log again;
2. ``partition.metadata`` has the same topic id: a KRaft broker takes a log without it, or with another one, for a stray;
3. ``leader-epoch-checkpoint`` gives each offset from the log start to the log end the same leader epoch (``leader_epochs``);
4. each producer snapshot of before at the base of a segment that still exists, or past the base of the active segment (such as
   that of a clean shutdown), exists with the same producers. Others may be missing, because cleaning removes those of joined
   segments. No other snapshot exists, except one at the log start: that of the empty segment after all others are deleted.

A file that before does not have, or has malformed, is not required. In place there is no before; the files must agree with the
log: the leader epochs with the batches; a producer snapshot has no batch at or past its offset; after a clean shutdown, high
watermark and recovery point are not past the log end. These checks do not apply to erasures.

Mirrors ``UnifiedLog``, ``LeaderEpochFileCache`` and ``ProducerStateManager`` at the start of a broker (Kafka 4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import NamedTuple

from compaction.certifier.checks.log_pair import LogPair
from compaction.certifier.checks.violations import Findings
from compaction.certifier.kept_files.leader_epochs import copied_epoch_problems, epoch_problems
from compaction.certifier.kept_files.parsed_files import HINT, directories, parsed, parsed_pair, text_of
from compaction.errors import StorageError
from compaction.formats.checkpoints import EpochRange, parse_offset_checkpoint, parse_partition_metadata
from compaction.formats.producer_snapshot import read_snapshot
from compaction.names import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARKS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SNAPSHOT,
    TopicPartition,
    parse_segment_file,
    segment_file,
)
from compaction.storage.filesystem import FileSystem, join, parent
from compaction.storage.mixed import file_system
from compaction.storage.text_files import read_small

_THREADS = 8
Offsets = Mapping[TopicPartition, int]


class WalkedLog(NamedTuple):
    """Both sides of a log, with the end offset and the batches' leader epochs of before."""

    pair: LogPair
    end_offset: int
    epochs: tuple[EpochRange, ...]


def check_logs(logs: Mapping[int, WalkedLog]) -> dict[int, Findings | StorageError]:
    """Check the files beside the records of each log, in threads."""
    # each checkpoint is read once
    offsets = cache(_read_offsets)
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(logs, pool.map(partial(_check_log, offsets), logs.values()), strict=True))


def _check_log(offsets: Callable[[str, str], Offsets | None], log: WalkedLog) -> Findings | StorageError:
    findings, (old, new) = Findings(), directories(log.pair)
    if old == new and log.pair.rules.erases:
        return findings
    fs = file_system([old, new])
    try:
        problems = _in_place_problems(fs, log, offsets) if old == new else _copy_problems(fs, log, offsets)
        for offset, message in problems:
            findings.add(offset, message)
    except StorageError as error:
        return error
    return findings


def _copy_problems(fs: FileSystem, log: WalkedLog, offsets: Callable[[str, str], Offsets | None]) -> Iterator[tuple[int, str]]:
    (old, new), start = directories(log.pair), log.pair.after.log_start_offset
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS):
        before, after = (offsets(parent(path), name) for path in (old, new))
        problem = None if before is None else _entry_problem(log.pair.topic_partition, before, after)
        if problem is not None:
            yield start, f"{name} {problem}"
    epochs = copied_epoch_problems(fs, (old, new), (start, log.end_offset), log.epochs)
    for message in (*_topic_id_problems(fs, old, new), *epochs):
        yield start, message
    yield from _snapshot_problems(fs, log.pair)


def _in_place_problems(
    fs: FileSystem, log: WalkedLog, offsets: Callable[[str, str], Offsets | None]
) -> Iterator[tuple[int, str]]:
    (path, _), start, end = directories(log.pair), log.pair.after.log_start_offset, log.end_offset
    log_dir = parent(path)
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS) if fs.stat(join(log_dir, CLEAN_SHUTDOWN)) is not None else ():
        offset = (offsets(log_dir, name) or {}).get(log.pair.topic_partition, start)
        if offset > end:
            yield end, f"{name} has offset {offset}, past the log end {end}"
    for message in epoch_problems(fs, path, start, log.epochs):
        yield start, message
    for offset in _snapshots(fs, path):
        producers = parsed(partial(_producers, offset), fs, path) or ()
        if any(max(last_offset, txn_offset) >= offset for _, _, _, last_offset, *_, txn_offset in producers):
            yield offset, f"{segment_file(offset, SNAPSHOT)} has a batch at or past its offset"


def _read_offsets(log_dir: str, name: str) -> Offsets | None:
    path = join(log_dir, name)
    return parsed(lambda fs, _: parse_offset_checkpoint(text_of(fs, path) or "", path), file_system([log_dir]), log_dir)


def _entry_problem(log: TopicPartition, before: Offsets, after: Offsets | None) -> str | None:
    if after is None:
        return "is malformed"
    expected, actual = before.get(log), after.get(log)
    return None if expected == actual else f"has {_entry(actual)}, it had {_entry(expected)}"


def _entry(offset: int | None) -> str:
    return "no entry" if offset is None else f"offset {offset}"


def _topic_id_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    expected, actual = parsed_pair(_topic_id, fs, old, new)
    if expected is not None and expected != actual:
        problem = "has no topic id" if actual is None else f"has topic id {actual}"
        yield f"{PARTITION_METADATA} {problem}, expected {expected}: a broker takes the log for a stray"


def _topic_id(fs: FileSystem, log: str) -> str | None:
    path = join(log, PARTITION_METADATA)
    text = text_of(fs, path)
    return None if text is None else parse_partition_metadata(text, path).topic_id


def _snapshot_problems(fs: FileSystem, pair: LogPair) -> Iterator[tuple[int, str]]:
    old, new = directories(pair)
    before, after = _snapshots(fs, old), _snapshots(fs, new)
    bases, active = {segment.base_offset for segment in pair.after.segments}, pair.before.segments[-1].base_offset
    start = pair.after.log_start_offset
    for offset in sorted(before.keys() | after.keys()):
        if offset <= start:
            continue
        if offset not in before:
            yield offset, f"{segment_file(offset, SNAPSHOT)} is not in the source"
            continue
        expected, actual = parsed_pair(partial(_producers, offset), fs, old, new)
        needed = offset in bases or offset > active
        if expected is not None and (actual != expected if offset in after else needed):
            problem = "is missing or malformed" if actual is None else "has other producers"
            yield offset, f"{segment_file(offset, SNAPSHOT)} {problem}"


def _snapshots(fs: FileSystem, log: str) -> dict[int, str]:
    """The producer snapshots of a log by offset."""
    files = ((name, parse_segment_file(name)) for name in fs.listdir(log))
    return {file.base_offset: name for name, file in files if file is not None and (file.kind, file.suffix) == (SNAPSHOT, "")}


def _producers(offset: int, fs: FileSystem, log: str) -> list[tuple[int, ...]] | None:
    path = join(log, segment_file(offset, SNAPSHOT))
    return None if fs.stat(path) is None else sorted(map(tuple, read_snapshot(read_small(fs, path, HINT))))
