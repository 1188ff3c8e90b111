"""A log with a case of every cleaning rule, cleaned by the job, and ways to damage the result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compaction.certifier.certificate import VerifyReport
from compaction.rules.log_view import AbortedTxn
from tests.certifier.certify import certify_copy
from tests.local_job import clean_locally, write_offsets
from tests.oracle.disk import read_partition, write_partition
from tests.oracle.logs import ABORT, COMMIT, Batching, LogBuilder, Sent
from tests.oracle.records import NaiveBatch, NaiveRecord, encode
from tests.oracle.segments import NaiveSegment, write_segment

NOW_MS = 1_700_000_000_000
T = NOW_MS - 50_000
INTERVAL_BYTES = 120
TOPIC = "story"
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "internal.segment.bytes": "900",
    "index.interval.bytes": str(INTERVAL_BYTES),
    "delete.retention.ms": "10000",
}
Change = Callable[[NaiveBatch], "bytes | Sequence[bytes]"]


def build() -> list[NaiveSegment]:
    """The log: unique and repeated keys, tombstones before and after their horizons, transactions of both kinds."""
    log = LogBuilder(INTERVAL_BYTES)
    committed, aborted = (Batching(producer=each, transactional=True) for each in (7, 8))
    log.batch([sent("a"), sent("b"), sent("unique-0"), sent("a")], Batching(leader_epoch=3))
    log.batch([sent("t"), sent("unique-1")], committed)
    log.batch([sent("x"), sent("unique-0", b"never")], aborted)
    log.marker(7, COMMIT, timestamp=T)
    log.marker(8, ABORT, timestamp=T)
    log.batch([sent("dead-new", None), sent("b")])
    log.batch([sent("dead-old")])
    log.roll(T)
    log.batch([sent("dead-old", None)], Batching(horizon_ms=NOW_MS - 1))
    log.batch([sent("dead-soon", None)], Batching(horizon_ms=NOW_MS + 1))
    log.batch([sent("unique-2", headers=((b"name", b"content"), (b"none", None))), sent("c")])
    log.batch([sent("c", b"newer"), sent("unique-3")], Batching(codec=1))
    log.roll(T + 1)
    log.batch([sent("unique-0", b"aborted")], aborted)
    log.batch([sent("late")], committed)
    log.marker(8, ABORT, timestamp=T)
    log.marker(7, COMMIT, timestamp=T)
    log.batch([Sent(None, b"without a key", T), sent("unique-4")])
    log.batch([sent("unique-5", b"v" * 300)])
    log.roll(T + 2)
    log.batch([sent("a", b"active"), sent("unique-6")])
    log.batch([sent("open")], Batching(producer=9, transactional=True))
    return log.build(NOW_MS)


def sent(key: str, value: bytes | None = b"value", headers: tuple[tuple[bytes, bytes | None], ...] = ()) -> Sent:
    """A record."""
    return Sent(key.encode(), value, T, headers)


@dataclass(frozen=True)
class Story:
    """``before`` and ``after`` are log directories with the one log ``story-0``."""

    before: Path
    after: Path

    @classmethod
    def cleaned(cls, root: Path) -> Story:
        """The log, and a copy that the job has cleaned."""
        story = cls(root / "before", root / "after")
        write_partition(story.before / f"{TOPIC}-0", build())
        write_offsets(story.before, cleaner_offsets={TOPIC: 0})
        shutil.copytree(story.before, story.after)
        clean_locally(story.after, NOW_MS, {TOPIC: CONFIG})
        for file in story.path.glob("*.deleted"):
            file.unlink()
        return story

    @property
    def path(self) -> Path:
        """The partition directory of ``after``."""
        return self.after / f"{TOPIC}-0"

    def verify(self) -> VerifyReport:
        """Certify ``after`` against ``before``."""
        return certify_copy(self.before, self.after, NOW_MS, {TOPIC: CONFIG})

    def segments(self) -> list[NaiveSegment]:
        """The segments of ``after``."""
        return read_partition(self.path)

    def offset_of(self, key: str, *, first: bool = False, before: bool = False) -> int:
        """The last (or first) offset of a key."""
        segments = read_partition(self.before / f"{TOPIC}-0") if before else self.segments()
        found = [r.offset for s in segments for b in s.batches for r in b.records() if r.key == key.encode()]
        return found[0 if first else -1]

    def batch_of(self, offset: int) -> NaiveBatch:
        """The batch of ``after`` that holds an offset."""
        return next(b for s in self.segments() for b in s.batches if b.base_offset <= offset <= b.last_offset)

    def markers(self, producer: int) -> list[NaiveBatch]:
        """The markers of a producer in ``after``."""
        return [b for s in self.segments() for b in s.batches if b.control and b.producer_id == producer]

    def segment_of(self, offset: int) -> NaiveSegment:
        """The segment of ``after`` that holds an offset."""
        return [s for s in self.segments() if s.base_offset <= offset][-1]

    def change(self, offset: int, how: Change) -> None:
        """Replace the batch that holds an offset; the segment's indexes are rebuilt."""
        segment = self.segment_of(offset)
        batches: list[bytes] = []
        for batch in segment.batches:
            if batch.base_offset <= offset <= batch.last_offset:
                made = how(batch)
                batches += [made] if isinstance(made, bytes) else list(made)
            else:
                batches.append(batch.raw)
        self.replace(segment, batches)

    def replace(self, segment: NaiveSegment, batches: Sequence[bytes], aborted: Sequence[AbortedTxn] | None = None) -> None:
        """Rewrite a segment."""
        kept = segment.aborted_txns if aborted is None else aborted
        for file in self.path.glob(f"{segment.base_offset:020d}.*"):
            file.unlink()
        made = write_segment(segment.base_offset, batches, INTERVAL_BYTES, segment.mtime_ms, kept)
        write_partition(self.path, [made])

    def write(self, segment: NaiveSegment, kind: str, data: bytes) -> None:
        """Replace a file of a segment."""
        (self.path / f"{segment.base_offset:020d}.{kind}").write_bytes(data)

    def set_checkpoint(self, **offsets: int) -> None:
        """Write checkpoint files of ``after``; see ``write_offsets``."""
        write_offsets(self.after, **{name: {TOPIC: offset} for name, offset in offsets.items()})


def records(change: Callable[[list[NaiveRecord]], Sequence[NaiveRecord]]) -> Change:
    """Change the records of a batch, with a new CRC."""

    def how(batch: NaiveBatch) -> bytes | Sequence[bytes]:
        changed = change(batch.records())
        horizon_ms = -1 if batch.delete_horizon_ms is None else batch.delete_horizon_ms
        return encode(batch, changed, horizon_ms, names_as_text=False) if changed else ()

    return how
