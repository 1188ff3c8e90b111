"""Checks the files beside the records of a log and in its log directory, which cleaning does not change.

In a copy of a log:

1. its entries in ``replication-offset-checkpoint`` and ``recovery-point-offset-checkpoint`` are those of before. A lower high
   watermark hides records that consumers have seen, a higher one serves records that were not replicated; before a higher
   recovery point a broker repairs nothing after a crash, from a lower one it reads the log again;
2. ``partition.metadata`` has the same topic id: a KRaft broker takes a log without it, or with another one, for a stray;
3. ``leader-epoch-checkpoint`` gives each offset from the log start to the log end the same leader epoch. After a kill it
   may lack unflushed entries; a run assigns the epochs of the batches, as a broker does, which then apply. Epochs without
   batches and offsets before the first entry cannot be checked;
4. each producer snapshot of before at the base of a segment that still exists, or past the base of the active segment (such as
   that of a clean shutdown), exists with the same producers. Others may be missing, because cleaning removes those of joined
   segments. No other snapshot exists, except one at the log start: that of the empty segment after all others are deleted.

In a copied log directory, ``meta.properties``, ``.kafka_cleanshutdown`` and ``__cluster_metadata-0`` equal those of before.

A file that before does not have, or has malformed, is not required. In place there is no before; the files must agree with the
log: the leader epochs with the batches; a producer snapshot has no batch at or past its offset; after a clean shutdown, high
watermark and recovery point are not past the log end. These checks do not apply to erasures.

Mirrors ``LogManager``, ``UnifiedLog``, ``LeaderEpochFileCache`` and ``ProducerStateManager`` at the start of a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from compaction.certifier.checks.log_pair import LONG_MAX, LogPair
from compaction.certifier.checks.violations import Findings
from compaction.errors import CorruptLogError, StorageError
from compaction.formats.checkpoints import (
    EpochEntry,
    EpochRange,
    parse_leader_epochs,
    parse_offset_checkpoint,
    parse_partition_metadata,
)
from compaction.formats.java_text import as_dict, parse_properties
from compaction.formats.primitives import FormatError
from compaction.formats.producer_snapshot import read_snapshot
from compaction.names import (
    CLEAN_SHUTDOWN,
    CLUSTER_METADATA_TOPIC,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    SNAPSHOT,
    TopicPartition,
    parse_segment_file,
    segment_file,
)
from compaction.storage.filesystem import FileSystem, join, parent
from compaction.storage.mixed import file_system
from compaction.storage.text_files import read_small, read_small_text

T = TypeVar("T")
_HINT = "restore it"
_METADATA_LOG = f"{CLUSTER_METADATA_TOPIC}-0"
_STEP_BYTES = 8 << 20
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
    return None if fs.stat(path) is None else sorted(map(tuple, read_snapshot(read_small(fs, path, _HINT))))


def copied_epoch_problems(
    fs: FileSystem, paths: tuple[str, str], bounds: tuple[int, int], batches: Sequence[EpochRange]
) -> Iterator[str]:
    """Check that each offset has the same leader epoch on both sides, or that of its batch if before contradicts the batches.

    :param paths: the partition directories of before and after
    :param bounds: log start, and log end (exclusive)
    :param batches: of before
    """
    before, after = parsed_pair(_epochs, fs, *paths)
    expected = _spans(before or [], *bounds)
    if before is None or (after is not None and _spans(after, *bounds) == expected):
        return
    start = bounds[0]
    wrong = _contradiction(before, start, batches, missing=True) is not None
    if after is None or not wrong or _contradiction(after, start, batches) is not None:
        shown = ", ".join(f"{epoch} from offset {first}" for epoch, first in expected[:3]) or "none"
        yield f"{LEADER_EPOCHS} is missing, malformed or has other leader epochs; expected: {shown}"


def epoch_problems(fs: FileSystem, path: str, start: int, batches: Iterable[EpochRange]) -> Iterator[str]:
    """Check that the leader epochs of a log are those of its batches that end at or past ``start``."""
    wrong = _contradiction(parsed(_epochs, fs, path) or [], start, batches)
    if wrong is not None:
        yield f"{LEADER_EPOCHS} contradicts the batches: leader epoch {wrong.epoch} is that of offset {wrong.first_offset}"


def _contradiction(
    entries: Sequence[EpochEntry], start: int, batches: Iterable[EpochRange], *, missing: bool = False
) -> EpochRange | None:
    """The first batches at or past ``start`` with another leader epoch in ``entries``, or, if ``missing``, with none. Epochs
    never decrease in a log that a broker has written; batches with a lower epoch than an earlier one are not compared."""
    highest = -1
    for epoch, first, last in batches:
        if epoch < highest:
            continue
        highest, first = epoch, max(first, start)
        entry_spans = _spans(entries, first, last + 1)
        lacks = missing and first <= last and entry_spans[:1] != [(epoch, first)]
        if lacks or any(other != epoch for other, _ in entry_spans):
            return EpochRange(epoch, first, last)
    return None


def _epochs(fs: FileSystem, log: str) -> list[EpochEntry] | None:
    path = join(log, LEADER_EPOCHS)
    text = text_of(fs, path)
    return None if text is None else parse_leader_epochs(text, path)


def _spans(epochs: Sequence[EpochEntry], start: int, end: int) -> list[tuple[int, int]]:
    """The epochs of the offsets from ``start`` to ``end`` (exclusive), each with its first offset there."""
    ends = [*(entry.start_offset for entry in epochs[1:]), LONG_MAX]
    spans = ((entry.epoch, max(entry.start_offset, start), min(after, end)) for entry, after in zip(epochs, ends, strict=False))
    return [(epoch, first) for epoch, first, after in spans if first < after]


@dataclass(frozen=True)
class DirectoryCertificate:
    """The violations in the broker's files of a log directory of ``after``."""

    log_dir: str
    violations: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Its object in the JSON document."""
        return {**asdict(self), "violations": list(self.violations)}

    def lines(self) -> list[str]:
        """The violations as lines of text."""
        return [f"{self.log_dir}: {violation}" for violation in self.violations]


def check_directories(pairs: Iterable[LogPair]) -> tuple[DirectoryCertificate, ...]:
    """Check the copied log directories; returns those with violations."""
    certificates = []
    for old, new in dict.fromkeys((parent(old), parent(new)) for old, new in map(directories, pairs) if old != new):
        fs = file_system([old, new])
        problems = (*_properties_problems(fs, old, new), *_shutdown_problems(fs, old, new), *_metadata_problems(fs, old, new))
        if problems:
            certificates.append(DirectoryCertificate(new, problems))
    return tuple(certificates)


def _properties_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    expected, actual = parsed_pair(_properties, fs, old, new)
    if expected is not None and actual is None:
        yield f"{META_PROPERTIES} is missing or malformed"
    elif fs.stat(join(old, META_PROPERTIES)) is None and fs.stat(join(new, META_PROPERTIES)) is not None:
        yield f"{META_PROPERTIES} is not in the source"
    elif expected is not None and actual is not None and expected != actual:
        name = min(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
        yield f"{META_PROPERTIES} has {name}={actual.get(name)}, expected {expected.get(name)}"


def _properties(fs: FileSystem, log_dir: str) -> dict[str, str] | None:
    path = join(log_dir, META_PROPERTIES)
    text = text_of(fs, path, "latin-1")
    return None if text is None else as_dict(parse_properties(text, path))


def _shutdown_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    expected, actual = parsed_pair(_shutdown, fs, old, new)
    if actual is None and expected is not None:
        yield f"{CLEAN_SHUTDOWN} is missing: a broker recovers every log"
    elif expected is None and actual is not None:
        yield f"{CLEAN_SHUTDOWN} is not in the source: a broker recovers no log"
    elif expected != actual:
        yield f"{CLEAN_SHUTDOWN} has other contents"


def _shutdown(fs: FileSystem, log_dir: str) -> bytes | None:
    path = join(log_dir, CLEAN_SHUTDOWN)
    return None if fs.stat(path) is None else read_small(fs, path, _HINT)


def _metadata_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    """The metadata log has the same files with the same bytes."""
    expected, actual = (_files(fs, join(path, _METADATA_LOG)) for path in (old, new))
    if expected is None:
        return
    if actual is None:
        yield f"{_METADATA_LOG} is missing: a broker takes every log for a stray"
        return
    for name in sorted(expected.keys() | actual.keys()):
        paths = [join(log_dir, _METADATA_LOG, name) for log_dir in (old, new)]
        if expected.get(name) != actual.get(name) or not _same(fs, expected[name], *paths):
            yield f"{_METADATA_LOG}/{name} differs from the source"


def _files(fs: FileSystem, directory: str) -> dict[str, int] | None:
    """The sizes of a directory's files by name; ``None`` if it is missing."""
    stat = fs.stat(directory)
    if stat is None or not stat.is_dir:
        return None
    stats = ((name, fs.stat(join(directory, name))) for name in fs.listdir(directory))
    return {name: status.size for name, status in stats if status is not None and status.is_file}


def _same(fs: FileSystem, size: int, *paths: str) -> bool:
    steps = range(0, size, _STEP_BYTES)
    return all(
        len({fs.read_bytes(path, position, min(_STEP_BYTES, size - position)) for path in paths}) == 1 for position in steps
    )


def directories(pair: LogPair) -> tuple[str, str]:
    """The partition directories of before and after; the same one for a log that was cleaned in place."""
    return pair.before.segments[0].directory, pair.after.segments[0].directory


def parsed(read: Callable[[FileSystem, str], T | None], fs: FileSystem, directory: str) -> T | None:
    """The content of a file in a directory; ``None`` if it is missing or malformed."""
    try:
        return read(fs, directory)
    except (CorruptLogError, FormatError):
        return None


def parsed_pair(read: Callable[[FileSystem, str], T | None], fs: FileSystem, old: str, new: str) -> tuple[T | None, T | None]:
    """``parsed`` of two directories."""
    return parsed(read, fs, old), parsed(read, fs, new)


def text_of(fs: FileSystem, path: str, encoding: str = "utf-8") -> str | None:
    """The text of a file; ``None`` if it is missing."""
    return None if fs.stat(path) is None else read_small_text(fs, path, _HINT, encoding)
