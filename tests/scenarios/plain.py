"""The plain cleaner of ``tests/oracle`` as a way to clean scenarios: up to the offset that Kafka's answer says."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.rules.log_view import AbortedTxn
from tests.kafka.encode import ABORT
from tests.local_job import TopicConfigs
from tests.oracle.cleaner import NaiveConfig, NaiveRound, after_round, clean_log_naively
from tests.oracle.disk import write_partition
from tests.oracle.records import KafkaRefuses, NaiveBatch, decode
from tests.oracle.segments import NaiveSegment, write_segment
from tests.scenarios.answers import Outcome
from tests.scenarios.language import KNOWN, MTIME, Scenario
from tests.scenarios.runner import Outcomes, Way
from tests.scenarios.writer import DAY

_INT_MAX = 2**31 - 1
_BOUNDS = {
    "segment_bytes": "internal.segment.bytes",
    "segment_index_bytes": "segment.index.bytes",
    "index_interval_bytes": "index.interval.bytes",
    "delete_retention_ms": "delete.retention.ms",
}


@dataclass
class PlainLog:
    """A log between the rounds, and the state of its producers."""

    scenario: Scenario
    checkpoint: int | None = None
    segments: list[NaiveSegment] = field(default_factory=list)
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    open_txns: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.segments[-1].next_offset if self.segments else 0

    @property
    def config(self) -> NaiveConfig:
        given = {name: self.scenario.config[key] for name, key in _BOUNDS.items() if key in self.scenario.config}
        return NaiveConfig(**{name: int(value) for name, value in given.items()})

    def append(self, number: int) -> None:
        """The segments before a round."""
        state = self.scenario.rounds[number]
        for at, segment in enumerate(state.segments):
            batches, aborted = list(decode(b"".join(segment))), list[AbortedTxn]()
            for batch in batches:
                aborted += self._note(batch)
            base, interval = self.end, self.config.index_interval_bytes
            if batches and batches[-1].last_offset - base > _INT_MAX:
                # Kafka rolls when a batch is too far from the base offset
                base = batches[0].base_offset
            mtime_ms = state.mtimes.get(at, MTIME)
            self.segments.append(write_segment(base, [batch.raw for batch in batches], interval, mtime_ms, aborted))

    def _note(self, batch: NaiveBatch) -> list[AbortedTxn]:
        """The state of the batch's producer; the entry of a transaction that it aborts."""
        producer = batch.producer_id
        if producer < 0:
            return []
        if not batch.control:
            if batch.transactional:
                self.open_txns.setdefault(producer, batch.base_offset)
            delta, first = batch.last_offset - batch.base_offset, self.open_txns.get(producer, -1)
            last = batch.base_sequence + delta
            self.producers[producer] = ProducerEntry(
                producer, batch.producer_epoch, last, batch.last_offset, delta, batch.max_timestamp, -1, first
            )
            return []
        first, before = self.open_txns.pop(producer, -1), self.producers.get(producer)
        if before is None or before.producer_epoch != batch.producer_epoch:
            before = ProducerEntry(producer, batch.producer_epoch, -1, -1, 0, -1, 0, -1)
        self.producers[producer] = before._replace(last_timestamp_ms=batch.max_timestamp)
        if batch.control_type() != ABORT or first < 0:
            return []
        last_stable = min(self.open_txns.values(), default=batch.next_offset)
        return [AbortedTxn(producer, first, batch.last_offset, last_stable)]

    def clean(self, number: int, end: int) -> None:
        """One round."""
        state = self.scenario.rounds[number]
        start, now_ms = state.log_start, state.now_ms
        if state.checkpoint != KNOWN:
            self.checkpoint = state.checkpoint
        known = self.checkpoint is not None and start <= self.checkpoint <= self.end
        first_dirty = self.checkpoint if known and self.checkpoint is not None else start
        active = tuple(entry for entry in self.producers.values() if now_ms - entry.last_timestamp_ms < DAY)
        round_ = NaiveRound(first_dirty, end, now_ms, start, active, high_watermark=state.high_watermark)
        result = clean_log_naively(self.segments, self.config, round_)
        assert result.end_offset == end
        self.segments, self.checkpoint = after_round(self.segments, result), end

    def refusal(self, number: int) -> str:
        """Why a round cannot be carried out; empty if it can."""
        try:
            self.clean(number, self.segments[-1].base_offset)
        except KafkaRefuses as refusal:
            return str(refusal)
        return ""


def plainly(found: Mapping[str, Scenario]) -> Way:
    """By the plain cleaner."""
    logs = {name: PlainLog(scenario) for name, scenario in found.items()}

    def clean(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
        cleaned = dict[str, Outcome]()
        for name in topics:
            log = logs[name]
            number = [each.now_ms for each in found[name].rounds].index(now_ms)
            state = found[name].answers[number][0]
            log.append(number)
            if state == "refused":
                # before the end of the round is known
                cleaned[name] = Outcome(None, refused=log.refusal(number))
            elif state == "skipped":
                cleaned[name] = Outcome(None)
            else:
                cleaned[name] = Outcome(end := int(state.rpartition(" ")[2]))
                log.clean(number, end)
            shutil.rmtree(log_dir / f"{name}-0")
            write_partition(log_dir / f"{name}-0", log.segments)
        return cleaned, log_dir

    return clean
