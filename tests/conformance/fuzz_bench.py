"""The fuzzer's bench: many stories at once. A round cleans all of them: by the job in one run, by Kafka one by one.

Kafka writes the logs, always the reference version, and a judge of any version cleans them. Before a round the job's directory
becomes a copy of Kafka's; after it both must be the same log, and ``verify`` must accept it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JJavaError

from compaction.certifier.certificate import Status
from compaction.names import TopicPartition
from compaction.report import LogReport, LogStatus
from tests.certifier.certify import certify_copy
from tests.conformance.compare import differences
from tests.conformance.stories import ROUND_TIMES, NewSegment, Story, Turn
from tests.kafka.cleaner import CleanResult, Selected, clean_partition_if_due
from tests.kafka.gateway import Gateway, shared_gateway, unconverted_errors
from tests.kafka.log import LONG_MAX, KafkaLog, Opening, expire_partition
from tests.local_job import TopicConfigs, read_offsets, write_offsets
from tests.oracle.records import decode

#: cleans a log directory as of a time with these topic configurations, returns reports by topic
OurJob = Callable[[Path, int, TopicConfigs], Mapping[str, LogReport]]
#: segments are written with limits at which they never roll
_WRITING = {"internal.segment.bytes": str(1 << 30), "segment.index.bytes": str(10 << 20), "cleanup.policy": "delete"}
_MAP_BYTES = 1 << 19
#: an append ignores batches of a later leader epoch than its own
_ANY_LEADER_EPOCH = 1 << 30


@dataclass
class Progress:
    """The state of one story: the end of its last cleaned round, the log start as moved by deletion, the recovery point of a
    killed broker, whether the story has ended, and its problems."""

    story: Story
    end_offset: int | None = None
    log_start: int = 0
    recovery_point: int = 0
    over: bool = False
    cleaned: int = 0
    refused: int = 0
    expired: int = 0
    problems: list[str] = field(default_factory=list)

    def opening(self, turn: Turn) -> Opening:
        """The options with which Kafka opens the log in this round."""
        start = max(turn.log_start_offset, self.log_start)
        high = None if turn.high_watermark is None else max(turn.high_watermark, start)
        return Opening(turn.now_ms, self.story.topic_config, start, high)


#: Kafka's cleaner gives up a log if an index of an output needs more entries than its limit; the job writes that index
_FULL_INDEX = "Attempt to append to a full"


class _Ours(NamedTuple):
    """The job's result for a log: its report, and its entries in the checkpoint files."""

    report: LogReport
    end: int | None
    log_start: int


class FuzzBench:
    """Stories laid out twice under ``root``: ``ours`` and ``kafkas`` are log directories. ``gateway`` is the judge."""

    def __init__(
        self, gateway: Gateway, root: Path, stories: Sequence[Story], job: OurJob, *, include_active: bool = False
    ) -> None:
        self._gateway, self._writer, self._job, self._include_active = gateway, shared_gateway(), job, include_active
        self._ours, self._kafkas, self._before = root / "ours", root / "kafkas", root / "before"
        self._progress = {story.name: Progress(story) for story in stories}
        self._ours.mkdir()
        self._kafkas.mkdir()

    def run(self) -> dict[str, Progress]:
        """All rounds; a story ends at its first problem."""
        for at in range(len(ROUND_TIMES)):
            turns = {
                name: turn
                for name, each in self._progress.items()
                for turn in each.story.turns
                if turn.at == at and not each.over
            }
            for killed in (False, True):
                # whether a broker was killed holds for a complete log directory
                some = {name: turn for name, turn in turns.items() if self._was_killed(turn) is killed}
                if some:
                    self._round(ROUND_TIMES[at], some)
        return self._progress

    def _round(self, now_ms: int, turns: Mapping[str, Turn]) -> None:
        shutil.rmtree(self._ours)
        self._ours.mkdir()
        for name, turn in turns.items():
            if turn.segments:
                self._append(self._progress[name].story, turn)
            _lose(self._kafkas / f"{name}-0", turn.lost)
            if turn.replays:
                for newest in sorted((self._kafkas / f"{name}-0").glob("*.snapshot"))[-1:]:
                    newest.unlink()
            shutil.copytree(self._kafkas / f"{name}-0", self._ours / f"{name}-0")
        checkpoints = {name: self._checkpoint(name, turn) for name, turn in turns.items()}
        openings = {name: self._progress[name].opening(turn) for name, turn in turns.items()}
        write_offsets(
            self._ours,
            cleaner_offsets=checkpoints,
            log_starts={name: opening.log_start_offset or None for name, opening in openings.items()},
            high_watermarks={name: opening.high_watermark for name, opening in openings.items()},
        )
        points = {name: self._progress[name].recovery_point for name, turn in turns.items() if self._was_killed(turn)}
        if points:
            write_offsets(self._ours, recovery_points=points)
        topics = {name: self._progress[name].story.topic_config for name in turns}
        shutil.copytree(self._ours, self._before)
        reports = self._job(self._ours, now_ms, topics)
        refuted = self._refuted(now_ms, topics)
        shutil.rmtree(self._before)
        ends, starts = (read_offsets(self._ours, file) for file in ("cleaner_offsets", "log_starts"))
        for name, turn in turns.items():
            ours = _Ours(reports[name], ends.get(name), starts.get(name, 0))
            for problem in (*self._judge(name, turn, checkpoints[name], ours), *refuted.get(name, ())):
                self._progress[name].problems.append(f"round {turn.at}: {problem}")
                self._progress[name].over = True

    def _refuted(self, now_ms: int, topics: TopicConfigs) -> dict[str, list[str]]:
        """What ``verify`` rejects. Logs whose checkpoint is past what was cleaned are left out: it names what they lose."""
        logs = frozenset(TopicPartition(name, 0) for name in topics if self._progress[name].story.knows_what_was_cleaned)
        options = {"logs": logs, "kafka_version": self._gateway.version, "include_active": self._include_active}
        found = certify_copy(self._before, self._ours, now_ms, topics, **options).logs if logs else ()
        return {log.topic: [f"verify: {log}"] for log in found if log.status is not Status.HOLDS}

    def _checkpoint(self, name: str, turn: Turn) -> int | None:
        return self._progress[name].end_offset if isinstance(turn.checkpoint, str) else turn.checkpoint

    def _append(self, story: Story, turn: Turn) -> None:
        path = self._kafkas / f"{story.name}-0"
        new = path.exists()
        log = KafkaLog(self._writer, path, Opening(turn.now_ms, {**story.topic_config, **_WRITING}))
        self._progress[story.name].recovery_point = log.end_offset
        for segment in turn.segments:
            if new:
                log.roll()
            new = True
            self._write(log, segment, story)
        if self._was_killed(turn):
            log.abandon()
        else:
            log.close()
        # a segment that remains empty has the base offset of the next one, so there may be fewer files than segments
        newest = sorted(path.glob("*.log"))[-len(turn.segments) :]
        for file, segment in zip(newest, turn.segments[-len(newest) :], strict=True):
            os.utime(file, ns=(segment.mtime_ms * 10**6,) * 2)

    def _was_killed(self, turn: Turn) -> bool:
        # if segments are rolled first, Kafka starts twice, and recovers only the first time
        return turn.was_killed and not self._include_active

    def _roll(self, path: Path, opening: Opening) -> int | None:
        """Rolls the last segment, without changing its modification time; returns the base offset of the new, empty one."""
        last = max(path.glob("*.log"))
        if not last.stat().st_size:
            return None
        mtime_ns = last.stat().st_mtime_ns
        with KafkaLog(self._gateway, path, opening) as log:
            log.roll()
            end_offset = log.end_offset
        os.utime(last, ns=(mtime_ns, mtime_ns))
        return end_offset

    def _write(self, log: KafkaLog, segment: NewSegment, story: Story) -> None:
        if not story.as_leader:
            if segment.batches:
                log.append(b"".join(segment.batches), leader_epoch=_ANY_LEADER_EPOCH)
                (last,) = decode(segment.batches[-1])
                if log.end_offset != last.next_offset:
                    raise AssertionError(f"the log ends at {log.end_offset}, not at {last.next_offset}")
            return
        for stored in segment.batches:
            # a producer's batch begins at offset 0: a leader that compresses makes data of a control batch with another offset
            batch = bytes(8) + stored[8:]
            control = batch[22] & 0x20
            try:
                with unconverted_errors():
                    log.append_as_leader(batch, origin="COORDINATOR" if control else "CLIENT")
            except Py4JJavaError:
                # a leader would not have accepted every batch that a follower appends
                continue

    def _expire(self, name: str, opening: Opening, ours: _Ours) -> Iterator[str]:
        """Kafka's segment deletion, which runs first and moves the log start."""
        progress = self._progress[name]
        expired = expire_partition(self._gateway, self._kafkas / f"{name}-0", opening)
        progress.log_start = expired.log_start_offset
        _same_age_where_empty(self._kafkas / f"{name}-0", self._ours / f"{name}-0")
        progress.expired += expired.segments_deleted
        if ours.report.expired_segments != expired.segments_deleted:
            yield f"{ours.report.expired_segments} segments expired, Kafka's {expired.segments_deleted}"
        if ours.log_start != expired.log_start_offset:
            yield f"log start {ours.log_start}, Kafka's {expired.log_start_offset}"

    def _judge(self, name: str, turn: Turn, checkpoint: int | None, ours: _Ours) -> Iterator[str]:
        progress, theirs = self._progress[name], self._kafkas / f"{name}-0"
        story, report = progress.story, ours.report
        before = _contents(theirs)
        opening = progress.opening(turn)
        expiry: list[str] = []
        if story.deletes:
            expiry = list(self._expire(name, opening, ours))
            opening = replace(opening, log_start_offset=progress.log_start)
        if self._was_killed(turn):
            opening = replace(opening, clean_shutdown=False, recovery_point=progress.recovery_point)
        rolled = self._roll(theirs, opening) if self._include_active else None
        try:
            with unconverted_errors():
                outcome = clean_partition_if_due(self._gateway, theirs, opening, checkpoint, _MAP_BYTES)
        except Py4JJavaError as refusal:
            progress.over, progress.refused = True, 1
            if _FULL_INDEX in _message(refusal):
                yield from expiry
                return
            # a broker deletes segments before it fails to clean the log, which the job does not change at all
            if report.status is not LogStatus.FAILED:
                yield from expiry
                yield f"Kafka refuses ({_message(refusal)}), the job: {report.status.value}, {report.reason}"
            if _contents(self._ours / f"{name}-0") != before:
                yield "Kafka refuses, and the job changed the log"
            return
        yield from expiry
        if rolled is not None:
            _remove_segment(theirs, rolled)
            for made in theirs.glob(f"{rolled:020d}.snapshot"):
                shutil.copy2(made, self._ours / f"{name}-0")
        for side in (self._ours / f"{name}-0", theirs):
            forget_snapshots(side, opening.log_start_offset)
        if any(each.lost for each in story.turns) or (turn.replays and self._gateway.release < (3,)):
            # when Kafka rebuilds an index it replays producers: it removes snapshots and writes others; 2.8 also without one
            forget_snapshots(self._ours / f"{name}-0")
            forget_snapshots(theirs)
        if self._was_killed(turn):
            forget_active_indexes(self._ours / f"{name}-0", theirs)
        yield from differences(self._gateway, self._ours / f"{name}-0", theirs, int(story.config["index.interval.bytes"]))
        if isinstance(outcome, CleanResult):
            progress.cleaned += 1
            progress.end_offset = outcome.end_offset
            yield from _figures(outcome, report)
            if ours.end != outcome.end_offset:
                yield f"cleaner checkpoint {ours.end}, Kafka's {outcome.end_offset}"
            return
        if report.status is not LogStatus.SKIPPED:
            yield f"Kafka would not clean it, the job: {report.status.value}, {report.reason}"
        yield from _skipped(outcome, checkpoint, ours.end)


def _skipped(outcome: Selected, checkpoint: int | None, our_end: int | None) -> Iterator[str]:
    expected = outcome.first_dirty_offset if outcome.force_update_checkpoint else checkpoint
    if our_end != expected:
        yield f"cleaner checkpoint {our_end} of a log that is not cleaned, expected {expected}"


def _figures(outcome: CleanResult, report: LogReport) -> Iterator[str]:
    if report.status is not LogStatus.CLEANED:
        yield f"Kafka cleaned it, the job: {report.status.value}, {report.reason}"
        return
    stats = outcome.stats
    theirs = {
        "first_dirty_offset": outcome.selected.first_dirty_offset,
        "end_offset": outcome.end_offset,
        "records_before": stats.messages_read,
        "records_after": stats.messages_written,
        "bytes_before": stats.bytes_read,
        "invalid_records": stats.invalid_messages_read,
    }
    for name, value in theirs.items():
        if getattr(report, name) != value:
            yield f"{name} {getattr(report, name)}, Kafka's {value}"


def _same_age_where_empty(partition: Path, other: Path) -> None:
    """If everything expired, each side has just created an empty segment."""
    last = max(partition.glob("*.log"))
    if not last.stat().st_size and (other / last.name).exists():
        mtime_ns = last.stat().st_mtime_ns
        os.utime(other / last.name, ns=(mtime_ns, mtime_ns))


def _remove_segment(partition: Path, base_offset: int) -> None:
    for kind in (".log", ".index", ".timeindex"):
        (partition / f"{base_offset:020d}{kind}").unlink(missing_ok=True)


def _lose(partition: Path, lost: Sequence[str]) -> None:
    closed = sorted(partition.glob("*.log"))[:-1]
    for name in lost if closed else ():
        place, kind = name.split(".")
        closed[int(place) % len(closed)].with_suffix(f".{kind}").unlink(missing_ok=True)


def forget_active_indexes(*partitions: Path) -> None:
    """After a kill indexes are preallocated; how much of that the next start truncates does not depend on cleaning."""
    for partition in partitions:
        active = max(partition.glob("*.log"))
        for kind in (".index", ".timeindex"):
            active.with_suffix(kind).unlink(missing_ok=True)


def forget_snapshots(partition: Path, log_start_offset: int = LONG_MAX) -> None:
    """Removes snapshots up to the log start, as Kafka does when it loads a log."""
    for file in partition.glob("*.snapshot"):
        if int(file.stem) <= log_start_offset:
            file.unlink()


def _contents(partition: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in partition.iterdir() if file.suffix in (".log", ".index", ".timeindex")}


def _message(error: Py4JJavaError) -> str:
    return str(error.java_exception.toString())
