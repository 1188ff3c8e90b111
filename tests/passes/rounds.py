"""Random logs cleaned by the job, many in one run, beside the plain cleaner: several rounds with the clock moving.

Everything is compared after each round: the names, bytes and modification times of all files, the checkpoint, the figures.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.report import LogReport, LogStatus
from compaction.run.sizing import Sizes
from tests.kafka.jars import REFERENCE
from tests.local_job import clean_locally, read_offsets, write_offsets
from tests.oracle.cleaner import NaiveConfig, NaiveResult, NaiveRound, after_round, clean_log_naively
from tests.oracle.disk import read_partition, write_partition, write_producers
from tests.oracle.records import KafkaRefuses
from tests.oracle.rules import rules_in
from tests.oracle.segments import NaiveSegment

INTERVAL_BYTES = 200


@dataclass
class Case:
    """One log and where it stands. ``ended`` once a round failed, as it has to in both."""

    name: str
    segments: Sequence[NaiveSegment]
    producers: tuple[ProducerEntry, ...]
    last_stable_offset: int
    config: NaiveConfig
    checkpoint: int
    ended: bool = False
    extra: Mapping[str, str] = field(default_factory=dict)

    def end_offset(self) -> int:
        """The base of the segment that holds the first offset that may not be cleaned."""
        bound = max(self.checkpoint, min(self.last_stable_offset, self.segments[-1].base_offset))
        return max(segment.base_offset for segment in self.segments if segment.base_offset <= bound)

    @property
    def topic_config(self) -> dict[str, str]:
        """Topic-level settings for the job."""
        return {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "internal.segment.bytes": str(self.config.segment_bytes),
            "segment.index.bytes": str(self.config.segment_index_bytes),
            "index.interval.bytes": str(self.config.index_interval_bytes),
            "delete.retention.ms": str(self.config.delete_retention_ms),
            **self.extra,
        }


def write_case(log_dir: Path, case: Case, now_ms: int) -> None:
    """Writes the log, with producers as of a round: none has expired."""
    write_partition(log_dir / f"{case.name}-0", case.segments)
    active = (entry._replace(last_timestamp_ms=now_ms) for entry in case.producers)
    write_producers(log_dir / f"{case.name}-0", case.segments[-1].next_offset, active)


def write_logs(log_dir: Path, cases: Iterable[Case], now_ms: int) -> None:
    """Writes the logs of a round, in place of others, and the cleaner checkpoint."""
    shutil.rmtree(log_dir, ignore_errors=True)
    for case in cases:
        write_case(log_dir, case, now_ms)
    write_offsets(log_dir, cleaner_offsets={case.name: case.checkpoint for case in cases})


#: is told of the logs of a round, of which each case still has the source, and of their reports
Check = Callable[[Sequence[Case], int, Mapping[str, LogReport]], None]


def run_round(
    log_dir: Path,
    cases: Sequence[Case],
    now_ms: int,
    sizes: Sizes | None = None,
    version: str = REFERENCE,
    check: Check | None = None,
) -> Iterator[str]:
    """One round over all cases in ``log_dir``, which is written anew, by the rules of a version of Kafka; what differs. The
    cases move on to what came out."""
    alive = [case for case in cases if not case.ended]
    write_logs(log_dir, alive, now_ms)
    topics = {case.name: case.topic_config for case in alive}
    reports = clean_locally(log_dir, now_ms, topics, sizes, kafka_version=version)
    if check is not None:
        check(alive, now_ms, reports)
    checkpoints = read_offsets(log_dir, "cleaner_offsets")
    for case in alive:
        round_ = NaiveRound(
            case.checkpoint, case.end_offset(), now_ms, case.segments[0].base_offset, case.producers, rules_in(version)
        )
        differences = list(_judge(log_dir, case, round_, reports[case.name], checkpoints[case.name]))
        case.ended |= bool(differences)
        yield from (f"{case.name}: {each}" for each in differences)


def _judge(log_dir: Path, case: Case, round_: NaiveRound, report: LogReport, checkpoint: int) -> Iterator[str]:
    path = log_dir / f"{case.name}-0"
    for left in path.glob("*.deleted"):
        left.unlink()
    if report.status is LogStatus.SKIPPED:
        yield from _untouched(path, case)
        return
    try:
        expected = clean_log_naively(case.segments, case.config, round_)
    except KafkaRefuses as refusal:
        case.ended = True
        yield from _untouched(path, case)
        if report.status is not LogStatus.FAILED:
            yield f"Kafka refuses ({refusal}), the job does not"
        return
    if report.status is LogStatus.FAILED:
        yield f"failed: {report.reason}"
        return
    yield from _compare(path, case, expected, report)
    if checkpoint != expected.end_offset:
        yield f"checkpoint {checkpoint}, expected {expected.end_offset}"
    case.segments = read_partition(path)


def _untouched(path: Path, case: Case) -> Iterator[str]:
    if read_partition(path) != list(case.segments):
        yield "was changed"


def _compare(path: Path, case: Case, expected: NaiveResult, report: LogReport) -> Iterator[str]:
    ours, naive = read_partition(path), after_round(case.segments, expected)
    if [each.base_offset for each in ours] != [each.base_offset for each in naive]:
        yield f"segments {[each.base_offset for each in ours]}, expected {[each.base_offset for each in naive]}"
        return
    for mine, theirs in zip(ours, naive, strict=True):
        yield from _compare_segment(mine, theirs)
    figures = {
        "first_dirty_offset": case.checkpoint,
        "end_offset": expected.end_offset,
        "records_before": expected.stats.messages_read,
        "records_after": expected.stats.messages_written,
        "bytes_before": expected.stats.bytes_read,
        "bytes_after": expected.stats.bytes_written,
        "invalid_records": expected.stats.invalid_messages_read,
        "keys": expected.stats.keys,
    }
    for name, value in figures.items():
        if getattr(report, name) != value:
            yield f"{name} {getattr(report, name)}, expected {value}"


def _compare_segment(mine: NaiveSegment, theirs: NaiveSegment) -> Iterator[str]:
    for name in ("log", "index", "time_index", "txn_index", "mtime_ms"):
        if getattr(mine, name) != getattr(theirs, name):
            yield f"{name} of segment {mine.base_offset} differs"
    for one, other in zip(mine.batches, theirs.batches, strict=False):
        if one.raw != other.raw:
            yield f"batch {one} {one.records()}, expected {other} {other.records()}"
            return


def move_on(rng: random.Random, cases: Iterable[Case], expected_ends: Mapping[str, int]) -> None:
    """Some checkpoints move to where the round ended, the others stay, so that what is clean is cleaned again."""
    for case in cases:
        if rng.random() < 0.4 and case.name in expected_ends:
            case.checkpoint = expected_ends[case.name]


def assert_four_rounds_equal(
    log_dir: Path,
    cases: Sequence[Case],
    now_ms: int,
    sizes: Sizes | None = None,
    version: str = REFERENCE,
    check: Check | None = None,
) -> None:
    """Four rounds over all cases, in which the clock and some checkpoints move, give what the plain cleaner leaves."""
    rng = random.Random(cases[0].name)
    for number in range(4):
        found = list(run_round(log_dir, cases, now_ms, sizes, version, check))
        assert not found, f"round {number}: {found[:5]}"
        move_on(rng, cases, read_offsets(log_dir, "cleaner_offsets"))
        now_ms += (0, 1_000, 10**9)[number % 3]
    assert sum(not case.ended for case in cases) > len(cases) / 2
