"""Checks what lies beside the records in a copy, and what a broker that starts on it reads first. Cleaning changes none of it.

Of each log:

1. its entries in ``replication-offset-checkpoint`` and ``recovery-point-offset-checkpoint`` are those of before. A lower high
   watermark hides records that consumers have seen, a higher one serves records that were not replicated; before a higher
   recovery point a broker repairs nothing after a crash, from a lower one it reads the log again;
2. ``partition.metadata`` has the same topic id: a KRaft broker takes a log without it, or with another one, for a stray;
3. ``leader-epoch-checkpoint`` gives each offset from the log start to the log end the same leader epoch;
4. a producer snapshot is there, with the same producers, wherever before has one at the base of a segment that still exists, or
   past the base of the active segment, such as that of a clean shutdown. Others may be gone, as cleaning removes those of
   segments that it joins. There is none that before does not have, but for one at the log start, as of the empty segment that
   follows when all are deleted.

Of each log directory: ``meta.properties``, ``.kafka_cleanshutdown`` and ``__cluster_metadata-0`` are those of before. What
before does not have, or has malformed, is not missed.

Mirrors what ``LogManager``, ``UnifiedLog``, ``LeaderEpochFileCache`` and ``ProducerStateManager`` read when a broker starts
(Kafka 4.4.0).

Tested by ``tests/certifier/test_kept_files.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Any, TypeVar

from compaction.certifier.checks.log_pair import LONG_MAX, LogPair
from compaction.certifier.checks.violations import Findings
from compaction.errors import CorruptLogError, StorageError
from compaction.formats.checkpoints import EpochEntry, parse_leader_epochs, parse_offset_checkpoint, parse_partition_metadata
from compaction.formats.primitives.malformed import FormatError
from compaction.formats.producer_snapshot import read_snapshot
from compaction.formats.properties import as_dict, parse_properties
from compaction.fs.filesystem import FileSystem, join, parent
from compaction.fs.text_files import read_small, read_small_text
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
from compaction.stores.mixed import file_system

T = TypeVar("T")
_HINT = "restore it"
_METADATA_LOG = f"{CLUSTER_METADATA_TOPIC}-0"
_STEP_BYTES = 8 << 20
_THREADS = 8
Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class DirectoryCertificate:
    """What is wrong with the files of a broker in a log directory of ``after``."""

    log_dir: str
    violations: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Its object in the JSON document."""
        return {**asdict(self), "violations": list(self.violations)}

    def lines(self) -> list[str]:
        """The violations as lines of text."""
        return [f"{self.log_dir}: {what}" for what in self.violations]


def check_logs(logs: Mapping[int, tuple[LogPair, int]]) -> dict[int, Findings | StorageError]:
    """Check what lies beside the records of each log that was copied, some logs at a time.

    :param logs: both sides of a log, and its end
    """
    # each checkpoint is read once
    offsets = cache(_read_offsets)
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(logs, pool.map(lambda given: _check_log(offsets, *given), logs.values()), strict=True))


def _check_log(offsets: Callable[[str, str], Offsets | None], pair: LogPair, end_offset: int) -> Findings | StorageError:
    findings, (old, new), start = Findings(), _directories(pair), pair.after.log_start_offset
    if old == new:
        return findings
    fs = file_system([old, new])
    try:
        for name in (HIGH_WATERMARKS, RECOVERY_POINTS):
            before, after = (offsets(parent(path), name) for path in (old, new))
            wrong = None if before is None else _entry_problem(pair.topic_partition, before, after)
            if wrong is not None:
                findings.add(start, f"{name} {wrong}")
        for what in (*_topic_id_problems(fs, old, new), *_epoch_problems(fs, old, new, start, end_offset)):
            findings.add(start, what)
        for offset, what in _snapshot_problems(fs, pair):
            findings.add(offset, what)
    except StorageError as error:
        return error
    return findings


def check_directories(pairs: Iterable[LogPair]) -> tuple[DirectoryCertificate, ...]:
    """Check the log directories that were copied; those without a violation are left out."""
    found = []
    for old, new in dict.fromkeys((parent(old), parent(new)) for old, new in map(_directories, pairs) if old != new):
        fs = file_system([old, new])
        problems = (*_properties_problems(fs, old, new), *_shutdown_problems(fs, old, new), *_metadata_problems(fs, old, new))
        if problems:
            found.append(DirectoryCertificate(new, problems))
    return tuple(found)


def _directories(pair: LogPair) -> tuple[str, str]:
    return pair.before.segments[0].directory, pair.after.segments[0].directory


def _parsed(read: Callable[[FileSystem, str], T | None], fs: FileSystem, directory: str) -> T | None:
    """What a file in a directory has; ``None`` if it is missing or malformed."""
    try:
        return read(fs, directory)
    except (CorruptLogError, FormatError):
        return None


def _both(read: Callable[[FileSystem, str], T | None], fs: FileSystem, old: str, new: str) -> tuple[T | None, T | None]:
    return _parsed(read, fs, old), _parsed(read, fs, new)


def _text(fs: FileSystem, path: str, encoding: str = "utf-8") -> str | None:
    return None if fs.stat(path) is None else read_small_text(fs, path, _HINT, encoding)


def _read_offsets(log_dir: str, name: str) -> Offsets | None:
    path = join(log_dir, name)
    return _parsed(lambda fs, _: parse_offset_checkpoint(_text(fs, path) or "", path), file_system([log_dir]), log_dir)


def _entry_problem(log: TopicPartition, before: Offsets, after: Offsets | None) -> str | None:
    if after is None:
        return "is malformed"
    expected, found = before.get(log), after.get(log)
    return None if expected == found else f"has {_entry(found)}, it had {_entry(expected)}"


def _entry(offset: int | None) -> str:
    return "no entry" if offset is None else f"offset {offset}"


def _topic_id_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    expected, found = _both(_topic_id, fs, old, new)
    if expected is not None and expected != found:
        what = "has no topic id" if found is None else f"has topic id {found}"
        yield f"{PARTITION_METADATA} {what}, expected {expected}: a broker takes the log for a stray"


def _topic_id(fs: FileSystem, log: str) -> str | None:
    path = join(log, PARTITION_METADATA)
    text = _text(fs, path)
    return None if text is None else parse_partition_metadata(text, path).topic_id


def _epoch_problems(fs: FileSystem, old: str, new: str, start: int, end: int) -> Iterator[str]:
    """The leader epoch of each offset is the same."""
    before, after = _both(_epochs, fs, old, new)
    expected = _spans(before or [], start, end)
    if before is not None and (after is None or _spans(after, start, end) != expected):
        shown = ", ".join(f"{epoch} from offset {first}" for epoch, first in expected[:3]) or "none"
        yield f"{LEADER_EPOCHS} is missing, malformed or has other leader epochs; expected: {shown}"


def _epochs(fs: FileSystem, log: str) -> list[EpochEntry] | None:
    path = join(log, LEADER_EPOCHS)
    text = _text(fs, path)
    return None if text is None else parse_leader_epochs(text, path)


def _spans(epochs: Sequence[EpochEntry], start: int, end: int) -> list[tuple[int, int]]:
    """The epochs of the offsets from ``start`` to ``end`` (exclusive), each with its first offset there."""
    ends = [*(each.start_offset for each in epochs[1:]), LONG_MAX]
    spans = ((each.epoch, max(each.start_offset, start), min(after, end)) for each, after in zip(epochs, ends, strict=False))
    return [(epoch, first) for epoch, first, after in spans if first < after]


def _snapshot_problems(fs: FileSystem, pair: LogPair) -> Iterator[tuple[int, str]]:
    old, new = _directories(pair)
    before, after = _snapshots(fs, old), _snapshots(fs, new)
    bases, active = {each.base_offset for each in pair.after.segments}, pair.before.segments[-1].base_offset
    start = pair.after.log_start_offset
    for offset in sorted(before.keys() | after.keys()):
        if offset <= start:
            continue
        if offset not in before:
            yield offset, f"{segment_file(offset, SNAPSHOT)} is not in the source"
            continue
        expected, found = _both(partial(_producers, offset), fs, old, new)
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
    return None if fs.stat(path) is None else sorted(map(tuple, read_snapshot(read_small(fs, path, _HINT))))


def _properties_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    expected, found = _both(_properties, fs, old, new)
    if expected is not None and found is None:
        yield f"{META_PROPERTIES} is missing or malformed"
    elif fs.stat(join(old, META_PROPERTIES)) is None and fs.stat(join(new, META_PROPERTIES)) is not None:
        yield f"{META_PROPERTIES} is not in the source"
    elif expected is not None and found is not None and expected != found:
        name = min(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        yield f"{META_PROPERTIES} has {name}={found.get(name)}, expected {expected.get(name)}"


def _properties(fs: FileSystem, log_dir: str) -> dict[str, str] | None:
    path = join(log_dir, META_PROPERTIES)
    text = _text(fs, path, "latin-1")
    return None if text is None else as_dict(parse_properties(text, path))


def _shutdown_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    expected, found = _both(_shutdown, fs, old, new)
    if found is None and expected is not None:
        yield f"{CLEAN_SHUTDOWN} is missing: a broker recovers every log"
    elif expected is None and found is not None:
        yield f"{CLEAN_SHUTDOWN} is not in the source: a broker recovers no log"
    elif expected != found:
        yield f"{CLEAN_SHUTDOWN} has other contents"


def _shutdown(fs: FileSystem, log_dir: str) -> bytes | None:
    path = join(log_dir, CLEAN_SHUTDOWN)
    return None if fs.stat(path) is None else read_small(fs, path, _HINT)


def _metadata_problems(fs: FileSystem, old: str, new: str) -> Iterator[str]:
    """The metadata log has the same files with the same bytes."""
    expected, found = (_files(fs, join(path, _METADATA_LOG)) for path in (old, new))
    if expected is None:
        return
    if found is None:
        yield f"{_METADATA_LOG} is missing: a broker takes every log for a stray"
        return
    for name in sorted(expected.keys() | found.keys()):
        paths = [join(log_dir, _METADATA_LOG, name) for log_dir in (old, new)]
        if expected.get(name) != found.get(name) or not _same(fs, expected[name], *paths):
            yield f"{_METADATA_LOG}/{name} is not what it was"


def _files(fs: FileSystem, directory: str) -> dict[str, int] | None:
    """The sizes of a directory's files by name; ``None`` if it is missing."""
    stat = fs.stat(directory)
    if stat is None or not stat.is_dir:
        return None
    stats = ((name, fs.stat(join(directory, name))) for name in fs.listdir(directory))
    return {name: found.size for name, found in stats if found is not None and found.is_file}


def _same(fs: FileSystem, size: int, *paths: str) -> bool:
    steps = range(0, size, _STEP_BYTES)
    return all(len({fs.read_bytes(path, at, min(_STEP_BYTES, size - at)) for path in paths}) == 1 for at in steps)
