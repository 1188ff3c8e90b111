"""The logs for fault injection, and the kinds of runs over them: all in memory, a few segments of a few batches each.

Among the logs: one with records of equal size, so that a group's output has its first source's size and mtime; committed and
aborted transactions with tombstones; ``compact,delete``; a skipped log; a log of which every segment expires. Groups are
separated by the range of an index, 2^31 offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from compaction.errors import CompactionError, UsageError
from compaction.files.filesystem import DiskFileSystem, join
from compaction.files.local import FreeSpace
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.formats.producer_snapshot import ProducerEntry
from compaction.log.access import Identity
from compaction.names import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS, TopicPartition
from compaction.report import RunReport
from compaction.rules.log_view import AbortedTxn
from compaction.run import destination, waves
from compaction.run.compact import clean_logs
from compaction.run.expire import delete_old_segments
from compaction.run.sizing import Sizes
from tests.disk import FaultyFileSystem, Operation, Stopped, WatchedFileSystem
from tests.kafka.encode import Batch, Record
from tests.local_job import TopicConfigs, request_for
from tests.local_passes import LocalPasses
from tests.log.logs import NOW_MS, Built, build, marker, put_snapshot

LOG_DIR, OUTPUT_DIR = "/memory/logs", "/memory/out/cleaned"
#: beyond the range of an index with base offset 0
FAR = 3 * 2**30
#: free space for one group of a log, and the margin
GROUP_BYTES = (4 << 20) + 65_000
_INTERVAL = 1
_OLD_MS = NOW_MS - 30 * 86_400_000
_SIZES = Sizes(slice_bytes=300, scan_bytes=700, shard_entries=4, single_part_records=4)

_COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "index.interval.bytes": "1"}
_DELETE = {"cleanup.policy": "delete", "retention.ms": "86400000", "index.interval.bytes": "1"}
TOPICS: TopicConfigs = {
    "equal": _COMPACT,
    "txns": {**_COMPACT, "file.delete.delay.ms": "0", "delete.retention.ms": "1000"},
    "both": {**_COMPACT, "cleanup.policy": "compact,delete", "retention.ms": "86400000"},
    "idle": {**_COMPACT, "min.cleanable.dirty.ratio": "0.9"},
    "gone": _DELETE,
    "some": {**_DELETE, "file.delete.delay.ms": "0"},
    "wide": _COMPACT,
    "bare": _COMPACT,
}


def _batch(offset: int, key: str, value: str | None, *, stamp: int = NOW_MS - 60_000, **header: Any) -> bytes:
    text = None if value is None else value.encode()
    return Batch([Record(offset, stamp + offset % 1000, key.encode(), text)], **header).encode()


def _segment(base: int, *records: tuple[int, str, str | None], stamp: int = NOW_MS - 60_000) -> Built:
    return build(base, [_batch(*record, stamp=stamp) for record in records], interval=_INTERVAL)


def _txn(offset: int, key: str, value: str, producer: int, sequence: int) -> bytes:
    return _batch(offset, key, value, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)


def equal() -> list[Built]:
    """Each group's output has its first source's size, or consists of its only source's bytes."""
    return [
        _segment(0, (0, "a", "1"), (1, "b", "1")),
        _segment(100, (100, "a", "2"), (101, "b", "2")),
        _segment(FAR, (FAR, "c", "3"), (FAR + 1, "d", "3")),
        _segment(2 * FAR, (2 * FAR, "e", "4"), (2 * FAR + 1, "e", "5")),
        _segment(2 * FAR + 100, (2 * FAR + 100, "e", "6")),
        _segment(3 * FAR, (3 * FAR, "f", "7")),
    ]


def transactions() -> list[Built]:
    """Aborted and committed transactions over several segments, tombstones, two groups, one written in parts."""
    return [
        build(0, [_txn(0, "a", "lost", 7, 0), _txn(1, "b", "kept", 8, 0), _batch(2, "c", None)], interval=_INTERVAL),
        build(
            100,
            [marker(100, 7, commit=False), _txn(101, "c", "too", 8, 1), marker(102, 8, commit=True), _batch(103, "d", "x")],
            txns=[AbortedTxn(7, 0, 100, 101)],
            interval=_INTERVAL,
        ),
        build(FAR, [_batch(FAR, "d", None), _batch(FAR + 1, "e", "y"), _txn(FAR + 2, "z", "no", 9, 0)], interval=_INTERVAL),
        build(
            FAR + 50,
            [marker(FAR + 50, 9, commit=False), _batch(FAR + 51, "e", "z")],
            txns=[AbortedTxn(9, FAR + 2, FAR + 50, FAR + 51)],
            interval=_INTERVAL,
        ),
        _segment(FAR + 100, (FAR + 100, "f", "q")),
    ]


def both() -> list[Built]:
    """The first segment expires, the rest is compacted."""
    return [
        _segment(0, (0, "a", "1"), (1, "b", "1"), stamp=_OLD_MS),
        _segment(10, (10, "a", "2"), (11, "b", "2")),
        _segment(20, (20, "a", "3"), (21, "c", "3")),
        _segment(30, (30, "d", "4")),
    ]


def expiring(*, whole: bool) -> list[Built]:
    late = _OLD_MS if whole else NOW_MS - 60_000
    return [
        _segment(0, (0, "a", "1"), (1, "b", "1"), stamp=_OLD_MS),
        _segment(10, (10, "a", "2"), stamp=_OLD_MS),
        _segment(20, (20, "c", "3"), stamp=late),
    ]


def overflowing() -> list[Built]:
    """A segment whose offsets overflow its indexes, which cover its start only."""
    records = [(3, "a", "1"), (7, "b", "1"), (FAR, "a", "2"), (FAR + 9, "c", "1"), (2 * FAR, "b", "3")]
    first = _segment(0, *records[:1])
    log = b"".join(_batch(*record) for record in records)
    return [Built(0, {**first.files, ".log": log, ".index": b""}), _segment(3 * FAR, (3 * FAR, "d", "4"))]


def bare() -> list[Built]:
    """Segments without indexes, or with malformed ones."""
    first, second = transactions()[:2]
    del first.files[".index"], first.files[".timeindex"], second.files[".txnindex"]
    return [first, second, _segment(200, (200, "a", "9"), (201, "d", "9")), _segment(300)]


LOGS: Mapping[str, Callable[[], list[Built]]] = {
    "equal": equal,
    "txns": transactions,
    "both": both,
    "idle": both,
    "gone": partial(expiring, whole=True),
    "some": partial(expiring, whole=False),
    "wide": overflowing,
    "bare": bare,
}


def made(topics: Sequence[str]) -> FaultyFileSystem:
    """A disk with a log directory of these logs, all durable."""
    disk = FaultyFileSystem()
    for topic in topics:
        path = log_path(topic)
        disk.mkdir(path)
        segments = LOGS[topic]()
        for segment in segments:
            for kind, data in segment.files.items():
                disk.write_file(f"{path}/{segment.base_offset:020d}{kind}", data, mtime_ns=(NOW_MS - 50_000) * 1_000_000)
        for segment in segments[1:]:
            producers = [ProducerEntry(8, 0, 0, 1, 0, NOW_MS, 0, -1)] if topic == "txns" else []
            put_snapshot(disk, path, segment.base_offset, producers if segment.base_offset > 101 else [])
        disk.put(join(path, "leader-epoch-checkpoint"), b"0\n1\n0 0\n")
        disk.put(join(path, "partition.metadata"), b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    disk.mkdir("/memory/out")
    others = {TopicPartition("other", 1): 5}
    idle = {TopicPartition("idle", 0): 20} if "idle" in topics else {}
    disk.put(join(LOG_DIR, CLEANER_OFFSETS), format_offset_checkpoint({**others, **idle}).encode())
    disk.put(join(LOG_DIR, LOG_STARTS), format_offset_checkpoint(others).encode())
    ends = {TopicPartition(topic, 0): 2**40 for topic in topics}
    disk.put(join(LOG_DIR, HIGH_WATERMARKS), format_offset_checkpoint({**others, **ends}).encode())
    disk.put(join(LOG_DIR, "meta.properties"), b"version=1\nnode.id=1\n")
    return disk.settle()


def log_path(topic: str, log_dir: str = LOG_DIR) -> str:
    return join(log_dir, f"{topic}-0")


class Kind(NamedTuple):
    """A kind of run: its logs and arguments; ``half_done`` is the point at which an earlier run was killed.
    ``in_waves``: each log is cleaned by itself. ``in_portions``: each log is cleaned one group after the other."""

    name: str
    topics: tuple[str, ...]
    expires: bool = False
    dry_run: bool = False
    output_dir: str | None = None
    half_done: str | None = None
    in_waves: bool = False
    in_portions: bool = False

    @property
    def releases_early(self) -> bool:
        """What the run has replaced is removed at once."""
        return self.in_waves or self.in_portions

    def start(self) -> FaultyFileSystem:
        """The disk before the run."""
        return _start(self).clone()

    def run(self, fs: DiskFileSystem) -> Ended:
        """Run over the logs sequentially; an exception ends the run."""
        topics = {topic: TOPICS[topic] for topic in self.topics}
        request = request_for(Path(LOG_DIR), NOW_MS, topics, dry_run=self.dry_run, fs=_start(self))
        request = replace(request, output_dir=self.output_dir, release_early=self.releases_early)
        # enough free space for any run, or for one group of a log
        space = FreeSpace(1, GROUP_BYTES if self.in_portions else 1 << 40, 0)
        with (
            of_a_process_that_is_over(),
            # the order of operations is always the same
            patch.object(destination, "LOG_CONCURRENCY", 1),
            # waves of at most this number of segments, but of one log
            patch.object(waves, "_MOST_SEGMENTS", 1 if self.in_waves else 1000),
            patch.object(waves, "free_space", lambda directory: space),
        ):
            try:
                if self.expires:
                    return Ended.of(delete_old_segments(LocalPasses, request, fs))
                return Ended.of(clean_logs(LocalPasses, request, fs, _SIZES))
            except UsageError as error:
                return Ended(2, {}, str(error))
            except CompactionError as error:
                return Ended(1, {}, str(error))


class Ended(NamedTuple):
    """How a run ended: its exit code, the status of each log, and its output."""

    code: int
    statuses: Mapping[str, str]
    reason: str = ""

    @classmethod
    def of(cls, report: RunReport) -> Ended:
        reasons = [f"{log.topic}: {log.reason}" for log in report.logs if log.status.value == "failed"]
        return cls(report.exit_code, {log.topic: log.status.value for log in report.logs}, "; ".join(reasons))


_LOGS = ("both", "equal", "idle", "txns")
KINDS = (
    Kind("compact in place", _LOGS),
    Kind("compact to another place", _LOGS, output_dir=OUTPUT_DIR),
    Kind("expire", ("both", "gone", "some"), expires=True),
    Kind("compact after a run that was killed in its swaps", ("equal", "txns"), half_done="fsync_dir"),
    Kind("compact a log that overflows and one without indexes", ("bare", "wide")),
    Kind("compact in waves", _LOGS, in_waves=True),
    Kind("compact in portions", ("equal", "txns"), in_portions=True),
    Kind("dry run", (*_LOGS, "bare", "gone", "wide"), dry_run=True),
    Kind("dry run of expire", ("both", "gone", "some"), expires=True, dry_run=True),
)


def kind_of(name: str) -> Kind:
    """A kind of run by its name."""
    return next(kind for kind in KINDS if kind.name == name)


@cache
def operations(kind: Kind) -> list[Operation]:
    """Every operation of an undisturbed run."""
    fs = WatchedFileSystem(kind.start())
    kind.run(fs)
    return fs.log


def _stop_in_second_group(operation: Operation) -> None:
    """Stops a run once sources of the second group of a log are ``.deleted``."""
    if operation.target.endswith(".log.deleted") and f"{FAR:020d}" in operation.target:
        raise Stopped


@cache
def _start(kind: Kind) -> FaultyFileSystem:
    disk = made(kind.topics)
    if kind.half_done is not None:
        # one log at a time: a killed run has one unfinished swap for each thread
        for topic in kind.topics:
            try:
                kind._replace(topics=(topic,), half_done=None).run(WatchedFileSystem(disk, _stop_in_second_group))
            except Stopped:
                disk = disk.after_kill()
            else:
                raise AssertionError(f"{topic} was not stopped")
    return disk.after_kill()


_identity = Identity.of_this_process


@contextmanager
def of_a_process_that_is_over() -> Iterator[None]:
    """Make claims those of processes that have ended when the next run starts."""
    gone = classmethod(lambda cls: replace(_identity(), started="long ago"))
    with patch.object(Identity, "of_this_process", gone):
        yield
