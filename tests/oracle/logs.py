"""Builds logs as a broker would have written them: batches of every kind, segments, indexes, transactions."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from compaction.formats.producer_snapshot import ProducerEntry
from tests.kafka.encode import CODECS, Batch, Legacy, Record
from tests.oracle import compression
from tests.oracle.records import decode
from tests.oracle.segments import NaiveSegment, SegmentWriter
from tests.oracle.txns import NaiveProducers

ABORT, COMMIT, LEADER_CHANGE = 0, 1, 2


@dataclass(frozen=True)
class Sent:
    """A record as a producer sends it."""

    key: bytes | None
    value: bytes | None
    timestamp: int = 1_000
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True)
class Batching:
    """Fields of a batch; ``log_append_ms`` makes its timestamps log append time, ``horizon_ms`` sets a delete horizon."""

    codec: int = 0
    producer: int = -1
    epoch: int = 0
    transactional: bool = False
    log_append_ms: int | None = None
    horizon_ms: int = -1
    leader_epoch: int = 0


PLAIN = Batching()


@dataclass
class LogBuilder:
    """Appends batches at increasing offsets; ``roll`` closes a segment.

    ``mangle`` may change a data batch's encoding, not its content; ``restate`` what the header of any batch of magic 2 states.
    """

    index_interval_bytes: int = 4096
    next_offset: int = 0
    mangle: Callable[[bytes], bytes] | None = None
    restate: Callable[[bytes], bytes] | None = None
    closed: list[NaiveSegment] = field(default_factory=list)
    _open: SegmentWriter | None = None
    _sequences: dict[tuple[int, int], int] = field(default_factory=dict)
    _state: NaiveProducers = field(default_factory=NaiveProducers)

    def batch(self, records: Sequence[Sent], how: Batching = PLAIN) -> int:
        """Appends a batch of magic 2, returns its last offset; no records make a header-only batch of one offset."""
        count = max(len(records), 1)
        raw = self._encoded(how, self._placed(records), self.next_offset + count - 1, self._next_sequence(how, count))
        self._append(raw if self.mangle is None else self.mangle(raw))
        return self.next_offset - 1

    def marker(self, producer: int, kind: int, how: Batching = PLAIN, *, timestamp: int = 1_000, empty: bool = False) -> int:
        """Appends a control batch of one record (or of none), returns its offset."""
        how = replace(how, producer=producer, transactional=kind in (ABORT, COMMIT))
        sent = Sent(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), timestamp)
        self._append(self._encoded(how, self._placed([] if empty else [sent]), self.next_offset, control=True))
        return self.next_offset - 1

    def legacy(
        self,
        records: Sequence[Sent],
        magic: int,
        codec: int = 0,
        *,
        log_append_ms: int | None = None,
        inner_magic: int | None = None,
    ) -> int:
        """Appends messages of magic 0 or 1, in one wrapper if there is a codec; returns the last offset."""
        placed = self._placed(records)
        for each in [placed] if codec else [[record] for record in placed]:
            message_set = Legacy(each, magic, CODECS[codec], log_append_ms, inner_magic, restamps=False)
            self._append(message_set.encode(compression.named))
        return self.next_offset - 1

    def skip(self, offsets: int) -> None:
        """Leaves a gap, as an earlier round would."""
        self.next_offset += offsets

    def roll(self, mtime_ms: int) -> None:
        """Closes the segment; the next one begins at the next offset."""
        self.closed.append(self._writer().close(mtime_ms, self._state.aborted))
        self._open, self._state.aborted = SegmentWriter(self.next_offset, self.index_interval_bytes), []

    def build(self, mtime_ms: int = 1_000_000) -> list[NaiveSegment]:
        """All segments; the last one is the active one."""
        self.roll(mtime_ms)
        return list(self.closed)

    def producers(self) -> tuple[ProducerEntry, ...]:
        """The producers' state at the end."""
        return tuple(sorted(self._state.entries.values()))

    @property
    def open_txns(self) -> dict[int, int]:
        """First offsets of the open transactions by producer."""
        return dict(self._state.open_txns)

    def epoch_of(self, producer: int) -> int:
        """The producer's latest epoch."""
        return self._state.entries[producer].producer_epoch if producer in self._state.entries else 0

    @property
    def size_bytes(self) -> int:
        """Size of the open segment's log."""
        return len(self._writer().log)

    def _writer(self) -> SegmentWriter:
        if self._open is None:
            self._open = SegmentWriter(self.next_offset, self.index_interval_bytes)
        return self._open

    def _append(self, raw: bytes) -> None:
        (decoded,) = decode(raw)
        if self.restate is not None and decoded.magic == 2:
            raw = self.restate(raw)
            (decoded,) = decode(raw)
        self._writer().append(raw, decoded.last_offset)
        self._state.append(decoded)
        self.next_offset = decoded.next_offset

    def _placed(self, records: Sequence[Sent]) -> list[Record]:
        return [Record(self.next_offset + at, r.timestamp, r.key, r.value, r.headers) for at, r in enumerate(records)]

    def _encoded(
        self, how: Batching, records: Sequence[Record], last_offset: int, sequence: int = -1, *, control: bool = False
    ) -> bytes:
        return Batch(
            records,
            CODECS[how.codec],
            self.next_offset,
            last_offset,
            how.leader_epoch,
            how.producer,
            how.epoch if how.producer >= 0 else -1,
            sequence,
            how.transactional,
            control,
            how.log_append_ms,
            how.horizon_ms if records and how.horizon_ms >= 0 else None,
            None if records else 1_000,
        ).encode(compression.named)

    def _next_sequence(self, how: Batching, count: int) -> int:
        if how.producer < 0:
            return -1
        sequence = self._sequences.get((how.producer, how.epoch), 0)
        self._sequences[how.producer, how.epoch] = sequence + count
        return sequence
