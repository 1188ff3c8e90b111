"""Log directories with very many small logs, as a broker leaves them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from compaction.files.local import LocalFileSystem
from compaction.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    LEADER_EPOCHS,
    META_PROPERTIES,
    PARTITION_METADATA,
    TopicPartition,
    segment_file,
)
from tests.log.logs import Built, data_segment, put_snapshot

#: of a segment
_RECORDS = 4


def topic_partitions(logs: int, partitions: int) -> Iterator[TopicPartition]:
    """The names of ``logs`` logs, in topics of ``partitions`` partitions."""
    return (TopicPartition(f"topic-{number // partitions:05d}", number % partitions) for number in range(logs))


def write_many_logs(log_dir: Path, logs: int, segments: int, *, partitions: int = 10, dirty: int = 0) -> None:
    """A log directory with ``segments`` segments in ``logs`` logs, after a clean shutdown.

    :param dirty: number of logs that have never been cleaned; all others are clean up to the active segment
    """
    fs = LocalFileSystem()
    built = [data_segment(n * _RECORDS, range(n * _RECORDS, (n + 1) * _RECORDS)) for n in range(-(-segments // logs))]
    clean: list[str] = []
    for number, name in enumerate(topic_partitions(logs, partitions)):
        own = built[: segments * (number + 1) // logs - segments * number // logs]
        _write_log(fs, log_dir / str(name), own)
        if number * dirty // logs == (number + 1) * dirty // logs:
            clean.append(f"{name.topic} {name.partition} {own[-1].base_offset}")
    (log_dir / CLEANER_OFFSETS).write_text("\n".join(["0", str(len(clean)), *clean]) + "\n")
    (log_dir / META_PROPERTIES).write_text("version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAA\nnode.id=1\n")
    (log_dir / CLEAN_SHUTDOWN).write_text('{"version":0,"brokerEpoch":1}')


def _write_log(fs: LocalFileSystem, path: Path, segments: Sequence[Built]) -> None:
    path.mkdir(parents=True)
    for segment in segments:
        for kind, data in segment.files.items():
            (path / segment_file(segment.base_offset, kind)).write_bytes(data)
        if segment.base_offset:
            put_snapshot(fs, str(path), segment.base_offset)
    put_snapshot(fs, str(path), segments[-1].base_offset + _RECORDS)
    (path / PARTITION_METADATA).write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    (path / LEADER_EPOCHS).write_text("0\n1\n0 0\n")
