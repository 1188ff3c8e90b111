"""The plain cleaner of ``tests/oracle`` as a way to clean scenarios.

It decides by itself what is cleaned (Kafka 4.4.0: ``LogCleanerManager``), and knows producers from what was appended. It
neither deletes segments nor limits the size of records, and knows no broker but one that wrote the batches as they are and was
shut down.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from compaction.config.entries import MAX_RECORD
from tests.local_job import KAFKA, TopicConfigs, write_offsets
from tests.oracle.cleaner import NaiveResult, NaiveRound, clean_log_naively, rules_in
from tests.oracle.disk import read_partition, write_partition, write_producers
from tests.oracle.records import KafkaRefuses, decode
from tests.oracle.segments import NaiveSegment, write_segment
from tests.oracle.txns import NaiveProducers
from tests.scenarios.language import Scenario
from tests.scenarios.runner import Outcome, Outcomes, Shutdown, Way, files, offsets_of

_LONG_MAX = 2**63 - 1
_BOUNDS = {
    "segment_bytes": "internal.segment.bytes",
    "segment_index_bytes": "segment.index.bytes",
    "index_interval_bytes": "index.interval.bytes",
    "delete_retention_ms": "delete.retention.ms",
}


def is_plain(scenario: Scenario) -> bool:
    """Whether the plain cleaner knows all rules of the scenario."""
    return not scenario.deletes and MAX_RECORD not in scenario.config


class PlainLog(NamedTuple):
    """A log before a round, its producers, and what a broker's checkpoints have of it."""

    segments: list[NaiveSegment]
    producers: NaiveProducers
    config: Mapping[str, str]
    now_ms: int
    start: int
    high_watermark: int | None
    checkpoint: int | None
    include_active: bool = False

    @property
    def end(self) -> int:
        return self.segments[-1].next_offset

    @property
    def first_dirty(self) -> int:
        known = self.checkpoint is not None and self.start <= self.checkpoint <= self.end
        return self.checkpoint if known and self.checkpoint is not None else self.start

    @property
    def cleanable(self) -> list[NaiveSegment]:
        """The segments that are not active."""
        return self.segments if self.include_active and self.segments[-1].log else self.segments[:-1]

    def first_uncleanable(self) -> int:
        """The base of the segment that holds the lowest bound."""
        mark = self.end if self.high_watermark is None else self.high_watermark
        unstable = self.producers.first_unstable_offset(mark)
        active = self.end if self.cleanable is self.segments else self.segments[-1].base_offset
        lag_ms = int(self.config.get("min.compaction.lag.ms", "0"))
        young = [each.base_offset for each in self._dirty() if lag_ms and _largest_time(each) > self.now_ms - lag_ms]
        bound = max(min([active, mark, *([] if unstable is None else [unstable]), *young[:1]]), self.first_dirty)
        bases = [each.base_offset for each in self.segments] + [self.end] * (self.cleanable is self.segments)
        return max(base for base in bases if base <= bound)

    def _dirty(self) -> list[NaiveSegment]:
        """The inactive segments from the one with the first dirty offset on."""
        floor = max((each.base_offset for each in self.segments if each.base_offset <= self.first_dirty), default=0)
        return [each for each in self.cleanable if each.base_offset >= floor]

    def is_due(self) -> bool:
        """Whether the log is cleaned in this round."""
        end = self.first_uncleanable()
        clean = sum(len(each.log) for each in self.segments if each.base_offset < self.first_dirty)
        chosen = [each for each in self._dirty() if each.base_offset < end] if self.first_dirty < end else []
        dirty = sum(len(each.log) for each in chosen)
        times = [each.batches[0].max_timestamp for each in self._dirty() if each.batches]
        oldest = min([time for time in times if time > 0], default=_LONG_MAX)
        overdue = oldest < self.now_ms - int(self.config.get("max.compaction.lag.ms", _LONG_MAX))
        ratio = dirty / max(clean + dirty, 1)
        return dirty > 0 and (overdue or ratio > float(self.config["min.cleanable.dirty.ratio"]))

    def clean(self, version: str) -> NaiveResult:
        """:raises KafkaRefuses: if Kafka's cleaner throws"""
        given = {name: int(self.config[key]) for name, key in _BOUNDS.items() if key in self.config}
        end, rules = self.first_uncleanable(), rules_in(version)
        oldest_ms = self.now_ms - rules.producer_expiration_ms
        active = tuple(each for each in self.producers.entries.values() if each.last_timestamp_ms > oldest_ms)
        round_ = NaiveRound(self.first_dirty, end, self.now_ms, self.start, active, rules, self.high_watermark, **given)
        return clean_log_naively(self.segments, round_)


def _largest_time(segment: NaiveSegment) -> int:
    largest = max((batch.max_timestamp for batch in segment.batches), default=-1)
    return largest if largest >= 0 else segment.mtime_ms


def plainly(found: Mapping[str, Scenario], version: str = KAFKA, *, include_active: bool = False) -> Way:
    """By the plain cleaner and the rules of a version of Kafka."""

    def clean(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
        starts, marks, ends = (offsets_of(log_dir, file) for file in ("log_starts", "high_watermarks", "cleaner_offsets"))
        cleaned = dict[str, Outcome]()
        for name, config in topics.items():
            partition = log_dir / f"{name}-0"
            segments, producers = _read(partition, found[name], now_ms, int(config.get("index.interval.bytes", "4096")))
            state = starts.get(name, 0), marks.get(name), ends.get(name)
            log = PlainLog(segments, producers, config, now_ms, *state, include_active)
            cleaned[name] = Outcome(None)
            if log.checkpoint is not None:
                ends[name] = log.first_dirty
            try:
                if log.is_due():
                    result = log.clean(version)
                    segments, ends[name] = result.segments, result.end_offset
                    offsets = {"first_dirty_offset": log.first_dirty, "end_offset": result.end_offset}
                    cleaned[name] = Outcome(result.end_offset, figures={**result.figures, **offsets})
                _write_anew(partition, segments)
            except KafkaRefuses as refusal:
                cleaned[name] = Outcome(None, refused=str(refusal))
        write_offsets(log_dir, cleaner_offsets=ends)
        return cleaned, log_dir

    return clean


def _read(partition: Path, scenario: Scenario, now_ms: int, interval: int) -> tuple[list[NaiveSegment], NaiveProducers]:
    """The segments, with the indexes that they lack, and the producers after all that was appended."""
    producers = NaiveProducers()
    for each in scenario.rounds:
        for segment in each.segments if each.now_ms <= now_ms else ():
            for batch in decode(b"".join(segment)):
                producers.append(batch)
    segments = [
        each if (partition / f"{each.base_offset:020d}.index").exists() else _indexed(each, producers, interval)
        for each in read_partition(partition)
    ]
    if (partition / f"{segments[-1].next_offset:020d}.snapshot").exists():
        # which does not say how transactions ended
        producers.ended = []
    return segments, producers


def as_broker(partition: Path, scenario: Scenario, number: int) -> tuple[Shutdown, int]:
    """A ``Writer``: a log with the files of a broker that was shut down, which needs no recovery."""
    files(partition, scenario, number)
    config, now_ms = scenario.topic_config, scenario.rounds[number].now_ms
    segments, producers = _read(partition, scenario, now_ms, int(config.get("index.interval.bytes", "4096")))
    _write_anew(partition, segments)
    for file in partition.glob("*.snapshot"):
        file.unlink()
    write_producers(partition, segments[-1].next_offset, sorted(producers.entries.values()))
    return Shutdown.CLEAN, 0


def _indexed(segment: NaiveSegment, producers: NaiveProducers, interval: int) -> NaiveSegment:
    base, raws = segment.base_offset, [batch.raw for batch in segment.batches]
    if segment.next_offset - base > 1 << 31:
        # Kafka rolls when a batch is too far from the base offset
        base = segment.batches[0].base_offset
    aborted = [txn for txn in producers.aborted if base <= txn.last_offset < segment.next_offset]
    return write_segment(base, raws, interval, segment.mtime_ms, aborted)


def _write_anew(partition: Path, segments: list[NaiveSegment]) -> None:
    """Writes every segment's files in place of those that are there."""
    for kind in ("log", "index", "timeindex", "txnindex"):
        for file in partition.glob(f"*.{kind}"):
            file.unlink()
    write_partition(partition, segments)
