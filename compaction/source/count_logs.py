"""Counts records and distinct keys of logs at rest, by partition and by topic, as a consumer would read them.

Tasks read byte ranges and count their keys (``key_totals``); tables of keys are joined by topic and by a hash of the key, so
a key that several partitions of a topic have is one key of the topic.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from compaction.errors import LogError, as_log_error
from compaction.kernels.reading.columns import KEYS
from compaction.names import LogLocation
from compaction.source.key_totals import JoinedTotals, KeyCount, KeySummary, KeyTotals, Largest, RecordCounts
from compaction.source.read_columns import read_columns
from compaction.source.read_plan import ReadRequest, ReadTask, plan_log
from compaction.storage.mixed import file_system
from compaction.storage.overlay import OverlayFileSystem
from compaction.task_runner import Item, Job, TaskRunner, pack

#: bytes of a topic whose keys are joined by one task
PARTITION_BYTES = 96 << 20
_MAX_PARTITIONS = 4096
#: bytes that one task reads
TASK_BYTES = 64 << 20


@dataclass(frozen=True)
class CountTask:
    """A task of log number ``log`` of topic number ``topic``; keys are hashed with ``seed`` into ``partitions``."""

    topic: int
    log: int
    read: ReadTask
    partitions: int
    seed: int


class TaskCounts(NamedTuple):
    """The counts of the records that a task has read, or its error, in one line."""

    log: int
    counts: RecordCounts
    error: str | None = None


class KeyPartition(NamedTuple):
    """The summary of one hash partition of the keys of a log, or of a topic (``log`` is ``None``)."""

    topic: int
    log: int | None
    summary: KeySummary


#: key of the items with counts of records
_COUNTS = (-1, 0)


@dataclass
class LogCount:
    """The counts of a log, or the error if it could not be read."""

    location: LogLocation
    counts: RecordCounts = field(default_factory=RecordCounts)
    keys: int = 0
    deleted_keys: int = 0
    largest: tuple[KeyCount, ...] = ()
    error: str | None = None

    def add_keys(self, summary: KeySummary, largest: Largest) -> None:
        self.keys += summary.keys
        self.deleted_keys += summary.deleted
        self.largest = largest.of([*self.largest, *summary.largest])


@dataclass
class TopicCount:
    """The logs of a topic; ``keys`` and ``largest`` are of keys distinct in the topic, and mean nothing if a log failed."""

    topic: str
    logs: list[LogCount]
    keys: int = 0
    largest: tuple[KeyCount, ...] = ()

    @property
    def counts(self) -> RecordCounts:
        """The sum over the logs."""
        total = RecordCounts()
        for log in self.logs:
            total.add(log.counts)
        return total

    @property
    def failed(self) -> bool:
        """Whether a log could not be read."""
        return any(log.error is not None for log in self.logs)


class CountPlan(NamedTuple):
    """The logs, by topic and in the order of their numbers, and the tasks that count them."""

    topics: list[TopicCount]
    logs: list[LogCount]
    tasks: list[CountTask]


def plan_count(locations: Iterable[LogLocation], request: ReadRequest) -> CountPlan:
    """Plan a count of the ``locations`` logs. A log that cannot be read has an error, and no tasks."""
    fs = OverlayFileSystem(file_system(request.paths))
    logs = [LogCount(location) for location in locations]
    names = sorted({log.location.topic_partition.topic for log in logs})
    topics = [TopicCount(name, [log for log in logs if log.location.topic_partition.topic == name]) for name in names]
    reads: list[tuple[int, int, ReadTask]] = []
    for number, log in enumerate(logs):
        try:
            topic = names.index(log.location.topic_partition.topic)
            reads += [(topic, number, task) for task in plan_log(fs, log.location, request, KEYS)]
        except LogError as error:
            log.error = str(error)
    return CountPlan(topics, logs, _tasks(reads))


def _tasks(reads: Sequence[tuple[int, int, ReadTask]]) -> list[CountTask]:
    seed, sizes = secrets.randbits(32), dict[int, int]()
    for topic, _, task in reads:
        sizes[topic] = sizes.get(topic, 0) + task.size_bytes
    parts = {topic: min(_MAX_PARTITIONS, 1 + size // PARTITION_BYTES) for topic, size in sizes.items()}
    return [CountTask(topic, log, task, parts[topic], seed) for topic, log, task in reads]


def count_logs(runner: TaskRunner, plan: CountPlan, largest: Largest) -> None:
    """Fill in the counts of the planned logs and topics."""
    packs = pack(plan.tasks, lambda task: task.read.size_bytes, TASK_BYTES)
    sizes = [sum(task.read.size_bytes for task in tasks) for tasks in packs]
    job = Job.sized("count", f"count: read {len(plan.tasks)} byte ranges", sizes)
    parts = {(task.topic, part) for task in plan.tasks for part in range(task.partitions)}
    reducers = max(1, runner.cores, len(parts))
    for result in runner.exchange(job, packs, _count_tasks, partial(_join_keys, largest=largest), reducers):
        if isinstance(result, TaskCounts):
            log = plan.logs[result.log]
            log.counts.add(result.counts)
            # tasks end in any order: of several errors always the same one is reported
            log.error = min(filter(None, (log.error, result.error)), default=None)
        elif result.log is not None:
            plan.logs[result.log].add_keys(result.summary, largest)
        else:
            topic = plan.topics[result.topic]
            topic.keys += result.summary.keys
            topic.largest = largest.of([*topic.largest, *result.summary.largest])


def _count_tasks(tasks: Iterable[CountTask]) -> Iterator[Item]:
    """The counts of each task, and pairs of a log and a table of keys by topic and partition."""
    for task in tasks:
        totals, path, error = KeyTotals(task.partitions, task.seed), task.read.slices[0].path, None
        try:
            for part in task.read.slices:
                path = part.path
                for records in read_columns(part.path, part.start, part.end, task.read.spec):
                    yield from (((task.topic, number), (task.log, packed)) for number, packed in totals.add(records))
        except Exception as failure:
            error = str(as_log_error(failure, path))
        yield from (((task.topic, number), (task.log, packed)) for number, packed in totals.packed())
        yield _COUNTS, TaskCounts(task.log, totals.counts, error)


def _join_keys(items: Iterable[Item], largest: Largest) -> Iterator[TaskCounts | KeyPartition]:
    """Join the tables of keys that tasks have emitted, all of them of each topic and partition."""
    joined: dict[tuple[int, int], dict[int, JoinedTotals]] = {}
    for key, value in items:
        if isinstance(value, TaskCounts):
            yield value
        else:
            log, packed = value
            joined.setdefault(key, {}).setdefault(log, JoinedTotals()).add(packed)
    for (topic, _), logs in joined.items():
        summaries = {log: totals.summary(largest) for log, totals in logs.items()}
        yield from (KeyPartition(topic, log, summary) for log, summary in summaries.items())
        # the only log of a topic has all of its keys
        yield KeyPartition(topic, None, _topic_summary(logs, summaries, largest))


def _topic_summary(logs: Mapping[int, JoinedTotals], summaries: Mapping[int, KeySummary], largest: Largest) -> KeySummary:
    if len(logs) == 1:
        (summary,) = summaries.values()
        return summary
    return JoinedTotals.of(logs.values()).summary(largest)
