"""Kafka cleans a real broker's log directory, log by log, from the directory's own checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from compaction.names import CLEAN_SHUTDOWN
from tests.kafka.cleaner import CleanResult, clean_partition_if_due
from tests.kafka.gateway import Gateway
from tests.kafka.log import Opening, expire_partition


def logs_of(log_dir: Path) -> list[str]:
    """The logs that may be cleaned."""
    return sorted(path.name for path in log_dir.iterdir() if path.is_dir() and path.name != "__cluster_metadata-0")


def clean_as_broker(gateway: Gateway, log_dir: Path, log: str, config: Mapping[str, str], as_of_ms: int) -> CleanResult | None:
    """Segment deletion, if the policy includes it, then cleaning; ``None`` if nothing was cleaned.

    :param config: topic-level settings, ``cleanup.policy`` among them
    """
    policy = config["cleanup.policy"]
    marks, starts, cleaned, points = (
        checkpoint(log_dir / f"{name}-offset-checkpoint") for name in ("replication", "log-start", "cleaner", "recovery-point")
    )
    start, clean = starts.get(log, 0), (log_dir / CLEAN_SHUTDOWN).exists()
    opening = Opening(as_of_ms, config, start, marks.get(log, 0), clean, points.get(log, 0))
    if policy == "compact,delete":
        start = expire_partition(gateway, log_dir / log, opening).log_start_offset
    if "compact" not in policy:
        return None
    opening = replace(opening, log_start_offset=start)
    outcome = clean_partition_if_due(gateway, log_dir / log, opening, cleaned.get(log))
    return outcome if isinstance(outcome, CleanResult) else None


def soon_after(log_dir: Path) -> int:
    """A minute after a broker wrote to its logs."""
    return max(file.stat().st_mtime_ns for file in log_dir.rglob("*.log")) // 10**6 + 60_000


def checkpoint(path: Path) -> dict[str, int]:
    """The entries of an offset checkpoint by log name; none if there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines()[2:] if path.exists() else []
    entries = (line.split() for line in lines)
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in entries}
