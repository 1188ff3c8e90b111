"""Lays the logs of scenarios out as plain segment files, and cleans them without Kafka: its answers are in the files.

A ``Way`` is how a round is carried out: the offset up to which each topic was cleaned (``None``: skipped), and the directory
that the next round continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from compaction.engine import Engine
from compaction.names import LOG_STARTS
from compaction.report import LogReport, LogStatus
from compaction.run.compact import clean_logs
from compaction.run.expire import delete_old_segments
from compaction.run.run import Environment
from compaction.run.sizing import Sizes
from tests.local_job import TopicConfigs, clean_locally, read_offsets, request_for, write_offsets
from tests.local_passes import LocalPasses
from tests.oracle.records import decode
from tests.scenarios.answers import Outcome, answer_of
from tests.scenarios.language import MTIME, ROUNDS, Scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Outcomes = Mapping[str, Outcome]
Way = Callable[[Path, int, TopicConfigs], tuple[Outcomes, Path]]


def outcomes(reports: Iterable[LogReport], *, compacted: bool = True) -> Outcomes:
    """Of the logs of a run; one with the delete policy only compacts nothing."""
    found = list(reports)
    failed = {log.topic: log.reason for log in found if log.status is LogStatus.FAILED}
    assert not failed, failed
    ends = {log.topic: log.end_offset for log in found if compacted and log.status is not LogStatus.SKIPPED}
    return {log.topic: Outcome(ends.get(log.topic), log.expired_segments) for log in found}


def in_place(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
    """In this process."""
    return outcomes(clean_locally(log_dir, now_ms, topics).values()), log_dir


def in_many_tasks(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
    """With shards, slices and parts so small that most logs need several of each."""
    return outcomes(clean_locally(log_dir, now_ms, topics, Sizes(600, 2_000, 5)).values()), log_dir


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
    request = replace(request_for(log_dir, now_ms, topics), output_dir=str(copy))
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
    done = delete_old_segments(LocalPasses, replace(request_for(log_dir, now_ms, topics), output_dir=str(copy))).logs
    return outcomes(done, compacted=False), copy


def by(start: Callable[[], Engine], sizes: Sizes | None = None) -> Way:
    """By an engine."""

    def clean(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
        return outcomes(clean_logs(start, request_for(log_dir, now_ms, topics), Environment(sizes=sizes)).logs), log_dir

    return clean


def on_spark(session: SparkSession) -> Way:
    """As Spark jobs."""
    from compaction.engines.spark import SparkEngine

    return by(lambda: SparkEngine(session.sparkContext))


def rounds_of(log_dir: Path, found: Mapping[str, Scenario], way: Way) -> Iterator[tuple[str, int, list[str]]]:
    """The name, the number of the round and the answer of each round, of logs in one directory."""
    for number, now_ms in enumerate(ROUNDS):
        alive = {name: scenario for name, scenario in found.items() if number < len(scenario.rounds)}
        if not alive:
            return
        for name, scenario in alive.items():
            append(log_dir / f"{name}-0", scenario, number)
        if number == 0:
            write_offsets(
                log_dir,
                log_starts={name: scenario.log_start_offset or None for name, scenario in alive.items()},
                high_watermarks={name: scenario.high_watermark for name, scenario in alive.items()},
                cleaner_offsets={name: scenario.checkpoint for name, scenario in alive.items()},
            )
        cleaned, log_dir = way(log_dir, now_ms, {name: scenario.topic_config for name, scenario in alive.items()})
        for name in alive:
            yield name, number, answer_of(log_dir / f"{name}-0", cleaned[name], starts_of(log_dir).get(name, 0))


def starts_of(log_dir: Path) -> dict[str, int]:
    """The log starts of topics."""
    return read_offsets(log_dir, "log_starts") if (log_dir / LOG_STARTS).exists() else {}


def append(partition: Path, scenario: Scenario, number: int) -> None:
    """The segments that are appended before a round: the first offset of each is the end of the log."""
    partition.mkdir(parents=True, exist_ok=True)
    for segment in scenario.rounds[number]:
        base = end_of(partition)
        file = partition / f"{base:020d}.log"
        file.write_bytes(b"".join(segment))
        mtime_ms = scenario.mtimes.get(base, MTIME)
        os.utime(file, ns=(mtime_ms * 10**6,) * 2)


def end_of(partition: Path) -> int:
    """The offset after the last batch; that of an empty log is 0."""
    last = max(partition.glob("*.log"), default=None)
    if last is None:
        return 0
    return max((batch.next_offset for batch in decode(last.read_bytes())), default=int(last.stem))
