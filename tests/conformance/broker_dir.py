"""Kafka cleans a real broker's log directory, log by log, from the directory's own checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
    marks, starts, cleaned = (
        checkpoint(log_dir / f"{name}-offset-checkpoint") for name in ("replication", "log-start", "cleaner")
    )
    start = starts.get(log, 0)
    opening = Opening(as_of_ms, config, start, marks.get(log, 0), clean_shutdown=True)
    if policy == "compact,delete":
        start = expire_partition(gateway, log_dir / log, opening).log_start_offset
    if "compact" not in policy:
        return None
    opening = Opening(as_of_ms, config, start, marks.get(log, 0), clean_shutdown=True)
    outcome = clean_partition_if_due(gateway, log_dir / log, opening, cleaned.get(log))
    return outcome if isinstance(outcome, CleanResult) else None


def checkpoint(path: Path) -> dict[str, int]:
    """The entries of an offset checkpoint by log name; none if there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines()[2:] if path.exists() else []
    entries = (line.split() for line in lines)
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in entries}
