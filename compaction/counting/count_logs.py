"""Counts records and distinct keys of logs at rest, by partition and by topic, as a consumer would read them.

Tasks read byte ranges and count their keys (``key_totals``); tables of keys are joined by topic and by a hash of the key, so
a key that several partitions of a topic have is one key of the topic. Totals that outgrow a task's memory are emitted while it
reads, split by a hash of the names.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.counting.byte_usage import Measured, StoredLog, Usage, newest_cells
from compaction.counting.key_totals import NO_NAMES, Int64s, KeyGroups, KeySummary, KeyTotals, Largest, key_table, packed_parts
from compaction.engine import Engine, Item, Job, Place, Reading, exchange, pack
from compaction.errors import LogError, as_log_error
from compaction.files.filesystem import FileSystem
from compaction.files.mixed import file_system
from compaction.files.overlay import OverlayFileSystem
from compaction.kernels import columns
from compaction.names import LogLocation
from compaction.rules.transactions import aborted_of
from compaction.source.read_columns import Records, read_columns
from compaction.source.read_plan import ReadRequest, ReadTask, plan_log, plan_stored

#: the names whose records are counted: keys always, the others with the bytes
KEYS, GROUPS, HEADER_NAMES, PRODUCERS = "keys", "groups", "headers", "producers"
#: bytes of a topic whose keys are joined by one task
PARTITION_BYTES = 96 << 20
_MAX_PARTITIONS = 4096
#: bytes that one task reads
TASK_BYTES = 64 << 20


@dataclass(frozen=True)
class CountTask:
    """A task of log number ``log`` of topic number ``topic``; keys are hashed with ``seed`` into ``partitions``. ``stored``:
    how the bytes of the log are counted, if they are."""

    topic: int
    log: int
    read: ReadTask
    partitions: int
    seed: int
    stored: StoredLog | None = None


class PackedNames(NamedTuple):
    """The part of a table of the ``names`` of a log that one reducer joins; ``table`` is an Arrow IPC stream."""

    log: int
    names: str
    table: bytes


@dataclass(frozen=True)
class RecordCounts:
    """Counts of the records that a consumer reads: all, those without a key, tombstones (with a key and no value), and the
    bytes of keys and values."""

    records: int = 0
    keyless: int = 0
    tombstones: int = 0
    bytes: int = 0

    def __add__(self, other: RecordCounts) -> RecordCounts:
        return RecordCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


class TaskCounts(NamedTuple):
    """The counts of the records that a task has read, up to its error, if any."""

    log: int
    counts: RecordCounts
    usage: Usage | None
    reading: Reading


class KeyPartition(NamedTuple):
    """The summary of one hash partition of the keys of a log, or of the ``names`` of a topic (``log`` is ``None``).

    ``newest``: of a log whose bytes are counted, the ``newest_cells`` of its keys.
    """

    topic: int
    names: str
    log: int | None
    summary: KeySummary
    newest: Int64s | None = None


class PlaceReading(NamedTuple):
    """What a task has read of a log, for one of the places of its keys; what that place has received of all tasks."""

    log: int
    reading: Reading


#: key of the items with counts of records
_COUNTS = (-1, 0)


@dataclass
class LogCount:
    """The counts of a log, or the error if it could not be read."""

    location: LogLocation
    counts: RecordCounts = field(default_factory=RecordCounts)
    keys: KeySummary = NO_NAMES
    error: str | None = None
    usage: Usage | None = None

    def note(self, error: str | None) -> None:
        """Tasks end in any order: of several errors always the same one is reported."""
        self.error = min(filter(None, (self.error, error)), default=None)


@dataclass
class TopicCount:
    """The logs of a topic; ``names`` has the names distinct in the topic, and means nothing if a log failed."""

    topic: str
    logs: list[LogCount]
    names: dict[str, KeySummary] = field(default_factory=dict)

    def named(self, names: str) -> KeySummary:
        """The number of the distinct ``names``, and the largest."""
        return self.names.get(names, NO_NAMES)

    @property
    def keys(self) -> KeySummary:
        return self.named(KEYS)

    @property
    def counts(self) -> RecordCounts:
        """The sum over the logs."""
        return sum((log.counts for log in self.logs), RecordCounts())

    @property
    def usage(self) -> Usage:
        """The sum over the logs."""
        return sum((log.usage for log in self.logs if log.usage is not None), Usage())

    @property
    def failed(self) -> bool:
        return any(log.error is not None for log in self.logs)


class CountPlan(NamedTuple):
    """The logs, by topic and in the order of their numbers, and the tasks that count them."""

    topics: list[TopicCount]
    logs: list[LogCount]
    tasks: list[CountTask]

    @property
    def counted(self) -> TopicCount:
        """The logs of all topics without a failure, with no names."""
        return TopicCount("", [log for topic in self.topics if not topic.failed for log in topic.logs])


@dataclass(frozen=True)
class StoredRequest:
    """Count the bytes of logs, as they are stored: the time from which ages are counted, and how keys are grouped."""

    now_ms: int
    group_by: KeyGroups | None = None


def plan_count(locations: Iterable[LogLocation], request: ReadRequest, stored: StoredRequest | None = None) -> CountPlan:
    """Plan a count of the ``locations`` logs. A log that cannot be read has an error, and no tasks.

    :param stored: count the bytes of all stored records, too; records and keys are then those of ``read_committed``
    """
    fs = OverlayFileSystem(file_system(request.paths))
    logs = [LogCount(location) for location in locations]
    names = sorted({log.location.topic_partition.topic for log in logs})
    topics = [TopicCount(name, [log for log in logs if log.location.topic_partition.topic == name]) for name in names]
    found: list[tuple[int, int, StoredLog | None, ReadTask]] = []
    for number, log in enumerate(logs):
        try:
            reads, stored_log = _planned(fs, log, request, stored)
            found += [(names.index(log.location.topic_partition.topic), number, stored_log, read) for read in reads]
        except LogError as error:
            log.error = str(error)
    seed, sizes = secrets.randbits(32), Counter[int]()
    for topic, _, _, read in found:
        sizes[topic] += read.size_bytes
    parts = {topic: min(_MAX_PARTITIONS, 1 + size // PARTITION_BYTES) for topic, size in sizes.items()}
    tasks = [CountTask(topic, number, read, parts[topic], seed, stored_log) for topic, number, stored_log, read in found]
    return CountPlan(topics, logs, tasks)


def _planned(
    fs: FileSystem, log: LogCount, request: ReadRequest, stored: StoredRequest | None
) -> tuple[Sequence[ReadTask], StoredLog | None]:
    if stored is None:
        return plan_log(fs, log.location, request, columns.KEYS), None
    view, reads, after_last_batch = plan_stored(fs, log.location, request, columns.KEYS | columns.HEADERS)
    log.usage = Usage()
    log.usage.add_after_last_batch(after_last_batch)
    offsets = view.log_start_offset, view.last_stable_offset
    return reads, StoredLog(aborted_of(view), *offsets, stored.now_ms, stored.group_by)


def count_logs(runner: Engine, plan: CountPlan, largest: Mapping[str, Largest]) -> None:
    """Fill in the counts of the planned logs and topics.

    :param largest: the keys to report, and other names
    """
    packs = pack(plan.tasks, lambda task: task.read.size_bytes, TASK_BYTES)
    sizes = [sum(task.read.size_bytes for task in tasks) for tasks in packs]
    job = Job.sized("count", f"count: read {len(plan.tasks)} byte ranges", sizes)
    reducers = max(1, runner.cores, sum({task.topic: task.partitions for task in plan.tasks}.values()))
    results = exchange(runner, job, packs, _count_tasks, partial(_join_keys, largest=largest), reducers)
    accepted: dict[int, Reading] = {}
    for result in results:
        if isinstance(result, TaskCounts):
            log = plan.logs[result.log]
            log.counts += result.counts
            if log.usage is not None and result.usage is not None:
                log.usage += result.usage
            log.note(result.reading.error)
            accepted[result.log] = accepted.get(result.log, Reading()) + result.reading
    for result in results:
        if isinstance(result, PlaceReading):
            plan.logs[result.log].note(result.reading.difference(accepted[result.log]))
        elif isinstance(result, KeyPartition) and result.log is not None:
            log = plan.logs[result.log]
            log.keys = log.keys.joined(result.summary, largest[KEYS])
            if log.usage is not None and result.newest is not None:
                log.usage.add_newest(result.newest)
        elif isinstance(result, KeyPartition):
            topic = plan.topics[result.topic]
            topic.names[result.names] = topic.named(result.names).joined(result.summary, largest[result.names])


def _count_tasks(tasks: Iterable[CountTask]) -> Iterator[Item]:
    """The counts of each task; by topic and partition tables of names, and what was read."""
    for task in tasks:
        totals, path, error, read = TaskTotals(task), task.read.slices[0].path, None, []
        try:
            for part in task.read.slices:
                path = part.path
                fingerprint = yield from totals.read(read_columns(part.path, part.start, part.end, task.read.spec))
                read.append((part.path, part.start, fingerprint))
                if totals.usage is not None:
                    totals.usage.finish_range(part.end - part.start)
        except Exception as failure:
            error = str(as_log_error(failure, path))
        reading = Reading.of(task.read.slices[0].path, (task.read.slices[0].start, read), error)
        yield from totals.packed()
        yield from (((task.topic, part), PlaceReading(task.log, reading)) for part in range(task.partitions))
        yield _COUNTS, TaskCounts(task.log, totals.counts, totals.usage, reading)


def _join_keys(items: Iterable[Item], largest: Mapping[str, Largest]) -> Iterator[TaskCounts | KeyPartition | PlaceReading]:
    """Join the tables of names that tasks have emitted, all of them of each topic and partition."""
    joined: dict[tuple[Place, str], dict[int, KeyTotals]] = {}
    readings: dict[tuple[Place, int], Reading] = {}
    for place, value in items:
        if isinstance(value, TaskCounts):
            yield value
        elif isinstance(value, PlaceReading):
            readings[place, value.log] = readings.get((place, value.log), Reading()) + value.reading
        else:
            # only keys are reported by log
            log = value.log if value.names == KEYS else 0
            totals = joined.setdefault((place, value.names), {}).setdefault(log, KeyTotals())
            totals.add(pa.ipc.open_stream(value.table).read_all())
    yield from (PlaceReading(log, reading) for (_, log), reading in readings.items())
    for ((topic, _), names), logs in joined.items():
        of_names = partial(KeyTotals.summary, largest=largest[names], with_newest=names == KEYS)
        summaries = {log: of_names(totals) for log, totals in logs.items()}
        for log, summary in summaries.items() if names == KEYS else ():
            yield KeyPartition(topic, names, log, summary, newest_cells(logs[log].newest()))
        # the only log of a topic has all of its keys
        topic_summary = next(iter(summaries.values())) if len(logs) == 1 else of_names(KeyTotals.of(logs.values()))
        yield KeyPartition(topic, names, None, topic_summary)


class TaskTotals:
    """What a task has read of one log; ``usage`` is of all stored records."""

    def __init__(self, task: CountTask) -> None:
        self._task = task
        self._totals: dict[str, KeyTotals] = {}
        self.counts = RecordCounts()
        self.usage = None if task.stored is None else Usage()

    def read(self, reading: Generator[Records, None, str]) -> Generator[Item, None, str]:
        """Count all that is read; returns its fingerprint."""
        while True:
            try:
                records = next(reading)
            except StopIteration as end:
                return str(end.value)
            yield from self._count(records)

    def _count(self, records: Records) -> Iterator[Item]:
        """Count records, which have been read with their keys, and to count bytes also with their headers."""
        columns, n = records.columns, len(records.columns.offset)
        keys, tombstone = _binary(columns.keys), (columns.value_size < 0).astype(np.int64)
        sizes = np.diff(columns.keys.offsets).astype(np.int64) + np.maximum(columns.value_size, 0)
        ones, stored, counted = np.ones(n, np.int64), np.zeros(n, np.int64), np.ones(n, np.bool_)
        newest = columns.offset << 1 | tombstone, stored
        if self.usage is not None and self._task.stored is not None:
            measured = self.usage.add_records(records, self._task.stored)
            stored, newest, counted = measured.stored, measured.newest, measured.committed
            if not measured.data.all():
                keys = pc.if_else(pa.array(measured.data), keys, pa.scalar(None, keys.type))
            yield from self._add(HEADER_NAMES, _header_table(columns, measured))
            yield from self._add(PRODUCERS, _producer_table(records, measured, tombstone))
        has_key = keys.is_valid().to_numpy(zero_copy_only=False)
        keyless, tombstones = int((counted & ~has_key).sum()), int((tombstone * (counted & has_key)).sum())
        self.counts += RecordCounts(int(counted.sum()), keyless, tombstones, int(sizes[counted].sum()))
        yield from self._add(KEYS, key_table(keys, (ones, sizes, tombstone, stored), newest))

    def _add(self, names: str, table: pa.Table) -> Iterator[Item]:
        if self._totals.setdefault(names, KeyTotals()).add(table):
            yield from self._emit(names)

    def _emit(self, names: str) -> Iterator[Item]:
        table, task = self._totals[names].take(), self._task
        if names == KEYS and task.stored is not None and task.stored.group_by is not None:
            groups = task.stored.group_by.of(table["key"].combine_chunks())
            grouped = table.set_column(0, table.schema.field("key"), groups).filter(groups.is_valid())
            yield from self._add(GROUPS, grouped)
        for part, packed in packed_parts(table, task.partitions, task.seed):
            yield (task.topic, part), PackedNames(task.log, names, packed)

    def packed(self) -> Iterator[Item]:
        """All that has not been emitted; nothing remains."""
        # the groups are those of the keys
        for names in (KEYS, GROUPS, HEADER_NAMES, PRODUCERS):
            if names in self._totals:
                yield from self._emit(names)


def _binary(column: columns.Bytes) -> pa.Array:
    buffers = [pa.py_buffer(buffer) for buffer in (column.valid, column.offsets, column.data)]
    return pa.Array.from_buffers(pa.binary(), len(column.offsets) - 1, buffers)


def _header_table(columns: columns.Columns, measured: Measured) -> pa.Table:
    """The headers of records other than control records, by name: ``bytes`` are those of names and values."""
    sizes, stored = measured.headers
    table = key_table(_binary(columns.header_keys), (np.ones_like(sizes), sizes, np.zeros_like(sizes), stored))
    return table.filter(pa.array(np.repeat(measured.data, np.diff(columns.header_starts))))


def _producer_table(records: Records, measured: Measured, tombstone: Int64s) -> pa.Table:
    """The totals of each batch other than control batches, by producer id."""
    numbers = np.stack([np.ones(len(tombstone), np.int64), measured.sizes, tombstone, measured.stored])
    ends = np.cumsum(records.counts.astype(np.int64))
    sums = np.concatenate([np.zeros((len(numbers), 1), np.int64), np.cumsum(numbers * measured.data, axis=1)], axis=1)
    totals = sums[:, ends] - sums[:, ends - records.counts]
    present = totals[0] > 0
    producers = pa.array(records.rows["producer_id"][present].astype(np.int64))
    return key_table(producers.cast(pa.string()).cast(pa.binary()), totals[:, present])
