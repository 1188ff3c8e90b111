"""Checks what lies beside the records of a log, of which cleaning changes nothing.

In a copy:

1. its entries in ``replication-offset-checkpoint`` and ``recovery-point-offset-checkpoint`` are those of before. A lower high
   watermark hides records that consumers have seen, a higher one serves records that were not replicated; before a higher
   recovery point a broker repairs nothing after a crash, from a lower one it reads the log again;
2. ``partition.metadata`` has the same topic id: a KRaft broker takes a log without it, or with another one, for a stray;
3. ``leader-epoch-checkpoint`` gives each offset from the log start to the log end the same leader epoch (``leader_epochs``);
4. a producer snapshot is there, with the same producers, wherever before has one at the base of a segment that still exists, or
   past the base of the active segment, such as that of a clean shutdown. Others may be gone, as cleaning removes those of
   segments that it joins. There is none that before does not have, but for one at the log start, as of the empty segment that
   follows when all are deleted.

What before does not have, or has malformed, is not missed. In place there is no before; what is there must agree with the log:
the leader epochs with the batches; a producer snapshot has no batch at or past its offset; after a clean shutdown, high
watermark and recovery point are not past the log end. An erasure is not judged by that.

Mirrors what ``UnifiedLog``, ``LeaderEpochFileCache`` and ``ProducerStateManager`` read when a broker starts (Kafka 4.4.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import NamedTuple

from compaction.certifier.checks.log_pair import LogPair
from compaction.certifier.checks.violations import Findings
from compaction.certifier.kept_files.leader_epochs import copied_epoch_problems, epoch_problems
from compaction.certifier.kept_files.parsed_files import HINT, both, directories, parsed, text_of
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
    """Both sides of a log, and what the walk of before has found: its end, and the leader epochs of its batches."""

    pair: LogPair
    end_offset: int
    epochs: tuple[EpochRange, ...]


def check_logs(logs: Mapping[int, WalkedLog]) -> dict[int, Findings | StorageError]:
    """Check what lies beside the records of each log, some logs at a time."""
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
        for offset, what in problems:
            findings.add(offset, what)
    except StorageError as error:
        return error
    return findings


def _copy_problems(fs: FileSystem, log: WalkedLog, offsets: Callable[[str, str], Offsets | None]) -> Iterator[tuple[int, str]]:
    (old, new), start = directories(log.pair), log.pair.after.log_start_offset
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS):
        before, after = (offsets(parent(path), name) for path in (old, new))
        wrong = None if before is None else _entry_problem(log.pair.topic_partition, before, after)
        if wrong is not None:
            yield start, f"{name} {wrong}"
    epochs = copied_epoch_problems(fs, (old, new), (start, log.end_offset), log.epochs)
    for what in (*_topic_id_problems(fs, old, new), *epochs):
        yield start, what
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
    for what in epoch_problems(fs, path, start, log.epochs):
        yield start, what
    for offset in _snapshots(fs, path):
        found = parsed(partial(_producers, offset), fs, path) or ()
        if any(max(last_offset, txn_offset) >= offset for _, _, _, last_offset, *_, txn_offset in found):
            yield offset, f"{segment_file(offset, SNAPSHOT)} has a batch at or past its offset"


def _read_offsets(log_dir: str, name: str) -> Offsets | None:
    path = join(log_dir, name)
    return parsed(lambda fs, _: parse_offset_checkpoint(text_of(fs, path) or "", path), file_system([log_dir]), log_dir)


def _entry_problem(log: TopicPartition, before: Offsets, after: Offsets | None) -> str | None:
    if after is None:
        return "is malformed"
    expected, found = before.get(log), after.get(log)
    return None if expected == found else f"has {_entry(found)}, it had {_entry(expected)}"


def _entry(offset: int | None) -> str:
    return "no entry" if offset is None else f"offset {offset}"


def _topic_id_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    expected, found = both(_topic_id, fs, old, new)
    if expected is not None and expected != found:
        what = "has no topic id" if found is None else f"has topic id {found}"
        yield f"{PARTITION_METADATA} {what}, expected {expected}: a broker takes the log for a stray"


def _topic_id(fs: FileSystem, log: str) -> str | None:
    path = join(log, PARTITION_METADATA)
    text = text_of(fs, path)
    return None if text is None else parse_partition_metadata(text, path).topic_id


def _snapshot_problems(fs: FileSystem, pair: LogPair) -> Iterator[tuple[int, str]]:
    old, new = directories(pair)
    before, after = _snapshots(fs, old), _snapshots(fs, new)
    bases, active = {each.base_offset for each in pair.after.segments}, pair.before.segments[-1].base_offset
    start = pair.after.log_start_offset
    for offset in sorted(before.keys() | after.keys()):
        if offset <= start:
            continue
        if offset not in before:
            yield offset, f"{segment_file(offset, SNAPSHOT)} is not in the source"
            continue
        expected, found = both(partial(_producers, offset), fs, old, new)
        needed = offset in bases or offset > active
        if expected is not None and (found != expected if offset in after else needed):
            what = "is missing or malformed" if found is None else "has other producers"
            yield offset, f"{segment_file(offset, SNAPSHOT)} {what}"


def _snapshots(fs: FileSystem, log: str) -> dict[int, str]:
    """The producer snapshots of a log by offset."""
    files = ((name, parse_segment_file(name)) for name in fs.listdir(log))
    return {file.base_offset: name for name, file in files if file is not None and (file.kind, file.suffix) == (SNAPSHOT, "")}


def _producers(offset: int, fs: FileSystem, log: str) -> list[tuple[int, ...]] | None:
    path = join(log, segment_file(offset, SNAPSHOT))
    return None if fs.stat(path) is None else sorted(map(tuple, read_snapshot(read_small(fs, path, HINT))))
