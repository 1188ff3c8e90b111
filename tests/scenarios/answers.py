"""What is left of a log, as the lines of an answer; independent of the package under test."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from tests.oracle.records import NaiveBatch, NaiveRecord, decode

_INDEXES = (".index", ".timeindex", ".txnindex")


class Outcome(NamedTuple):
    """The offset up to which a log was cleaned, ``None`` if it was not; the number of segments that were deleted; why it could
    not be cleaned; figures of the cleaning, those of a ``LogReport``. Kafka and the plain cleaner have some of them."""

    end_offset: int | None
    deleted: int = 0
    refused: str = ""
    figures: Mapping[str, Any] | None = None

    def seen_by(self, other: Outcome) -> Outcome:
        """With the figures that the other one has."""
        if self.figures is None or other.figures is None:
            return self
        return self._replace(figures={name: self.figures[name] for name in other.figures})


def answer_of(partition: Path, outcome: Outcome, log_start: int) -> list[str]:
    """A partition directory after a round. The segments of a log that was left as it is are not repeated."""
    end, deleted, refused, _ = outcome
    if refused:
        return ["refused"]
    lines = [f"deleted {deleted}, log start {log_start}"] if deleted else []
    lines.append("skipped" if end is None else f"cleaned to {end}")
    segments = (_segment(path) for path in sorted(partition.glob("*.log")))
    return [*lines, *(segments if deleted or end is not None else ())]


def _segment(path: Path) -> str:
    batches = list(decode(path.read_bytes()))
    # a new segment has the time at which the program ran
    shown = f"{' '.join(map(_batch, batches))} | {_digest(path, batches)}" if batches else "empty"
    return f"{int(path.stem)}: {shown}"


def _batch(batch: NaiveBatch) -> str:
    if batch.control:
        marker = {0: "abort", 1: "commit"}.get(batch.control_type() or 0, "control")
        return f"{marker}.{batch.producer_id}@{batch.last_offset}"
    return ",".join(map(_record, batch.records())) or f"({batch.last_offset})"


def _record(record: NaiveRecord) -> str:
    key = record.key
    if key is None:
        shown = "."
    elif len(key) == 1 and key.isalpha():
        shown = key.decode().upper() if record.value is None else key.decode()
    else:
        shown = f"0x{key[:4].hex()}{'…' if len(key) > 4 else ''}" if key else '""'
        shown += "@"
    return f"{shown}{record.offset}"


def _digest(path: Path, batches: list[NaiveBatch]) -> str:
    """Of the bytes of a segment's files; if batches are compressed, of their decoded content, and not of what depends on its
    length."""
    digest = sha256(str(path.stat().st_mtime_ns // 10**6).encode())
    compressed = any(batch.codec for batch in batches)
    for batch in batches:
        for part in _content(batch) if compressed else [batch.raw]:
            digest.update(part)
    for suffix in (".txnindex",) if compressed else _INDEXES:
        file = path.with_suffix(suffix)
        # Kafka creates an index of an active segment when it first needs it
        digest.update(suffix.encode() + (file.read_bytes() if file.exists() else b""))
    return digest.hexdigest()[:8]


def _content(batch: NaiveBatch) -> Iterator[bytes]:
    fields = [
        *(batch.attributes, batch.base_offset, batch.last_offset, batch.base_timestamp, batch.max_timestamp),
        *(batch.leader_epoch, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.count),
    ]
    yield struct.pack(f">{len(fields)}q", *fields)
    yield repr(batch.records()).encode()
