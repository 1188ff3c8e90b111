"""Differences between two partition directories that should be the same log.

Files are compared byte by byte. The compressed bytes of rewritten batches may differ, because the compressors do: then headers
and decoded records (read by Kafka) must be equal, and the indexes must follow Kafka's rule for the job's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.conformance.segment_bytes import RawBatch, batches_of, expected_indexes, segments_of
from tests.kafka.gateway import Gateway
from tests.kafka.reader import kafka_records

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


def _indexes_otherwise(gateway: Gateway) -> bool:
    """Whether this version's cleaner adds index entries at other batches: one for a whole buffer that it wrote."""
    return gateway.release < (3, 9, 1) or gateway.release == (4, 0, 0)


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
    if mine.stat().st_mtime_ns // 10**6 != theirs.stat().st_mtime_ns // 10**6:
        yield f"mtime {mine.stat().st_mtime_ns // 10**6}, Kafka's {theirs.stat().st_mtime_ns // 10**6}"
    yield from _same_file(mine, theirs, ".txnindex")
    ours, kafkas = batches_of(mine.read_bytes()), batches_of(theirs.read_bytes())
    if mine.read_bytes() == theirs.read_bytes():
        trims = gateway.release < (4, 4)
        indexes = [text for kind in (".index", ".timeindex") for text in _same_file(mine, theirs, kind, trims=trims)]
        if not indexes or not _indexes_otherwise(gateway):
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


def _same_file(mine: Path, theirs: Path, suffix: str, *, trims: bool = True) -> Iterator[str]:
    """``trims``: Kafka cuts preallocated zeros off when it closes the log; since 4.4 an active segment keeps them."""
    paths = [path.with_suffix(suffix) for path in (mine, theirs)]
    if not all(path.exists() for path in paths):
        return
    ours, kafkas = (path.read_bytes() for path in paths)
    if not trims and len(kafkas) > len(ours):
        kafkas = kafkas[: len(ours)] + kafkas[len(ours) :].rstrip(b"\0")
    if ours != kafkas:
        yield f"{suffix} {ours.hex()}, Kafka's {kafkas.hex()}"


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
