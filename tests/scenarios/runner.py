"""Carries out the rounds of scenarios: many logs in one directory, appended by a ``Writer`` and cleaned in a ``Way``.

A way returns the outcome of each topic, and the directory that the next round continues. Those of this module are ours, and
``files`` writes plain segment files; ``tests/conformance/kafkas.py`` has Kafka's. ``answer_of`` shows what is left.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from compaction.engine import Engine
from compaction.names import CLEAN_SHUTDOWN
from compaction.report import LogReport, LogStatus
from compaction.run.compact import clean_logs
from compaction.run.expire import delete_old_segments
from compaction.run.sizing import Sizes
from tests.local_job import KAFKA, OFFSET_FILES, TopicConfigs, clean_locally, read_offsets, request_for, write_offsets
from tests.local_passes import LocalPasses
from tests.oracle.records import NaiveBatch, NaiveRecord, decode
from tests.scenarios.language import KNOWN, MTIME, Scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Outcome(NamedTuple):
    """The offset up to which a log was cleaned, ``None`` if it was not; the number of segments that were deleted; why it could
    not be cleaned; figures of the cleaning, those of a ``LogReport``. Kafka and the plain cleaner have some of them."""

    end_offset: int | None
    deleted: int = 0
    refused: str = ""
    figures: Mapping[str, Any] | None = None

    def seen_by(self, other: Outcome) -> Outcome:
        """With the figures that the other one has."""
        if self.figures is None or other.figures is None:
            return self
        return self._replace(figures={name: self.figures[name] for name in other.figures})


Outcomes = Mapping[str, Outcome]
Way = Callable[[Path, int, TopicConfigs], tuple[Outcomes, Path]]


class Shutdown(Enum):
    """How the broker that wrote a log ended; ``UNKNOWN`` if neither file of a log directory says it."""

    CLEAN = "clean"
    KILLED = "killed"
    UNKNOWN = "unknown"


#: appends to a partition directory the segments of a round; how the broker ended, and where it had flushed the log up to
Writer = Callable[[Path, Scenario, int], tuple[Shutdown, int]]


class Left(NamedTuple):
    """What one round of a scenario leaves, and where."""

    name: str
    number: int
    outcome: Outcome
    answer: list[str]
    partition: Path


#: of a report, what differs from run to run
_OF_THE_RUN = ("log_dir", "seconds", "task_seconds", "reason")


def outcomes(reports: Iterable[LogReport], *, compacted: bool = True) -> Outcomes:
    """Of the logs of a run, by topic."""
    return {log.topic: outcome_of(log, compacted=compacted) for log in reports}


def outcome_of(log: LogReport, *, compacted: bool = True) -> Outcome:
    """Of a log; a run with the delete policy only compacts nothing."""
    if log.status is LogStatus.FAILED:
        return Outcome(None, refused=log.reason)
    if not compacted or log.status is LogStatus.SKIPPED:
        return Outcome(None, log.expired_segments)
    figures = {each.name: getattr(log, each.name) for each in fields(log) if each.name not in _OF_THE_RUN}
    return Outcome(log.end_offset, log.expired_segments, figures=figures)


def by(
    version: str = KAFKA,
    sizes: Sizes | None = None,
    *,
    start: Callable[[], Engine] = LocalPasses,
    include_active: bool = False,
) -> Way:
    """By the rules of a version of Kafka, and by an engine, which otherwise runs in this process."""

    def clean(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
        request = request_for(log_dir, now_ms, topics, include_active=include_active, kafka_version=version)
        return outcomes(clean_logs(start, request, sizes=sizes).logs), log_dir

    return clean


def on_spark(session: SparkSession | None = None, sizes: Sizes | None = None, version: str = KAFKA) -> Way:
    """As Spark jobs, in a session of its own if none is given."""
    from compaction.engines.spark import SparkEngine
    from compaction.engines.spark_session import build_session

    session = session or build_session("tests", extra={"spark.master": "local[2]", "spark.ui.enabled": "false"})
    context = session.sparkContext
    return by(version, sizes, start=lambda: SparkEngine(context))


in_place = by()
#: with shards, slices and parts so small that most logs need several of each
in_many_tasks = by(sizes=Sizes(600, 2_000, 5))


def after_a_dry_run(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
    """A dry run first, which changes nothing and reports what the run then does."""
    before = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    promised = clean_locally(log_dir, now_ms, topics, dry_run=True)
    assert {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()} == before
    done = clean_locally(log_dir, now_ms, topics)
    assert {name: _figures(each) for name, each in promised.items()} == {name: _figures(each) for name, each in done.items()}
    return outcomes(done.values()), log_dir


def _figures(report: LogReport) -> tuple[object, ...]:
    records = report.records_before, report.records_after
    return report.status, report.end_offset, *records, report.bytes_before, report.bytes_after


def in_copies(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
    """Each round makes a copy, and the next one continues that."""
    copy = log_dir.with_name(f"{log_dir.name}-copy")
    request = request_for(log_dir, now_ms, topics, output_dir=str(copy))
    return outcomes(clean_logs(LocalPasses, request).logs), copy


def expire_in_place(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
    """The delete policy only, after a dry run of it."""
    request = request_for(log_dir, now_ms, topics)
    promised = delete_old_segments(LocalPasses, replace(request, dry_run=True)).logs
    done = delete_old_segments(LocalPasses, request).logs
    assert [log.expired_segments for log in promised] == [log.expired_segments for log in done]
    return outcomes(done, compacted=False), log_dir


def expire_in_copies(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
    """The delete policy only, into a copy."""
    copy = log_dir.with_name(f"{log_dir.name}-copy")
    done = delete_old_segments(LocalPasses, request_for(log_dir, now_ms, topics, output_dir=str(copy))).logs
    return outcomes(done, compacted=False), copy


class _Log:
    """A log between its rounds: its partition directory, and the broker's state."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.partition: Path | None = None
        self.checkpoint: int | None = None
        self.log_start = 0
        self.over = False

    def due(self, now_ms: int) -> int | None:
        """The number of its round at this time."""
        numbers = [number for number, each in enumerate(self.scenario.rounds) if each.now_ms == now_ms]
        return numbers[0] if numbers and not self.over else None


def rounds_of(root: Path, found: Mapping[str, Scenario], way: Way, write: Writer | None = None) -> Iterator[Left]:
    """What each round leaves, in the order of the times of the rounds; a log ends when its cleaner refuses it.

    Each run has a directory of its own under ``root``, with the logs that have a round at that time. One has been shut down
    cleanly or not, so there are up to three.
    """
    logs = {name: _Log(scenario) for name, scenario in found.items()}
    for now_ms in sorted({each.now_ms for scenario in found.values() for each in scenario.rounds}):
        due = {name: number for name, log in logs.items() if (number := log.due(now_ms)) is not None}
        runs: dict[Shutdown, Path] = {}
        written: dict[Shutdown, dict[str, int]] = defaultdict(dict)
        for name, number in due.items():
            log = logs[name]
            partition = root / f"{name}-0"
            if log.partition is not None and log.partition != partition:
                log.partition.rename(partition)
            partition.mkdir(parents=True, exist_ok=True)
            shutdown, point = (write or files)(partition, log.scenario, number)
            log_dir = runs.setdefault(shutdown, root / f"{now_ms}-{shutdown.value}" / "logs")
            log_dir.mkdir(parents=True, exist_ok=True)
            log.partition = partition.rename(log_dir / partition.name)
            written[shutdown][name] = point
        for shutdown, points in written.items():
            yield from _round(runs[shutdown], {name: logs[name] for name in points}, now_ms, way, shutdown, points)


def _round(
    log_dir: Path, logs: Mapping[str, _Log], now_ms: int, way: Way, shutdown: Shutdown, points: Mapping[str, int]
) -> Iterator[Left]:
    numbers = {name: log.due(now_ms) or 0 for name, log in logs.items()}
    states = {name: log.scenario.rounds[numbers[name]] for name, log in logs.items()}
    for name, log in logs.items():
        log.checkpoint = log.checkpoint if states[name].checkpoint == KNOWN else states[name].checkpoint
        log.log_start = max(log.log_start, states[name].log_start)
    marks = {
        name: None if (mark := each.high_watermark) is None else max(mark, logs[name].log_start)
        for name, each in states.items()
    }
    write_offsets(
        log_dir,
        log_starts={name: log.log_start or None for name, log in logs.items()},
        high_watermarks=marks,
        cleaner_offsets={name: log.checkpoint for name, log in logs.items()},
    )
    if shutdown is Shutdown.KILLED:
        write_offsets(log_dir, recovery_points=points)
    if shutdown is Shutdown.CLEAN:
        (log_dir / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":-1}', encoding="utf-8")
    cleaned, after = way(log_dir, now_ms, {name: log.scenario.topic_config for name, log in logs.items()})
    starts, checkpoints = (offsets_of(after, name) for name in ("log_starts", "cleaner_offsets"))
    for name, log in logs.items():
        log.partition, log.log_start, log.checkpoint = after / f"{name}-0", starts.get(name, 0), checkpoints.get(name)
        log.over = bool(cleaned[name].refused)
        answer = answer_of(log.partition, cleaned[name], log.log_start)
        yield Left(name, numbers[name], cleaned[name], answer, log.partition)


def offsets_of(log_dir: Path, name: str) -> dict[str, int]:
    """The entries of a checkpoint file by topic; none if there is no file."""
    return read_offsets(log_dir, name) if (log_dir / OFFSET_FILES[name]).exists() else {}


def files(partition: Path, scenario: Scenario, number: int) -> tuple[Shutdown, int]:
    """Writes the segments that are appended before a round, and no file beside them: the first offset of each is the end of
    the log."""
    state = scenario.rounds[number]
    for at, segment in enumerate(state.segments):
        base = end_of(partition)
        file = partition / f"{base:020d}.log"
        file.write_bytes(b"".join(segment))
        mtime_ms = state.mtimes.get(at, MTIME)
        os.utime(file, ns=(mtime_ms * 10**6,) * 2)
    return Shutdown.UNKNOWN, 0


def end_of(partition: Path) -> int:
    """The offset after the last batch; that of an empty log is 0."""
    last = max(partition.glob("*.log"), default=None)
    if last is None:
        return 0
    return max((batch.next_offset for batch in decode(last.read_bytes())), default=int(last.stem))


_INDEXES = (".index", ".timeindex", ".txnindex")


def answer_of(partition: Path, outcome: Outcome, log_start: int) -> list[str]:
    """A partition directory after a round. The segments of a log that was left as it is are not repeated."""
    end, deleted, refused, _ = outcome
    if refused:
        return ["refused"]
    lines = [f"deleted {deleted}, log start {log_start}"] if deleted else []
    lines.append("skipped" if end is None else f"cleaned to {end}")
    segments = (_segment(path) for path in sorted(partition.glob("*.log")))
    return [*lines, *(segments if deleted or end is not None else ())]


def _segment(path: Path) -> str:
    batches = list(decode(path.read_bytes()))
    # a new segment has the time at which the program ran
    shown = f"{' '.join(map(_batch, batches))} | {_digest(path, batches)}" if batches else "empty"
    return f"{int(path.stem)}: {shown}"


def _batch(batch: NaiveBatch) -> str:
    if batch.control:
        marker = {0: "abort", 1: "commit"}.get(batch.control_type() or 0, "control")
        return f"{marker}.{batch.producer_id}@{batch.last_offset}"
    return ",".join(map(_record, batch.records())) or f"({batch.last_offset})"


def _record(record: NaiveRecord) -> str:
    key = record.key
    if key is None:
        shown = "."
    elif len(key) == 1 and key.isalpha():
        shown = key.decode().upper() if record.value is None else key.decode()
    else:
        shown = f"0x{key[:4].hex()}{'…' if len(key) > 4 else ''}" if key else '""'
        shown += "@"
    return f"{shown}{record.offset}"


def _digest(path: Path, batches: list[NaiveBatch]) -> str:
    """Of the bytes of a segment's files; if batches are compressed, of their decoded content, and not of what depends on its
    length."""
    digest = sha256(str(path.stat().st_mtime_ns // 10**6).encode())
    compressed = any(batch.codec for batch in batches)
    for batch in batches:
        for part in _content(batch) if compressed else [batch.raw]:
            digest.update(part)
    for suffix in (".txnindex",) if compressed else _INDEXES:
        file = path.with_suffix(suffix)
        # Kafka creates an index of an active segment when it first needs it
        digest.update(suffix.encode() + (file.read_bytes() if file.exists() else b""))
    return digest.hexdigest()[:8]


def _content(batch: NaiveBatch) -> Iterator[bytes]:
    fields = [
        *(batch.attributes, batch.base_offset, batch.last_offset, batch.base_timestamp, batch.max_timestamp),
        *(batch.leader_epoch, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.count),
    ]
    yield struct.pack(f">{len(fields)}q", *fields)
    yield repr(batch.records()).encode()
