"""Differences between two partition directories that should be the same log.

Files are compared byte by byte. The compressed bytes of rewritten batches may differ, because the compressors do: then headers
and decoded records (read by Kafka) must be equal, and the indexes must follow Kafka's rule for the job's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from compaction.formats.producer_snapshot import read_snapshot
from compaction.names import LEADER_EPOCHS
from tests.conformance.segment_bytes import RawBatch, batches_of, expected_indexes, segments_of
from tests.kafka.gateway import Gateway
from tests.kafka.reader import kafka_records
from tests.scenarios.draw import has_sparse_indexes

_KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_INDEX_INTERVAL_BYTES = 4096


def differences(gateway: Gateway, ours: Path, kafkas: Path, index_interval_bytes: int = _INDEX_INTERVAL_BYTES) -> list[str]:
    """One line per difference; empty if the two directories are the same log.

    ``.deleted`` files do not belong to a log. ``gateway`` has the version that cleaned ``kafkas``.
    """
    found = [*_names(ours, kafkas)]
    for base, theirs in segments_of(kafkas).items():
        mine = ours / theirs.name
        if mine.exists():
            found += [
                f"{ours.name} segment {base}: {text}" for text in _segment(gateway, base, mine, theirs, index_interval_bytes)
            ]
    return found


def state_differences(ours: Path, kafkas: Path) -> Iterator[str]:
    """Of the leader epochs, and of the producers in snapshots."""
    epochs = [(side / LEADER_EPOCHS).read_text() if (side / LEADER_EPOCHS).exists() else "none" for side in (ours, kafkas)]
    if epochs[0] != epochs[1]:
        yield f"{ours.name}: leader epochs {epochs[0]!r}, Kafka's {epochs[1]!r}"
    for snapshot in sorted({path.name for path in ours.glob("*.snapshot")} & {path.name for path in kafkas.glob("*.snapshot")}):
        if read_snapshot((ours / snapshot).read_bytes()) != read_snapshot((kafkas / snapshot).read_bytes()):
            yield f"{ours.name}: the producers in {snapshot} differ"


def _names(ours: Path, kafkas: Path) -> Iterator[str]:
    mine, theirs = (_files_of(side) for side in (ours, kafkas))
    for name in sorted(mine - theirs):
        yield f"{ours.name}: only we have {name}"
    for name in sorted(theirs - mine):
        yield f"{ours.name}: only Kafka has {name}"


def _files_of(partition: Path) -> set[str]:
    """The names of its files, without the producer snapshots that a broker removes when it loads the log: those at or below
    the log's first offset, and all that belong to no segment except the newest."""
    names = {path.name for path in partition.iterdir() if path.suffix in _KINDS}
    snapshots = sorted(name for name in names if name.endswith(".snapshot"))
    first = min(segments_of(partition), default=0)
    dropped = {name for name in snapshots if int(name[:20]) <= first}
    dropped |= {name for name in snapshots[:-1] if f"{name[:20]}.log" not in names}
    return names - dropped


def _segment(gateway: Gateway, base: int, mine: Path, theirs: Path, interval: int) -> Iterator[str]:
    # a new segment has the time at which the program ran
    written = mine.stat().st_size or theirs.stat().st_size
    if written and mine.stat().st_mtime_ns // 10**6 != theirs.stat().st_mtime_ns // 10**6:
        yield f"mtime {mine.stat().st_mtime_ns // 10**6}, Kafka's {theirs.stat().st_mtime_ns // 10**6}"
    yield from _same_file(mine, theirs, ".txnindex")
    ours, kafkas = batches_of(mine.read_bytes()), batches_of(theirs.read_bytes())
    if mine.read_bytes() == theirs.read_bytes():
        indexes = [*_same_file(mine, theirs, ".index"), *_same_file(mine, theirs, ".timeindex")]
        if not indexes or not has_sparse_indexes(gateway.release):
            yield from indexes
            return
    else:
        yield from _batches(ours, kafkas)
        if kafka_records(gateway, mine) != kafka_records(gateway, theirs):
            yield "records differ"
    index, times = expected_indexes(base, ours, interval)
    for suffix, expected in ((".index", index), (".timeindex", times)):
        if mine.with_suffix(suffix).read_bytes() != expected:
            yield f"{suffix} is not the one of these batches"


def _same_file(mine: Path, theirs: Path, suffix: str) -> Iterator[str]:
    ours, kafkas = (path.with_suffix(suffix) for path in (mine, theirs))
    if ours.exists() and kafkas.exists() and ours.read_bytes() != kafkas.read_bytes():
        yield f"{suffix} {ours.read_bytes().hex()}, Kafka's {kafkas.read_bytes().hex()}"


def _batches(ours: list[RawBatch], kafkas: list[RawBatch]) -> Iterator[str]:
    if len(ours) != len(kafkas):
        yield f"{len(ours)} batches, Kafka's {len(kafkas)}"
    for mine, theirs in zip(ours, kafkas, strict=False):
        if mine.header != theirs.header:
            yield f"batch at {mine.position}: header {mine.header}, Kafka's {theirs.header}"
            return
        if mine.codec == 0 and mine.content != theirs.content:
            yield f"uncompressed batch at {mine.position} (offset {mine.last_offset}) differs"
            return
