"""Kafka's ``UnifiedLog`` over one partition directory: open, append, roll, truncate, expire, close."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.kafka.gateway import Gateway

_LOG = "org.apache.kafka.storage.internals.log."
_DAY_MS = 86_400_000
LONG_MAX = 2**63 - 1


@dataclass(frozen=True)
class Opening:
    """How a log is opened: a broker's checkpoints, its configuration and its clock.

    ``config`` has topic-level names. ``clean_shutdown`` is whether ``.kafka_cleanshutdown`` exists; ``None`` derives it from
    the presence of a producer snapshot, since after a clean shutdown without one Kafka starts without producer state.
    ``recovery_point`` matters only after an unclean shutdown: segments from there on are read and indexed again.
    ``high_watermark`` of ``None`` is the log end. ``background`` runs the tasks that Kafka schedules, at once if they are due.
    """

    now_ms: int
    config: Mapping[str, str] = field(default_factory=dict)
    log_start_offset: int = 0
    high_watermark: int | None = None
    clean_shutdown: bool | None = None
    recovery_point: int = LONG_MAX
    producer_expiration_ms: int = _DAY_MS
    background: bool = False

    def at(self, now_ms: int) -> Opening:
        """The same at another time."""
        return replace(self, now_ms=now_ms)


class KafkaLog:
    """An open ``UnifiedLog`` (``java``). As a context manager it closes as a broker's clean shutdown does."""

    def __init__(self, gateway: Gateway, path: Path, opening: Opening) -> None:
        self.gateway = gateway
        self.path = path
        self.clock = gateway.clock(opening.now_ms)
        self.scheduler = gateway.running_scheduler() if opening.background else gateway.idle_scheduler
        self._background = opening.background
        clean = opening.clean_shutdown
        if clean is None:
            clean = not path.exists() or any(path.glob("*.snapshot"))
        self.config = gateway.cls(_LOG + "LogConfig")(dict(opening.config))
        producers = gateway.cls(_LOG + "ProducerStateManagerConfig")(opening.producer_expiration_ms, False)
        self.java: Any = gateway.cls(_LOG + "UnifiedLog").create(
            gateway.cls("java.io.File")(str(path)),
            self.config,
            opening.log_start_offset,
            opening.recovery_point,
            self.scheduler,
            _topic_stats(gateway),
            self.clock.java,
            300_000,
            producers,
            600_000,
            gateway.cls("org.apache.kafka.storage.internals.log.LogDirFailureChannel")(1),
            clean,
            gateway.cls("java.util.Optional").empty(),
        )
        self._high_watermark = opening.high_watermark
        self.raise_high_watermark()

    def raise_high_watermark(self) -> None:
        """Moves the high watermark to the one given at opening, else to the log end."""
        wanted = self._high_watermark
        self.java.updateHighWatermark(self.end_offset if wanted is None else wanted)

    @property
    def end_offset(self) -> int:
        """The log end offset."""
        return int(self.java.logEndOffset())

    def append(self, *batches: bytes, leader_epoch: int = 0) -> None:
        """Appends complete batches as a follower does: offsets are not changed and may have gaps.

        Each argument is one append, so a segment may roll between two of them; index entries fall per batch either way.
        """
        records, wrap = self.gateway.cls("org.apache.kafka.common.record.internal.MemoryRecords"), self._wrap
        for batch in batches:
            self.java.appendAsFollower(records.readableRecords(wrap(batch)), leader_epoch)

    def append_as_leader(self, batch: bytes, leader_epoch: int = 0, origin: str = "CLIENT") -> int:
        """Appends as a leader does, which sets offsets, timestamps and epoch; ``origin`` as ``AppendOrigin`` has it.

        Returns the first offset.
        """
        records = self.gateway.cls("org.apache.kafka.common.record.internal.MemoryRecords").readableRecords(self._wrap(batch))
        kind = self.gateway.cls(_LOG + "AppendOrigin").valueOf(origin)
        return int(self.java.appendAsLeader(records, leader_epoch, kind).firstOffset())

    def _wrap(self, batch: bytes) -> Any:
        return self.gateway.cls("java.nio.ByteBuffer").wrap(batch)

    def roll(self) -> None:
        """Closes the active segment and opens the next one at the log end."""
        self.java.roll()

    def write(self, segments: Iterable[Iterable[bytes]], leader_epoch: int = 0) -> None:
        """Appends each inner group as one segment, in as few calls as possible; the last group becomes the active segment."""
        for position, batches in enumerate(segments):
            if position:
                self.roll()
            joined = b"".join(batches)
            if joined:
                self.append(joined, leader_epoch=leader_epoch)
        self.raise_high_watermark()

    def flush(self) -> None:
        """Flushes all segments to disk, including the active one."""
        self.java.flush(True)

    def truncate(self, end_offset: int) -> None:
        """Removes records at and past ``end_offset``."""
        self.java.truncateTo(end_offset)

    def delete_records(self, before_offset: int) -> None:
        """Moves the log start offset up, as the deletion of records by a client does."""
        reason = self.gateway.cls(_LOG + "LogStartOffsetIncrementReason").ClientRecordDeletion
        self.java.maybeIncrementLogStartOffset(before_offset, reason)

    def expire(self) -> int:
        """Runs the delete policy; returns the number of segments deleted."""
        return int(self.java.deleteOldSegments())

    def close(self) -> None:
        """Closes as a clean shutdown does: indexes trimmed, producer snapshot at the log end."""
        self.java.close()
        self._end_scheduler()

    def abandon(self) -> None:
        """Closes the files without writing anything, as after a kill: preallocated indexes remain."""
        self.java.closeHandlers()
        self._end_scheduler()

    def _end_scheduler(self) -> None:
        if self._background:
            self.scheduler.shutdown()

    def __enter__(self) -> KafkaLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Expired(NamedTuple):
    """The outcome of the delete policy on one log."""

    segments_deleted: int
    log_start_offset: int


def expire_partition(gateway: Gateway, path: Path, opening: Opening) -> Expired:
    """Runs Kafka's delete policy on the partition directory ``path`` in place, ``.deleted`` files removed at the end."""
    with KafkaLog(gateway, path, replace(opening, background=True)) as log:
        outcome = Expired(log.expire(), int(log.java.logStartOffset()))
    remove_deleted(path)
    return outcome


def remove_deleted(path: Path) -> None:
    """Removes ``.deleted`` files, as the broker does after ``file.delete.delay.ms``."""
    for left in path.glob("*.deleted"):
        left.unlink()


_stats: dict[int, Any] = {}


def _topic_stats(gateway: Gateway) -> Any:
    if id(gateway) not in _stats:
        _stats[id(gateway)] = gateway.cls("org.apache.kafka.storage.log.metrics.BrokerTopicStats")(False)
    return _stats[id(gateway)]
