"""One cleaning round, in plain Python and in Kafka's own order (Kafka 4.4.0: ``Cleaner``, ``MemoryRecords.filterTo``).

``NaiveRules`` has what older versions do differently, read from the source of each.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.rules.log_view import AbortedTxn
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
_APPEND_TIME = 0x08
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
class NaiveConfig:
    """The topic's settings that a round uses, under their own names."""

    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    delete_retention_ms: int = 86_400_000


@dataclass(frozen=True)
class NaiveRound:
    """What is cleaned: offsets in [``first_dirty_offset``, ``first_uncleanable_offset``) enter the map.

    A ``high_watermark`` of ``None`` is the log end.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    now_ms: int
    log_start_offset: int = 0
    producers: tuple[ProducerEntry, ...] = ()
    rules: NaiveRules = NEWEST
    high_watermark: int | None = None


@dataclass
class NaiveStats:
    """Those of Kafka's ``CleanerStats`` that a report has, and the number of keys mapped."""

    messages_read: int = 0
    bytes_read: int = 0
    messages_written: int = 0
    bytes_written: int = 0
    invalid_messages_read: int = 0
    keys: int = 0


@dataclass(frozen=True)
class NaiveGroup:
    """The base offsets of the source segments, and the output segment."""

    sources: tuple[int, ...]
    cleaned: NaiveSegment


class Judged(NamedTuple):
    """The verdict on a batch before its records are read."""

    discard_records: bool
    retain_empty: bool
    marker_of_empty_txn: bool


@dataclass(frozen=True)
class NaiveResult:
    """``end_offset`` is the first offset not cleaned."""

    groups: tuple[NaiveGroup, ...]
    end_offset: int
    stats: NaiveStats


def clean_log_naively(segments: Sequence[NaiveSegment], config: NaiveConfig, round_: NaiveRound) -> NaiveResult:
    """Cleans a whole log, given with all of its segments, the active one included.

    :raises KafkaRefuses: if Kafka's cleaner throws
    """
    return _Cleaning(tuple(segments), config, round_).run()


def after_round(segments: Sequence[NaiveSegment], result: NaiveResult) -> list[NaiveSegment]:
    """The log's segments after the outputs have replaced their sources."""
    sources = {base for group in result.groups for base in group.sources}
    kept = [segment for segment in segments if segment.base_offset not in sources]
    return sorted([*kept, *(group.cleaned for group in result.groups)], key=lambda segment: segment.base_offset)


def group_segments(
    segments: Sequence[NaiveSegment], config: NaiveConfig, first_uncleanable_offset: int, rules: NaiveRules = NEWEST
) -> list[list[NaiveSegment]]:
    """``Cleaner.groupSegmentsBySize``."""
    groups: list[list[NaiveSegment]] = []
    for at, segment in enumerate(segments):
        following = segments[at + 1].base_offset if at + 1 < len(segments) else first_uncleanable_offset
        in_range = bool(groups) and following - 1 - groups[-1][0].base_offset <= _INT_MAX
        if groups and _fits(groups[-1], segment, config) and (in_range or (rules.joins_empty and not segment.log)):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(group: list[NaiveSegment], segment: NaiveSegment, config: NaiveConfig) -> bool:
    joined = [*group, segment]
    return (
        sum(len(member.log) for member in joined) <= config.segment_bytes
        and sum(len(member.index) for member in joined) <= config.segment_index_bytes
        and sum(len(member.time_index) for member in joined) <= config.segment_index_bytes
    )


@dataclass
class _OffsetMap:
    """``SkimpyOffsetMap`` with keys in place of their hashes."""

    offsets: dict[bytes, int] = field(default_factory=dict)
    latest_offset: int = -1

    def put(self, key: bytes, record: NaiveRecord) -> None:
        self.offsets[key] = record.offset
        self.latest_offset = record.offset

    def supersedes(self, key: bytes, record: NaiveRecord) -> bool:
        return record.offset < self.offsets.get(key, -1)


@dataclass
class _Filtered:
    """A batch through ``filterTo``: the retained bytes and the offset for the range check."""

    raw: bytes
    largest_offset: int
    records: int


class _Cleaning:
    def __init__(self, segments: tuple[NaiveSegment, ...], config: NaiveConfig, round_: NaiveRound) -> None:
        self.segments = segments
        self.config = config
        self.round = round_
        self.map = _OffsetMap()
        self.stats = NaiveStats()
        self.txns = CleanedTransactions()
        self.producers = {entry.producer_id: entry for entry in round_.producers}
        self.rules = round_.rules

    def run(self) -> NaiveResult:
        below_dirty = self._values(0, self.round.first_dirty_offset)
        self.legacy_horizon_ms = 0
        if below_dirty:
            self.legacy_horizon_ms = _java_sum(below_dirty[-1].mtime_ms, -self.config.delete_retention_ms)
        self._build_map()
        end_offset = self.map.latest_offset + 1
        chosen = self._values(0, end_offset)
        groups = group_segments(chosen, self.config, self.round.first_uncleanable_offset, self.rules)
        done = tuple(self._clean_group(group) for group in groups)
        self.stats.keys = len(self.map.offsets)
        return NaiveResult(done, end_offset, self.stats)

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
        txns = CleanedTransactions()
        txns.add(self._aborted(start, end))
        for at, segment in enumerate(dirty):
            self._map_segment(segment, txns)
            following = dirty[at + 1].base_offset if at + 1 < len(dirty) else end
            self.map.latest_offset = following - 1

    def _map_segment(self, segment: NaiveSegment, txns: CleanedTransactions) -> None:
        start = self.round.first_dirty_offset
        first_position = segment.position_of(start)
        for batch in segment.batches:
            if batch.position < first_position:
                continue
            discarded = txns.on_batch(batch)
            for record in () if batch.control or discarded else batch.records():
                if record.key is not None and record.offset >= start:
                    self.map.put(record.key, record)
            if batch.last_offset >= start:
                self.map.latest_offset = batch.last_offset

    def _clean_group(self, group: list[NaiveSegment]) -> NaiveGroup:
        writer = SegmentWriter(group[0].base_offset, self.config.index_interval_bytes)
        self.txns.cleaned_index = []
        for at, segment in enumerate(group):
            upper = group[at + 1].base_offset if at + 1 < len(group) else segment.next_offset
            self.txns.add(self._aborted(segment.base_offset, upper))
            young = segment.mtime_ms > self.legacy_horizon_ms
            for batch in segment.batches:
                kept = self._filter(batch, young)
                self.stats.bytes_read += len(batch.raw)
                if kept is not None:
                    writer.append(kept.raw, kept.largest_offset)
                    self.stats.messages_written += kept.records
                    self.stats.bytes_written += len(kept.raw)
        cleaned = writer.close(group[-1].mtime_ms, self.txns.cleaned_index)
        return NaiveGroup(tuple(segment.base_offset for segment in group), cleaned)

    def _filter(self, batch: NaiveBatch, young: bool) -> _Filtered | None:
        """``young``: the segment was modified after the delete horizon by modification times."""
        judged = self._judge(batch, young)
        if judged.discard_records and not judged.retain_empty:
            return None
        retained, dropped = [], False
        for record in batch.records():
            self.stats.messages_read += 1
            if not judged.discard_records and (batch.control or self._retains(batch, record, young)):
                retained.append(record)
            else:
                dropped = True
        if retained:
            return self._kept(batch, retained, dropped, judged.marker_of_empty_txn)
        if not judged.retain_empty:
            return None
        if batch.magic < 2:
            raise KafkaRefuses("an empty batch of magic 0 or 1 would have to stay")
        return _Filtered(encode_empty(batch), batch.last_offset, 0)

    def _judge(self, batch: NaiveBatch, young: bool) -> Judged:
        can_discard = self.txns.on_batch(batch)
        horizon = batch.delete_horizon_ms
        discard = can_discard
        if batch.control:
            passed = not young if self.rules.by_mtime else horizon is not None and horizon <= self.round.now_ms
            discard = can_discard and passed
        retain_empty = self._is_last_record(batch) or self._ends_round(batch)
        return Judged(discard, retain_empty, can_discard and batch.control)

    def _ends_round(self, batch: NaiveBatch) -> bool:
        end, high_watermark = self.round.first_uncleanable_offset, self.round.high_watermark
        if high_watermark is None:
            high_watermark = self.segments[-1].next_offset
        retains = self.rules.retains_last
        applies = retains == ALWAYS or (retains == AT_HIGH_WATERMARK and end == high_watermark)
        return applies and batch.next_offset == end

    def _kept(self, batch: NaiveBatch, retained: list[NaiveRecord], dropped: bool, marker_of_empty_txn: bool) -> _Filtered:
        if batch.magic < 2 and self.rules.keeps_magic:
            raw = encode_message_set(batch, retained) if dropped or has_other_magic(batch) else batch.raw
            return _Filtered(raw, max(r.offset for r in retained), len(retained))
        tombstones = any(record.value is None for record in retained)
        new_horizon = (tombstones or marker_of_empty_txn) and batch.delete_horizon_ms is None and not self.rules.by_mtime
        if batch.magic == 2 and not dropped and not new_horizon:
            return _Filtered(batch.raw, batch.last_offset, len(retained))
        horizon = -1 if batch.delete_horizon_ms is None or self.rules.by_mtime else batch.delete_horizon_ms
        if new_horizon:
            horizon = _java_sum(self.round.now_ms, self.config.delete_retention_ms)
        return _Filtered(encode(batch, retained, horizon), max(r.offset for r in retained), len(retained))

    def _is_last_record(self, batch: NaiveBatch) -> bool:
        entry = self.producers.get(batch.producer_id)
        if entry is None or not batch.has_producer_id:
            return False
        if entry.last_data_offset >= 0:
            return batch.last_offset == entry.last_data_offset
        return batch.control and batch.producer_epoch == entry.producer_epoch

    def _retains(self, batch: NaiveBatch, record: NaiveRecord, young: bool) -> bool:
        if record.offset > self.map.latest_offset:
            return True
        if record.key is None:
            self.stats.invalid_messages_read += 1
            return False
        if self.map.supersedes(record.key, record):
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
    first = retained[0].offset if batch.magic else 0
    append_ms = batch.max_timestamp if batch.log_append_time else None
    flag = 0 if append_ms is None else _APPEND_TIME
    inner = b"".join(
        _message(batch.magic, flag, record.offset - first, record.timestamp if append_ms is None else append_ms, record)
        for record in retained
    )
    largest = max(-1, *(record.timestamp for record in retained)) if append_ms is None else append_ms
    payload = NaiveRecord(0, 0, None, compression.compress(batch.codec, inner, magic=batch.magic))
    return _message(batch.magic, batch.codec | flag, retained[-1].offset, largest, payload)


def _inner(batch: NaiveBatch) -> list[bytes]:
    if not batch.codec:
        return []
    return inner_messages(compression.decompress(batch.codec, legacy_message(batch.raw).value or b"", magic=batch.magic))


def _message(magic: int, attributes: int, offset: int, timestamp: int, record: NaiveRecord) -> bytes:
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for part in (record.key, record.value):
        body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body
