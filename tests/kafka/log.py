"""Kafka's ``UnifiedLog`` over one partition directory: open, append, roll, truncate, expire, close."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.kafka.gateway import Clock, Gateway

_DAY_MS = 86_400_000
#: from here on closing a log only closes its files: the broker has its active segment's indexes completed and trimmed before
_CLOSES_FILES_ONLY = (4, 4)
LONG_MAX = 2**63 - 1


@dataclass(frozen=True)
class Opening:
    """How a log is opened: a broker's checkpoints, its configuration and its clock.

    ``config`` has topic-level names. ``clean_shutdown`` is whether ``.kafka_cleanshutdown`` exists; ``None`` derives it from
    the presence of a producer snapshot that Kafka uses, since after a clean shutdown without one it starts without producer
    state.
    ``recovery_point`` matters only after an unclean shutdown: segments from there on are read and indexed again.
    ``high_watermark`` of ``None`` is the log end.
    ``background`` runs the tasks that Kafka schedules, at once if they are due.
    """

    now_ms: int
    config: Mapping[str, str] = field(default_factory=dict)
    log_start_offset: int = 0
    high_watermark: int | None = None
    clean_shutdown: bool | None = None
    recovery_point: int = LONG_MAX
    background: bool = False


class KafkaLog:
    """An open ``UnifiedLog`` (``java``). As a context manager it closes as a broker's clean shutdown does."""

    def __init__(self, gateway: Gateway, path: Path, opening: Opening) -> None:
        self.gateway = gateway
        self.path = path
        self.clock = Clock(gateway, opening.now_ms)
        self.scheduler = gateway.running_scheduler() if opening.background else gateway.idle_scheduler
        self._background = opening.background
        clean = opening.clean_shutdown
        if clean is None:
            clean = not path.exists() or has_snapshot(path)
        self.config = log_config(gateway, opening.config)
        self.java: Any = _factory(gateway)(
            {
                "File": [gateway.cls("java.io.File")(str(path))],
                "LogConfig": [self.config],
                "long": [opening.log_start_offset, opening.recovery_point],
                "Scheduler": [self.scheduler],
                "BrokerTopicStats": [gateway.once("topic stats", partial(_topic_stats, gateway))],
                "Time": [self.clock.java],
                "boolean": [clean],
            }
        )
        self._high_watermark = opening.high_watermark
        self.raise_high_watermark()

    def raise_high_watermark(self) -> None:
        """Moves the high watermark to the one given at opening, else to the log end."""
        wanted = self._high_watermark
        self.java.updateHighWatermark(self.end_offset if wanted is None else wanted)

    def expire_producers(self) -> None:
        """Forgets idle producers, as a broker does every ten minutes."""
        owner = self.java.producerStateManager()
        owner.removeExpiredProducers(self.clock.now_ms)

    @property
    def end_offset(self) -> int:
        """The log end offset."""
        return int(self.java.logEndOffset())

    def append(self, *batches: bytes, leader_epoch: int = 0) -> None:
        """Appends complete batches as a follower does: offsets are not changed and may have gaps.

        Each argument is one append, so a segment may roll between two of them; index entries fall per batch either way.
        """
        for batch in batches:
            self.java.appendAsFollower(self._readable(batch), leader_epoch)

    def append_as_leader(self, batch: bytes, origin: str) -> None:
        """Appends as a leader does, which sets offsets, timestamps and epoch; ``origin`` as ``AppendOrigin`` has it."""
        kind = self.gateway.cls(self.gateway.named("AppendOrigin")).valueOf(origin)
        self.java.appendAsLeader(self._readable(batch), 0, kind)

    def _readable(self, batch: bytes) -> Any:
        records = self.gateway.cls(self.gateway.named("MemoryRecords"))
        return records.readableRecords(self.gateway.cls("java.nio.ByteBuffer").wrap(batch))

    def roll(self) -> None:
        """Closes the active segment and opens the next one at the log end."""
        self.java.roll(self.gateway.option(None))

    def write(self, segments: Iterable[Iterable[bytes]]) -> None:
        """Appends each inner group as one segment, in as few calls as possible; the last group becomes the active segment."""
        for position, batches in enumerate(segments):
            if position:
                self.roll()
            joined = b"".join(batches)
            if joined:
                self.append(joined)
        self.raise_high_watermark()

    def truncate(self, end_offset: int) -> None:
        """Removes records at and past ``end_offset``."""
        self.java.truncateTo(end_offset)

    def expire(self) -> int:
        """Runs the delete policy; returns the number of segments deleted."""
        return int(self.java.deleteOldSegments())

    def close(self) -> None:
        """Closes as a clean shutdown does: indexes trimmed, producer snapshot at the log end."""
        if self.gateway.release >= _CLOSES_FILES_ONLY:
            self.java.prepareActiveSegmentForClose()
        self.java.close()
        self._end_scheduler()

    def abandon(self) -> None:
        """Closes the files without writing anything, as after a kill: preallocated indexes remain."""
        if self.gateway.release >= _CLOSES_FILES_ONLY:
            self.java.closeQuietly()
        else:
            for segment in self.java.logSegments():
                segment.closeHandlers()
        self._end_scheduler()

    def _end_scheduler(self) -> None:
        if self._background:
            self.scheduler.shutdown()

    def __enter__(self) -> KafkaLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def remove_deleted(path: Path) -> None:
    """Removes ``.deleted`` files, as the broker does after ``file.delete.delay.ms``."""
    for left in path.glob("*.deleted"):
        left.unlink()


def log_config(gateway: Gateway, config: Mapping[str, str]) -> Any:
    """A ``LogConfig``. Before 4.1 a segment's size has no lower bound and no name that goes below it."""
    own = dict(config)
    if "internal.segment.bytes" in own and gateway.release < (4, 1):
        own["segment.bytes"] = own.pop("internal.segment.bytes")
    name = gateway.named("LogConfig")
    if name.startswith("kafka."):
        return gateway.cls(name)(own, getattr(gateway.cls(name), "apply$default$2")())
    return gateway.cls(name)(own)


def has_snapshot(path: Path) -> bool:
    """Whether a snapshot remains when Kafka loads the log, which removes those before the last segment that belong to none.

    The cleaner of 2.8 leaves the snapshots of the segments that it removes.
    """
    bases, offsets = ({int(file.stem) for file in path.glob(pattern)} for pattern in ("*.log", "*.snapshot"))
    return any(offset in bases or offset > max(bases, default=0) for offset in offsets)


def _factory(gateway: Gateway) -> Callable[[Mapping[str, list[Any]]], Any]:
    """The factory of this version's logs: takes the arguments by the simple names of their types, in order. Types
    that are not given have one value in all of these tests."""
    if gateway.version not in _factories:
        name = gateway.named("Log" if gateway.release < (3, 1) else "UnifiedLog")
        found = [m for m in gateway.kind(name).getMethods() if m.getName() in ("apply", "create")]
        longest = max(found, key=lambda method: method.getParameterCount())
        _factories[gateway.version] = name, longest.getName(), [t.getSimpleName() for t in longest.getParameterTypes()]
    name, method, types = _factories[gateway.version]

    def create(given: Mapping[str, list[Any]]) -> Any:
        # when producers expire by default
        expiration_ms = _DAY_MS if gateway.release >= (3, 4) else 7 * _DAY_MS
        configured = "ProducerStateManagerConfig" in types
        # the longest transaction, since 3.3; when producers expire; how often that is checked
        times = [300_000, *([] if configured else [expiration_ms]), 600_000][-types.count("int") :]
        # whether partition.metadata is kept, whether the log is tiered
        flags = [*given["boolean"], types.count("Option") > 0, False]
        pool = {name: iter(values) for name, values in {**given, "int": times, "boolean": flags}.items()}
        return getattr(gateway.cls(name), method)(
            *(next(pool[kind]) if kind in pool else _only_value(gateway, kind, expiration_ms) for kind in types)
        )

    return create


def _only_value(gateway: Gateway, kind: str, expiration_ms: int) -> Any:
    if kind in ("Option", "Optional"):
        return gateway.cls("scala.Option" if kind == "Option" else "java.util.Optional").empty()
    if kind == "ConcurrentMap":
        return gateway.cls("java.util.concurrent.ConcurrentHashMap")()
    if kind == "LogDirFailureChannel":
        return gateway.new(kind, 1)
    if kind == "LogOffsetsListener":
        return gateway.cls(gateway.named(kind)).NO_OP_OFFSETS_LISTENER
    if kind == "ProducerStateManagerConfig":
        return gateway.new(kind, expiration_ms, *([False] if gateway.release >= (3, 6) else []))
    raise LookupError(f"what {kind} does Kafka {gateway.version} want?")


_factories: dict[str, tuple[str, str, list[str]]] = {}


def _topic_stats(gateway: Gateway) -> Any:
    arguments: list[Any] = [False]
    if gateway.release < (3, 8):
        arguments = [gateway.cls("java.util.Optional").empty()] if gateway.release >= (3, 6) else []
    return gateway.new("BrokerTopicStats", *arguments)
