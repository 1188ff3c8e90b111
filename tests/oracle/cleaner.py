"""One cleaning round, in plain Python and in Kafka's own order (Kafka 4.4.0: ``Cleaner``, ``MemoryRecords.filterTo``).

``NaiveRules`` has what older versions do differently, read from the source of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.rules.log_view import AbortedTxn
from tests.kafka.encode import CODECS, Legacy
from tests.kafka.jars import REFERENCE
from tests.oracle import compression
from tests.oracle.records import (
    KafkaRefuses,
    NaiveBatch,
    NaiveRecord,
    check_appends,
    encode,
    encode_empty,
    inner_messages,
    legacy_message,
)
from tests.oracle.segments import NaiveSegment, SegmentWriter
from tests.oracle.txns import CleanedTransactions, collect_aborted

_INT_MAX = 2**31 - 1
ALWAYS, NEVER, AT_HIGH_WATERMARK = "always", "never", "at high watermark"


@dataclass(frozen=True)
class NaiveRules:
    """``retains_last``: whether the last batch of a round stays without records. ``producer_expiration_ms`` is the default of
    ``producer.id.expiration.ms``, before that of ``transactional.id.expiration.ms``."""

    by_mtime: bool
    retains_last: str
    keeps_magic: bool
    joins_empty: bool
    producer_expiration_ms: int


def rules_in(release: str) -> NaiveRules:
    """Those of a release, e.g. ``3.9.1``."""
    number = tuple(int(part) for part in release.split("."))
    retains = ALWAYS if number < (4, 4) else AT_HIGH_WATERMARK
    return NaiveRules(
        by_mtime=number < (3, 1),
        retains_last=NEVER if number < (3, 9, 2) else retains,
        keeps_magic=number < (4, 0),
        joins_empty=number >= (3, 0),
        producer_expiration_ms=86_400_000 * (1 if number >= (3, 4) else 7),
    )


NEWEST = rules_in(REFERENCE)


def _java_sum(one: int, other: int) -> int:
    """A sum of two longs: the low 64 bits, signed."""
    return int.from_bytes(((one + other) & (1 << 64) - 1).to_bytes(8, "big"), "big", signed=True)


@dataclass(frozen=True)
class NaiveRound:
    """What is cleaned: offsets in [``first_dirty_offset``, ``first_uncleanable_offset``) enter the map. Settings of the topic
    have their own names. A ``high_watermark`` of ``None`` is the log end."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    now_ms: int
    log_start_offset: int = 0
    producers: tuple[ProducerEntry, ...] = ()
    rules: NaiveRules = NEWEST
    high_watermark: int | None = None
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    delete_retention_ms: int = 86_400_000


class NaiveResult(NamedTuple):
    """The log's segments after the outputs have replaced their sources; the first offset that is not cleaned; the figures of a
    ``LogReport`` that Kafka's ``CleanerStats`` has, and the number of keys mapped."""

    segments: list[NaiveSegment]
    end_offset: int
    figures: Mapping[str, int]


def clean_log_naively(segments: Sequence[NaiveSegment], round_: NaiveRound) -> NaiveResult:
    """Cleans a whole log, given with all of its segments, the active one included.

    :raises KafkaRefuses: if Kafka's cleaner throws
    """
    return _Cleaning(tuple(segments), round_).run()


class _Cleaning:
    def __init__(self, segments: tuple[NaiveSegment, ...], round_: NaiveRound) -> None:
        self.segments = segments
        self.round = round_
        #: Kafka's ``SkimpyOffsetMap``, with keys in place of their hashes
        self.map: dict[bytes, int] = {}
        self.latest_offset = -1
        self.figures = dict.fromkeys(("records_before", "bytes_before", "records_after", "bytes_after", "invalid_records"), 0)
        self.txns = CleanedTransactions()
        self.producers = {entry.producer_id: entry for entry in round_.producers}
        self.rules = round_.rules

    def run(self) -> NaiveResult:
        below_dirty = self._values(0, self.round.first_dirty_offset)
        self.legacy_horizon_ms = 0
        if below_dirty:
            self.legacy_horizon_ms = _java_sum(below_dirty[-1].mtime_ms, -self.round.delete_retention_ms)
        self._build_map()
        end_offset = self.latest_offset + 1
        sources = self._values(0, end_offset)
        outputs = [self._clean_group(group) for group in self._groups(sources)]
        after = [*outputs, *(segment for segment in self.segments if segment not in sources)]
        after.sort(key=lambda segment: segment.base_offset)
        return NaiveResult(after, end_offset, {**self.figures, "keys": len(self.map)})

    def _groups(self, segments: Sequence[NaiveSegment]) -> list[list[NaiveSegment]]:
        """``Cleaner.groupSegmentsBySize``."""
        groups: list[list[NaiveSegment]] = []
        for at, segment in enumerate(segments):
            following = segments[at + 1].base_offset if at + 1 < len(segments) else self.round.first_uncleanable_offset
            in_range = bool(groups) and following - 1 - groups[-1][0].base_offset <= _INT_MAX
            may_join = in_range or (self.rules.joins_empty and not segment.log)
            if groups and self._fits([*groups[-1], segment]) and may_join:
                groups[-1].append(segment)
            else:
                groups.append([segment])
        return groups

    def _fits(self, joined: list[NaiveSegment]) -> bool:
        return (
            sum(len(member.log) for member in joined) <= self.round.segment_bytes
            and sum(len(member.index) for member in joined) <= self.round.segment_index_bytes
            and sum(len(member.time_index) for member in joined) <= self.round.segment_index_bytes
        )

    def _values(self, start: int, end: int) -> list[NaiveSegment]:
        """``LogSegments.values``: from the segment that holds ``start`` to the last one that begins below ``end``."""
        if start == end:
            return []
        floor = max((s.base_offset for s in self.segments if s.base_offset <= start), default=start)
        return [s for s in self.segments if floor <= s.base_offset < end]

    def _aborted(self, start: int, end: int) -> list[AbortedTxn]:
        indexes = [(segment.base_offset, segment.aborted_txns) for segment in self.segments]
        return collect_aborted(indexes, self.round.log_start_offset, start, end)

    def _build_map(self) -> None:
        start, end = self.round.first_dirty_offset, self.round.first_uncleanable_offset
        dirty = self._values(start, end)
        self.latest_offset = end - 1 if dirty else -1
        txns = CleanedTransactions()
        txns.add(self._aborted(start, end))
        for segment in dirty:
            self._map_segment(segment, txns)

    def _map_segment(self, segment: NaiveSegment, txns: CleanedTransactions) -> None:
        start = self.round.first_dirty_offset
        first_position = segment.position_of(start)
        for batch in segment.batches:
            if batch.position < first_position:
                continue
            discarded = txns.on_batch(batch)
            for record in () if batch.control or discarded else batch.records():
                if record.key is not None and record.offset >= start:
                    self.map[record.key] = record.offset

    def _clean_group(self, group: list[NaiveSegment]) -> NaiveSegment:
        writer = SegmentWriter(group[0].base_offset, self.round.index_interval_bytes)
        self.txns.cleaned_index = []
        for at, segment in enumerate(group):
            upper = group[at + 1].base_offset if at + 1 < len(group) else segment.next_offset
            self.txns.add(self._aborted(segment.base_offset, upper))
            # modified after the delete horizon by modification times
            young = segment.mtime_ms > self.legacy_horizon_ms
            for batch in segment.batches:
                self.figures["bytes_before"] += len(batch.raw)
                for raw, largest_offset in self._filter(batch, young):
                    writer.append(raw, largest_offset)
                    self.figures["bytes_after"] += len(raw)
        return writer.close(group[-1].mtime_ms, self.txns.cleaned_index)

    def _filter(self, batch: NaiveBatch, young: bool) -> Iterator[tuple[bytes, int]]:
        """A batch through ``filterTo``: the retained bytes, if any, and the offset for the range check."""
        can_discard = self.txns.on_batch(batch)
        discard = can_discard and (not batch.control or self._may_drop_marker(batch, young))
        retain_empty = self._is_last_record(batch) or self._ends_round(batch)
        if discard and not retain_empty:
            return
        records = batch.records()
        retained = [each for each in records if not discard and (batch.control or self._retains(batch, each, young))]
        self.figures["records_before"] += len(records)
        self.figures["records_after"] += len(retained)
        if retained:
            horizon_due = any(record.value is None for record in retained) or (can_discard and batch.control)
            yield self._kept(batch, retained, len(retained) < len(records), horizon_due)
        elif retain_empty:
            if batch.magic < 2:
                raise KafkaRefuses("an empty batch of magic 0 or 1 would have to stay")
            yield encode_empty(batch), batch.last_offset

    def _may_drop_marker(self, batch: NaiveBatch, young: bool) -> bool:
        horizon = batch.delete_horizon_ms
        return not young if self.rules.by_mtime else horizon is not None and horizon <= self.round.now_ms

    def _ends_round(self, batch: NaiveBatch) -> bool:
        end, high_watermark = self.round.first_uncleanable_offset, self.round.high_watermark
        if high_watermark is None:
            high_watermark = self.segments[-1].next_offset
        retains = self.rules.retains_last
        applies = retains == ALWAYS or (retains == AT_HIGH_WATERMARK and end == high_watermark)
        return applies and batch.next_offset == end

    def _kept(self, batch: NaiveBatch, retained: list[NaiveRecord], dropped: bool, horizon_due: bool) -> tuple[bytes, int]:
        """``horizon_due``: with a tombstone, or the marker of an empty transaction."""
        largest = max(record.offset for record in retained)
        if batch.magic < 2 and self.rules.keeps_magic:
            return encode_message_set(batch, retained) if dropped or has_other_magic(batch) else batch.raw, largest
        new_horizon = horizon_due and batch.delete_horizon_ms is None and not self.rules.by_mtime
        if batch.magic == 2 and not dropped and not new_horizon:
            return batch.raw, batch.last_offset
        horizon = -1 if batch.delete_horizon_ms is None or self.rules.by_mtime else batch.delete_horizon_ms
        if new_horizon:
            horizon = _java_sum(self.round.now_ms, self.round.delete_retention_ms)
        return encode(batch, retained, horizon), largest

    def _is_last_record(self, batch: NaiveBatch) -> bool:
        entry = self.producers.get(batch.producer_id)
        if entry is None or not batch.has_producer_id:
            return False
        if entry.last_data_offset >= 0:
            return batch.last_offset == entry.last_data_offset
        return batch.control and batch.producer_epoch == entry.producer_epoch

    def _retains(self, batch: NaiveBatch, record: NaiveRecord, young: bool) -> bool:
        if record.offset > self.latest_offset:
            return True
        if record.key is None:
            self.figures["invalid_records"] += 1
            return False
        if record.offset < self.map.get(record.key, -1):
            return False
        if record.value is not None:
            return True
        if batch.magic < 2 or self.rules.by_mtime:
            return young
        return batch.delete_horizon_ms is None or self.round.now_ms < batch.delete_horizon_ms


def has_other_magic(batch: NaiveBatch) -> bool:
    """Whether a wrapper has a message of another magic: Kafka then writes it even if it loses none."""
    return any(raw[16] != batch.magic for raw in _inner(batch))


def encode_message_set(batch: NaiveBatch, retained: Sequence[NaiveRecord]) -> bytes:
    """What Kafka up to 3.9 writes of a set that loses messages (``MemoryRecordsBuilder``, 3.6.2): the wrapper with the
    ``retained`` ones, their offsets from the first one with magic 1, absolute with magic 0."""
    check_appends(batch, retained)
    append_ms = batch.max_timestamp if batch.log_append_time else None
    return Legacy(retained, batch.magic, CODECS[batch.codec], append_ms).encode(compression.named)


def _inner(batch: NaiveBatch) -> list[bytes]:
    if not batch.codec:
        return []
    return inner_messages(compression.decompress(batch.codec, legacy_message(batch.raw).value or b"", magic=batch.magic))
