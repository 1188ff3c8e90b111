"""Kafka's own ``Cleaner``, of any version, on one partition directory, at a fixed time, with the offsets that its manager would
choose."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from compaction.names import LEADER_EPOCHS
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening, remove_deleted

#: half of ``log.cleaner.io.buffer.size``: one buffer reads, one writes
_IO_BUFFER_BYTES = 262_144
_MAX_MESSAGE_BYTES = 1_048_588
#: of ``CleanerStats``
_FIGURES = {
    "records_before": "messagesRead",
    "records_after": "messagesWritten",
    "bytes_before": "bytesRead",
    "invalid_records": "invalidMessagesRead",
}


@dataclass(frozen=True)
class Selected:
    """The result of ``LogCleanerManager`` and ``LogToClean`` for a log: the cleanable range and its dirty ratio."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    force_update_checkpoint: bool
    clean_bytes: int
    cleanable_bytes: int
    max_compaction_delay_ms: int

    @property
    def ratio(self) -> float:
        """Dirty bytes / all bytes; Java's 0/0 is ``nan``."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else float("nan")


@dataclass(frozen=True)
class CleanResult:
    """The outcome of one round: ``end_offset`` is the new checkpoint, ``figures`` those of a ``LogReport``."""

    end_offset: int
    figures: Mapping[str, int]


def select(log: KafkaLog, checkpoint: int | None) -> Selected:
    """The range to clean, as the cleaner's manager computes it from its ``checkpoint`` entry."""
    gateway = log.gateway
    # as a broker does every ten minutes
    log.expire_producers()
    manager = gateway.named("LogCleanerManager")
    now_ms = log.clock.now_ms
    offsets = gateway.call_static(manager, "cleanableOffsets", log.java, gateway.option(checkpoint), now_ms)
    first_dirty, first_uncleanable = offsets.firstDirtyOffset(), offsets.firstUncleanableDirtyOffset()
    to_clean = _log_to_clean(log, first_dirty, first_uncleanable)
    delay = gateway.call_static(manager, "maxCompactionDelay", log.java, first_dirty, now_ms)
    return Selected(
        first_dirty,
        to_clean.firstUncleanableOffset(),
        offsets.forceUpdateCheckpoint(),
        to_clean.cleanBytes(),
        to_clean.cleanableBytes(),
        delay,
    )


def clean_open_log(log: KafkaLog, checkpoint: int | None, map_bytes: int = 4 << 20) -> CleanResult:
    """Cleans an open log once, whatever its ratio; does nothing if nothing is dirty.

    ``map_bytes`` is the size of the ``SkimpyOffsetMap``: a small one ends the round early.
    """
    gateway = log.gateway
    selected = select(log, checkpoint)
    target = _log_to_clean(log, selected.first_dirty_offset, selected.first_uncleanable_offset)
    outcome = new_cleaner(gateway, log.clock.java, map_bytes).clean(target)
    end_offset, found = (
        (outcome.productElement(at) for at in range(2)) if gateway.in_scala else (outcome.getKey(), outcome.getValue())
    )
    stats = gateway.fields(found)
    figures = {name: int(stats[of_kafka]) for name, of_kafka in _FIGURES.items()}
    figures |= {"first_dirty_offset": selected.first_dirty_offset, "end_offset": int(end_offset)}
    return CleanResult(int(end_offset), figures)


def _log_to_clean(log: KafkaLog, first_dirty: int, first_uncleanable: int) -> Any:
    partition = [log.java.topicPartition()] if log.gateway.in_scala else []
    return log.gateway.new("LogToClean", *partition, log.java, first_dirty, first_uncleanable, False)


def new_cleaner(gateway: Gateway, clock: Any, map_bytes: int) -> Any:
    """A ``Cleaner`` with a map of so many bytes, which may clean one log after another; ``clock`` is a ``Time``."""
    throttler, never = gateway.once("throttler", partial(_shared, gateway))
    return gateway.new(
        "Cleaner",
        0,
        gateway.new("SkimpyOffsetMap", map_bytes, "MD5"),
        _IO_BUFFER_BYTES,
        _MAX_MESSAGE_BYTES,
        0.9,
        throttler,
        clock,
        never,
    )


def clean_partition(
    gateway: Gateway, path: Path, opening: Opening, checkpoint: int | None = None, map_bytes: int = 4 << 20
) -> CleanResult:
    """Cleans the partition directory ``path`` in place, with the result of a broker after ``.deleted`` files are removed.

    Loading and closing a log also write: a producer snapshot at the log end, the tail of the active segment's time index. Those
    are undone, so that only the cleaner's own changes remain.
    """
    with _opened(gateway, path, opening) as log:
        return clean_open_log(log, checkpoint, map_bytes)


def clean_partition_if_due(
    gateway: Gateway, path: Path, opening: Opening, checkpoint: int | None = None, map_bytes: int = 4 << 20
) -> CleanResult | Selected:
    """As ``clean_partition``, but only if the broker's cleaner would choose the log; else the range and the ratio."""
    with _opened(gateway, path, opening) as log:
        selected = select(log, checkpoint)
        wanted = selected.max_compaction_delay_ms > 0 and selected.cleanable_bytes > 0
        if selected.ratio > log.config.getDouble("min.cleanable.dirty.ratio") or wanted:
            return clean_open_log(log, checkpoint, map_bytes)
        return selected


@contextmanager
def _opened(gateway: Gateway, path: Path, opening: Opening) -> Iterator[KafkaLog]:
    """An open log. At the end the files of its partition that cleaning must not change are as before: active segment, missing
    snapshots, leader epochs.

    Indexes that were missing for the active segment are kept: loading rebuilds them, and so must the job.
    """
    names = {file.name for file in path.iterdir()}
    bases = sorted(name[:20] for name in names if re.fullmatch(r"\d{20}\.log", name))
    active = [name for name in names if bases and name.startswith(bases[-1]) and not name.endswith(".snapshot")]
    kept = [*active, *(names & {LEADER_EPOCHS})]
    before = {path / name: ((path / name).read_bytes(), (path / name).stat().st_mtime_ns) for name in kept}
    log = KafkaLog(gateway, path, opening)
    try:
        yield log
    finally:
        log.close()
        remove_deleted(path)
        for file in list(path.iterdir()):
            if file.name not in names and (file.suffix == ".snapshot" or file.name == LEADER_EPOCHS):
                file.unlink()
        for file, (content, mtime_ns) in before.items():
            if not file.exists() or file.read_bytes() != content:
                file.write_bytes(content)
            os.utime(file, ns=(mtime_ns, mtime_ns))


def _shared(gateway: Gateway) -> tuple[Any, Any]:
    """The throttler that never throttles and the check that never aborts."""
    system = gateway.cls("org.apache.kafka.common.utils.Time").SYSTEM
    throttles_down = [True] if gateway.release < (3, 8) else []
    throttler = gateway.new("Throttler", 1.0e300, 300, *throttles_down, "cleaner-io", "bytes", system)
    _, never = gateway.answering("scala.Function1" if gateway.in_scala else "java.util.function.Consumer")
    return throttler, never
