"""Differences between two partition directories that should be the same log.

Files are compared byte by byte. The compressed bytes of rewritten batches may differ, because the compressors do: then headers
and decoded records (read by Kafka) must be equal, and the indexes must follow Kafka's rule for the job's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from compaction.formats.producer_snapshot import read_snapshot
from compaction.names import LEADER_EPOCHS
from tests.kafka.gateway import Gateway
from tests.kafka.reader import kafka_records
from tests.oracle.disk import read_partition
from tests.oracle.records import NaiveBatch
from tests.oracle.segments import NaiveSegment, write_segment
from tests.scenarios.draw import has_sparse_indexes

_KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_INDEX_INTERVAL_BYTES = 4096


def differences(gateway: Gateway, ours: Path, kafkas: Path, index_interval_bytes: int = _INDEX_INTERVAL_BYTES) -> list[str]:
    """One line per difference; empty if the two directories are the same log.

    ``.deleted`` files do not belong to a log. ``gateway`` has the version that cleaned ``kafkas``.
    """
    found = [*_names(ours, kafkas)]
    mine = {segment.base_offset: segment for segment in read_partition(ours)}
    for theirs in read_partition(kafkas):
        if (base := theirs.base_offset) in mine:
            paths = [side / f"{base:020d}.log" for side in (ours, kafkas)]
            texts = _segment(gateway, paths, mine[base], theirs, index_interval_bytes)
            found += [f"{ours.name} segment {base}: {text}" for text in texts]
    return found


def rebuilt(segment: NaiveSegment, index_interval_bytes: int) -> tuple[bytes, bytes]:
    """The index and time index that Kafka writes for an inactive segment of these batches."""
    made = write_segment(segment.base_offset, (batch.raw for batch in segment.batches), index_interval_bytes, 0)
    return made.index, made.time_index


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
    first = min((int(name[:20]) for name in names if name.endswith(".log")), default=0)
    dropped = {name for name in snapshots if int(name[:20]) <= first}
    dropped |= {name for name in snapshots[:-1] if f"{name[:20]}.log" not in names}
    return names - dropped


def _segment(gateway: Gateway, paths: Sequence[Path], ours: NaiveSegment, kafkas: NaiveSegment, interval: int) -> Iterator[str]:
    # a new segment has the time at which the program ran
    if (ours.log or kafkas.log) and ours.mtime_ms != kafkas.mtime_ms:
        yield f"mtime {ours.mtime_ms}, Kafka's {kafkas.mtime_ms}"
    yield from _same_file(paths, ".txnindex")
    if ours.log == kafkas.log:
        indexes = [*_same_file(paths, ".index"), *_same_file(paths, ".timeindex")]
        if not indexes or not has_sparse_indexes(gateway.release):
            yield from indexes
            return
    else:
        yield from _batches(ours.batches, kafkas.batches)
        if kafka_records(gateway, paths[0]) != kafka_records(gateway, paths[1]):
            yield "records differ"
    if (ours.index, ours.time_index) != rebuilt(ours, interval):
        yield "indexes are not those of these batches"


def _same_file(paths: Sequence[Path], suffix: str) -> Iterator[str]:
    ours, kafkas = (path.with_suffix(suffix) for path in paths)
    if ours.exists() and kafkas.exists() and ours.read_bytes() != kafkas.read_bytes():
        yield f"{suffix} {ours.read_bytes().hex()}, Kafka's {kafkas.read_bytes().hex()}"


def _batches(ours: Sequence[NaiveBatch], kafkas: Sequence[NaiveBatch]) -> Iterator[str]:
    if len(ours) != len(kafkas):
        yield f"{len(ours)} batches, Kafka's {len(kafkas)}"
    for mine, theirs in zip(ours, kafkas, strict=False):
        if _header(mine) != _header(theirs):
            yield f"batch at {mine.position}: {mine}, {_header(mine).hex()}, Kafka's {theirs}, {_header(theirs).hex()}"
            return
        if mine.codec == 0 and mine.raw != theirs.raw:
            yield f"uncompressed batch at {mine.position} (offset {mine.last_offset}) differs"
            return


def _header(batch: NaiveBatch) -> bytes:
    """What does not depend on the compressor: all but length and CRC, without the value of a message of magic 0 or 1."""
    raw = batch.raw
    return raw[:8] + (raw[12:17] + raw[21:61] if batch.magic == 2 else raw[16 : 26 if batch.magic == 1 else 18])
