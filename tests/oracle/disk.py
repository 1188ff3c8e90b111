"""The oracle's segments as files of a partition directory, and back."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from compaction.formats.producer_snapshot import ProducerEntry, write_snapshot
from tests.oracle.segments import NaiveSegment


def write_partition(path: Path, segments: Iterable[NaiveSegment]) -> None:
    """Writes every segment's files; an empty transaction index is not written."""
    path.mkdir(parents=True, exist_ok=True)
    for segment in segments:
        contents = {
            "log": segment.log,
            "index": segment.index,
            "timeindex": segment.time_index,
            "txnindex": segment.txn_index,
        }
        for kind, content in contents.items():
            if content or kind != "txnindex":
                file = path / f"{segment.base_offset:020d}.{kind}"
                file.write_bytes(content)
                os.utime(file, ns=(segment.mtime_ms * 1_000_000,) * 2)


def write_producers(path: Path, end_offset: int, producers: Iterable[ProducerEntry]) -> None:
    """Writes the producer snapshot at the log end, from which a broker loads the state after a clean shutdown."""
    (path / f"{end_offset:020d}.snapshot").write_bytes(write_snapshot(producers))


def read_partition(path: Path) -> list[NaiveSegment]:
    """All segments of a partition directory that was closed cleanly."""
    return [_read_segment(file) for file in sorted(path.glob("*.log"))]


def _read_segment(log: Path) -> NaiveSegment:
    parts = [log.with_suffix(suffix) for suffix in (".index", ".timeindex", ".txnindex")]
    index, time_index, txn_index = (part.read_bytes() if part.exists() else b"" for part in parts)
    return NaiveSegment(int(log.stem), log.read_bytes(), index, time_index, txn_index, log.stat().st_mtime_ns // 1_000_000)
