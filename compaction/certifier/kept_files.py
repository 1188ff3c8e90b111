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
from functools import cache, partial
from typing import NamedTuple, TypeVar

from compaction.certifier.certificate import DirectoryCertificate
from compaction.certifier.find_pairs import LONG_MAX, LogPair, snapshot_offsets
from compaction.certifier.reader import same_bytes
from compaction.certifier.segments import WalkedLog, entry_text
from compaction.errors import CorruptLogError, StorageError
from compaction.files.filesystem import FileSystem, join, parent
from compaction.files.mixed import file_system
from compaction.files.text_files import read_small, read_small_text
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
    segment_file,
)

T = TypeVar("T")
_HINT = "restore it"
_METADATA_LOG = f"{CLUSTER_METADATA_TOPIC}-0"
_THREADS = 8
#: of a checkpoint in a log directory, by the name of the checkpoint; ``None`` if it is malformed
Offsets = Callable[[str, str], "Mapping[TopicPartition, int] | None"]


class _Sides(NamedTuple):
    """The directories of before and after, of a log or all of its log directory; the same one if it was cleaned in place."""

    fs: FileSystem
    old: str
    new: str

    @classmethod
    def of(cls, pair: LogPair) -> _Sides:
        old, new = pair.before.segments[0].directory, pair.after.segments[0].directory
        return cls(file_system([old, new]), old, new)

    def read(self, name: str, parse: Callable[[FileSystem, str], T]) -> tuple[T | None, T | None]:
        """The content of a file on both sides; ``None`` if it is missing or malformed."""
        return _content(self.fs, join(self.old, name), parse), _content(self.fs, join(self.new, name), parse)


def check_logs(logs: Iterable[WalkedLog]) -> None:
    """Check the files beside the records of each log, in threads."""
    # each checkpoint is read once
    offsets = cache(_offsets)
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(partial(_check_log, offsets), logs))


def _check_log(offsets: Offsets, log: WalkedLog) -> None:
    sides = _Sides.of(log.pair)
    in_place = sides.old == sides.new
    if in_place and log.pair.rules.erases:
        return
    try:
        for offset, message in _in_place_problems(sides, log, offsets) if in_place else _copy_problems(sides, log, offsets):
            log.findings.add(offset, message)
    except StorageError as error:
        log.error = str(error)


def _copy_problems(sides: _Sides, log: WalkedLog, offsets: Offsets) -> Iterator[tuple[int, str]]:
    name, start = log.pair.topic_partition, log.pair.after.log_start_offset
    for checkpoint in (HIGH_WATERMARKS, RECOVERY_POINTS):
        before, after = (offsets(parent(path), checkpoint) for path in (sides.old, sides.new))
        if before is not None and after is None:
            yield start, f"{checkpoint} is malformed"
        elif before is not None and after is not None and before.get(name) != after.get(name):
            yield start, f"{checkpoint} has {entry_text(after.get(name))}, it had {entry_text(before.get(name))}"
    expected, actual = sides.read(PARTITION_METADATA, _text(parse_partition_metadata))
    if expected is not None and expected != actual:
        found = "has no topic id" if actual is None else f"has topic id {actual}"
        yield start, f"{PARTITION_METADATA} {found}, expected {expected}: a broker takes the log for a stray"
    if problem := _epoch_problem(sides, log):
        yield start, problem
    yield from _snapshot_problems(sides, log.pair)


def _in_place_problems(sides: _Sides, log: WalkedLog, offsets: Offsets) -> Iterator[tuple[int, str]]:
    fs, path, start, end = sides.fs, sides.new, log.pair.after.log_start_offset, log.end_offset
    log_dir = parent(path)
    for name in (HIGH_WATERMARKS, RECOVERY_POINTS) if fs.stat(join(log_dir, CLEAN_SHUTDOWN)) is not None else ():
        offset = (offsets(log_dir, name) or {}).get(log.pair.topic_partition, start)
        if offset > end:
            yield end, f"{name} has offset {offset}, past the log end {end}"
    wrong = _contradiction(_content(fs, join(path, LEADER_EPOCHS), _epochs) or [], start, log.epochs)
    if wrong is not None:
        problem = f"leader epoch {wrong.epoch} is that of offset {wrong.first_offset}"
        yield start, f"{LEADER_EPOCHS} contradicts the batches: {problem}"
    for offset in snapshot_offsets(fs, path):
        producers = _content(fs, join(path, segment_file(offset, SNAPSHOT)), _producers) or ()
        if any(max(last_offset, txn_offset) >= offset for _, _, _, last_offset, *_, txn_offset in producers):
            yield offset, f"{segment_file(offset, SNAPSHOT)} has a batch at or past its offset"


def _snapshot_problems(sides: _Sides, pair: LogPair) -> Iterator[tuple[int, str]]:
    before, after = snapshot_offsets(sides.fs, sides.old), snapshot_offsets(sides.fs, sides.new)
    bases, active = {segment.base_offset for segment in pair.after.segments}, pair.before.segments[-1].base_offset
    for offset in sorted(offset for offset in before | after if offset > pair.after.log_start_offset):
        name = segment_file(offset, SNAPSHOT)
        if offset not in before:
            yield offset, f"{name} is not in the source"
            continue
        expected, actual = sides.read(name, _producers)
        needed = offset in bases or offset > active
        if expected is not None and (actual != expected if offset in after else needed):
            yield offset, f"{name} {'is missing or malformed' if actual is None else 'has other producers'}"


def _epoch_problem(sides: _Sides, log: WalkedLog) -> str | None:
    """Check that each offset has the same leader epoch on both sides, or that of its batch if before is wrong."""
    before, after = sides.read(LEADER_EPOCHS, _epochs)
    start, end = log.pair.after.log_start_offset, log.end_offset
    expected = _spans(before or [], start, end)
    if before is None or (after is not None and _spans(after, start, end) == expected):
        return None
    wrong = _contradiction(before, start, log.epochs, missing=True) is not None
    if after is not None and wrong and _contradiction(after, start, log.epochs) is None:
        return None
    shown = ", ".join(f"{epoch} from offset {first}" for epoch, first in expected[:3]) or "none"
    return f"{LEADER_EPOCHS} is missing, malformed or has other leader epochs; expected: {shown}"


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


def _spans(epochs: Sequence[EpochEntry], start: int, end: int) -> list[tuple[int, int]]:
    """The epochs of the offsets from ``start`` to ``end`` (exclusive), each with its first offset there."""
    ends = [*(entry.start_offset for entry in epochs[1:]), LONG_MAX]
    spans = ((entry.epoch, max(entry.start_offset, start), min(after, end)) for entry, after in zip(epochs, ends, strict=False))
    return [(epoch, first) for epoch, first, after in spans if first < after]


def check_directories(pairs: Iterable[LogPair]) -> tuple[DirectoryCertificate, ...]:
    """Check the copied log directories; returns those with violations."""
    certificates = []
    logs = map(_Sides.of, pairs)
    for old, new in dict.fromkeys((parent(sides.old), parent(sides.new)) for sides in logs if sides.old != sides.new):
        sides = _Sides(file_system([old, new]), old, new)
        if problems := (*_properties_problems(sides), *_shutdown_problems(sides), *_metadata_problems(sides)):
            certificates.append(DirectoryCertificate(new, problems))
    return tuple(certificates)


def _properties_problems(sides: _Sides) -> Iterator[str]:
    files = sides.read(META_PROPERTIES, _text(parse_properties, "latin-1"))
    expected, actual = (None if entries is None else as_dict(entries) for entries in files)
    stats = [sides.fs.stat(join(log_dir, META_PROPERTIES)) for log_dir in (sides.old, sides.new)]
    if expected is not None and actual is None:
        yield f"{META_PROPERTIES} is missing or malformed"
    elif stats[0] is None and stats[1] is not None:
        yield f"{META_PROPERTIES} is not in the source"
    elif expected is not None and actual is not None and expected != actual:
        name = min(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
        yield f"{META_PROPERTIES} has {name}={actual.get(name)}, expected {expected.get(name)}"


def _shutdown_problems(sides: _Sides) -> Iterator[str]:
    expected, actual = sides.read(CLEAN_SHUTDOWN, _raw)
    if actual is None and expected is not None:
        yield f"{CLEAN_SHUTDOWN} is missing: a broker recovers every log"
    elif expected is None and actual is not None:
        yield f"{CLEAN_SHUTDOWN} is not in the source: a broker recovers no log"
    elif expected != actual:
        yield f"{CLEAN_SHUTDOWN} has other contents"


def _metadata_problems(sides: _Sides) -> Iterator[str]:
    """The metadata log has the same files with the same bytes."""
    old, new = (join(log_dir, _METADATA_LOG) for log_dir in (sides.old, sides.new))
    expected, actual = _files(sides.fs, old), _files(sides.fs, new)
    if expected is None:
        return
    if actual is None:
        yield f"{_METADATA_LOG} is missing: a broker takes every log for a stray"
        return
    for name in sorted(expected.keys() | actual.keys()):
        size = expected.get(name)
        if size is None or size != actual.get(name) or not same_bytes(sides.fs, join(old, name), join(new, name), size):
            yield f"{_METADATA_LOG}/{name} differs from the source"


def _files(fs: FileSystem, directory: str) -> dict[str, int] | None:
    """The sizes of a directory's files by name; ``None`` if it is missing."""
    stat = fs.stat(directory)
    if stat is None or not stat.is_dir:
        return None
    stats = {name: fs.stat(join(directory, name)) for name in fs.listdir(directory)}
    return {name: status.size for name, status in stats.items() if status is not None and status.is_file}


def _content(fs: FileSystem, path: str, parse: Callable[[FileSystem, str], T]) -> T | None:
    """The content of a file; ``None`` if it is missing or malformed."""
    try:
        return None if fs.stat(path) is None else parse(fs, path)
    except (CorruptLogError, FormatError):
        return None


def _offsets(log_dir: str, name: str) -> Mapping[TopicPartition, int] | None:
    fs, path = file_system([log_dir]), join(log_dir, name)
    return {} if fs.stat(path) is None else _content(fs, path, _text(parse_offset_checkpoint))


def _text(parse: Callable[[str, str], T], encoding: str = "utf-8") -> Callable[[FileSystem, str], T]:
    """A function that parses a file of text."""
    return lambda fs, path: parse(read_small_text(fs, path, _HINT, encoding), path)


_epochs = _text(parse_leader_epochs)


def _producers(fs: FileSystem, path: str) -> list[tuple[int, ...]]:
    return sorted(map(tuple, read_snapshot(_raw(fs, path))))


def _raw(fs: FileSystem, path: str) -> bytes:
    return read_small(fs, path, _HINT)
