"""The arrivals of batches, without a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from compaction.config.resolver import BrokerConfig, TopicConfig
from compaction.files.local import LocalFileSystem
from compaction.files.overlay import OverlayFileSystem
from compaction.log.checkpoint_store import read_checkpoints
from compaction.log.read_log import ReadOptions, read_log
from compaction.policies.arrivals import Arrivals, read_arrivals
from compaction.recovery.recover import recover_log
from compaction.rules.transactions import aborted_of
from compaction.run.cleaner import Limits, slices_of
from tests.local_job import resolver_of
from tests.local_passes import LocalPasses
from tests.log.logs import TOPIC, location

_SLICE_BYTES = 64 << 20


def config_of(settings: Mapping[str, str]) -> TopicConfig:
    return resolver_of({"t": settings}).topic("t")


def arrivals_of(
    log_dir: Path, batches: Sequence[bytes], *, slice_bytes: int = _SLICE_BYTES, shard_entries: int = 1 << 20
) -> Arrivals:
    """Of a log of one segment with these batches."""
    path = log_dir / str(TOPIC)
    path.mkdir(parents=True)
    (path / f"{0:020d}.log").write_bytes(b"".join(batches))
    where = location(str(log_dir))
    fs = OverlayFileSystem(LocalFileSystem())
    state = replace(read_checkpoints(fs, where.log_dir), snapshots_may_lack=True)
    report = recover_log(fs, where, checkpoints=state)
    view = read_log(fs, where, read_checkpoints(fs, where.log_dir), ReadOptions(now_ms=0), segments=report.segments)
    slices = slices_of(fs, 0, view, view.segments, slice_bytes)
    settings = Limits(BrokerConfig()).map_settings(1)
    (found,) = read_arrivals(LocalPasses(), [(view, slices, aborted_of(view))], settings, shard_entries)
    assert not isinstance(found, str), found
    return found
