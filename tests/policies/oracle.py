"""A log under a policy, record by record and in plain Python: no transactions, no producers, a record in each batch.

Follows the rules of Kafka's log and cleaner as ``compaction.rules`` states them, and shares no code with the package.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DAY_MS = 86_400_000


@dataclass
class Stored:
    """A record in its own batch; ``horizon_ms`` once a cleaning has retained it as a tombstone."""

    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    horizon_ms: int | None = None

    @property
    def size(self) -> int:
        """Of its batch."""
        key = 0 if self.key is None else len(self.key)
        value = 0 if self.value is None else len(self.value)
        base_ms = self.at_ms if self.horizon_ms is None else self.horizon_ms
        sizes = [_varint(-1 if self.key is None else key), key, _varint(-1 if self.value is None else value), value]
        body = 1 + _varint(self.at_ms - base_ms) + 1 + sum(sizes) + 1
        return 61 + _varint(body) + body


def _varint(value: int) -> int:
    left, size = (value << 1) ^ (value >> 63), 1
    while left > 0x7F:
        left, size = left >> 7, size + 1
    return size


@dataclass
class Piece:
    """A segment."""

    base: int
    written_ms: int
    records: list[Stored] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(record.size for record in self.records)

    @property
    def largest_ms(self) -> int:
        return max((record.at_ms for record in self.records), default=self.written_ms)


@dataclass(frozen=True)
class Rules:
    """The settings of a policy."""

    compacts: bool
    deletes: bool
    segment_bytes: int
    segment_ms: int
    ratio: float
    delete_retention_ms: int
    min_lag_ms: int
    max_lag_ms: int
    retention_ms: int
    retention_bytes: int


class Oracle:
    """The log."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self.pieces, self._end, self._clean_end = rules, list[Piece](), 0, 0

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    def append(self, record: Stored) -> None:
        rules = self._rules
        active = self.pieces[-1] if self.pieces else None
        longest_ms = min(rules.segment_ms, rules.max_lag_ms) if rules.compacts else rules.segment_ms
        if active is not None:
            full = active.size + record.size > rules.segment_bytes
            old = bool(active.records) and record.at_ms - active.records[0].at_ms > longest_ms
            active = None if full or old else active
        if active is None:
            active = Piece(record.offset, record.at_ms)
            self.pieces.append(active)
        active.records.append(record)
        active.written_ms = record.at_ms
        self._end = record.offset + 1

    def check(self, now_ms: int) -> bool:
        """The cleaner, then the deletion of segments; whether the log was cleaned."""
        cleaned = self._rules.compacts and self._clean(now_ms)
        if self._rules.deletes:
            self._delete(now_ms)
        return cleaned

    def _clean(self, now_ms: int) -> bool:
        rules, closed = self._rules, self.pieces[:-1]
        first_dirty = max(self._clean_end, self.pieces[0].base) if self.pieces else 0
        dirty = [piece for piece in closed if piece.base >= first_dirty]
        overdue = any(piece.records and now_ms - piece.records[0].at_ms > rules.max_lag_ms for piece in dirty)
        if rules.min_lag_ms:
            young = next((at for at, piece in enumerate(dirty) if piece.largest_ms > now_ms - rules.min_lag_ms), len(dirty))
            dirty = dirty[:young]
        dirty_bytes = sum(piece.size for piece in dirty)
        clean_bytes = sum(piece.size for piece in closed if piece.base < first_dirty)
        total = dirty_bytes + clean_bytes
        if not dirty_bytes or not (dirty_bytes / total > rules.ratio or overdue):
            return False
        end = len(closed) - len([piece for piece in closed if piece.base > dirty[-1].base])
        end_offset = self.pieces[end].base
        newest = {record.key: record.offset for piece in dirty for record in piece.records if record.key is not None}
        outputs: list[Piece] = []
        sizes: list[int] = []
        for piece in closed[:end]:
            before = piece.size
            kept = [record for record in piece.records if self._keeps(record, newest, now_ms)]
            if outputs and sizes[-1] + before <= rules.segment_bytes:
                outputs[-1].records += kept
                outputs[-1].written_ms = piece.written_ms
                sizes[-1] += before
            else:
                outputs.append(Piece(piece.base, piece.written_ms, kept))
                sizes.append(before)
        self.pieces[:end] = outputs
        self._clean_end = end_offset
        return True

    def _keeps(self, record: Stored, newest: dict[bytes, int], now_ms: int) -> bool:
        if record.key is None or record.offset < newest.get(record.key, -1):
            return False
        if record.value is None:
            if record.horizon_ms is not None and record.horizon_ms <= now_ms:
                return False
            if record.horizon_ms is None:
                record.horizon_ms = now_ms + self._rules.delete_retention_ms
        return True

    def _delete(self, now_ms: int) -> None:
        rules, size = self._rules, self.size
        if 0 <= rules.retention_bytes <= size:
            while self._may_drop and size - self.pieces[0].size >= rules.retention_bytes:
                size -= self._drop(now_ms)
        while rules.retention_ms >= 0 and self._may_drop and now_ms - self.pieces[0].largest_ms > rules.retention_ms:
            self._drop(now_ms)

    @property
    def _may_drop(self) -> bool:
        """An empty last segment remains."""
        return len(self.pieces) > 1 or any(piece.records for piece in self.pieces)

    def _drop(self, now_ms: int) -> int:
        dropped = self.pieces.pop(0).size
        if not self.pieces:
            self.pieces.append(Piece(self._end, now_ms))
        return dropped
