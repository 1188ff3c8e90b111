"""Builds logs as a broker would have written them: batches of every kind, segments, indexes, transactions."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from compaction.formats.producer_snapshot import ProducerEntry
from tests.oracle import compression
from tests.oracle.producers import NaiveProducers
from tests.oracle.records import NaiveBatch, NaiveRecord, decode, encode, encode_empty
from tests.oracle.segments import NaiveSegment, SegmentWriter

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
        sequence = self._next_sequence(how, max(len(records), 1))
        last = self.next_offset + max(len(records), 1) - 1
        like = self._like(how, sequence, last, control=False)
        placed = [NaiveRecord(self.next_offset + at, r.timestamp, r.key, r.value, r.headers) for at, r in enumerate(records)]
        raw = encode(like, placed, how.horizon_ms, names_as_text=False) if placed else encode_empty(like)
        self._append(raw if self.mangle is None else self.mangle(raw))
        return last

    def marker(self, producer: int, kind: int, how: Batching = PLAIN, *, timestamp: int = 1_000, empty: bool = False) -> int:
        """Appends a control batch of one record (or of none), returns its offset."""
        offset = self.next_offset
        how = replace(how, producer=producer, transactional=kind in (ABORT, COMMIT))
        like = self._like(how, -1, offset, control=True)
        record = NaiveRecord(offset, timestamp, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
        self._append(encode_empty(like) if empty else encode(like, [record], how.horizon_ms))
        return offset

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
        inner_magic = magic if inner_magic is None else inner_magic
        flags = 0x08 if log_append_ms is not None and magic else 0
        first = self.next_offset
        for at, sent in enumerate(records):
            if not codec:
                self._append(legacy_message(first + at, magic, sent, flags))
        if codec:
            relative = 0 if magic else first
            inner = b"".join(legacy_message(relative + at, inner_magic, sent) for at, sent in enumerate(records))
            time = max(r.timestamp for r in records) if log_append_ms is None else log_append_ms
            wrapper = Sent(None, compression.compress(codec, inner, magic=magic), time)
            self._append(legacy_message(first + len(records) - 1, magic, wrapper, flags | codec))
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

    def _like(self, how: Batching, sequence: int, last_offset: int, *, control: bool) -> NaiveBatch:
        attributes = how.codec | (0x08 if how.log_append_ms is not None else 0)
        attributes |= (0x10 if how.transactional else 0) | (0x20 if control else 0)
        epoch = how.epoch if how.producer >= 0 else -1
        time = 1_000 if how.log_append_ms is None else how.log_append_ms
        return NaiveBatch(
            b"", 0, 2, self.next_offset, last_offset, attributes, -1, time, how.leader_epoch, how.producer, epoch, sequence
        )

    def _next_sequence(self, how: Batching, count: int) -> int:
        if how.producer < 0:
            return -1
        sequence = self._sequences.get((how.producer, how.epoch), 0)
        self._sequences[how.producer, how.epoch] = sequence + count
        return sequence


def legacy_message(offset: int, magic: int, sent: Sent, attributes: int = 0) -> bytes:
    """A message of magic 0 or 1 with its offset and size."""
    parts = b"".join(struct.pack(">i", -1) if p is None else struct.pack(">i", len(p)) + p for p in (sent.key, sent.value))
    body = struct.pack(">bB", magic, attributes) + (struct.pack(">q", sent.timestamp) if magic else b"") + parts
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(message)) + message
