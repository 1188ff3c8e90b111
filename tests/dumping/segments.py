"""Small partitions on disk for tests of the dump."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from compaction.formats.indexes import OFFSET_INDEX, OFFSET_ROW, TIME_INDEX, TIME_ROW
from tests.kafka.encode import Batch, Record

T0 = 1_760_000_000_000
EVERY = 3


class Made(NamedTuple):
    """A segment: base offset, path, records in order, and positions of its batches."""

    base: int
    path: Path
    records: tuple[Record, ...]
    positions: tuple[int, ...]


def made_records(base: int, batch: int, count: int) -> tuple[Record, ...]:
    """The records of one batch: every second offset, mostly increasing timestamps."""
    start = base + 2 * count * batch
    return tuple(
        Record(start + 2 * i, T0 + 10 * (start + 2 * i) - (25 if i == 1 else 0), b"key-%d" % (start + 2 * i), b"v" * (i + 1))
        for i in range(count)
    )


def write_segment(directory: Path, base: int = 0, batches: int = 12, count: int = 4, codec: str = "none") -> Made:
    """A segment with an index entry for every third batch."""
    directory.mkdir(parents=True, exist_ok=True)
    content, positions, records = b"", [], list[Record]()
    offsets, times, largest = [], [], (-1, -1)
    for number in range(batches):
        held = made_records(base, number, count)
        newest = max(held, key=lambda record: record.timestamp)
        if newest.timestamp > largest[0]:
            largest = newest.timestamp, held[-1].offset
        if number and number % EVERY == 0:
            offsets.append((held[-1].offset, len(content)))
            times.append(largest)
        positions.append(len(content))
        content += Batch(held, codec).encode()
        records += held
    path = directory / f"{base:020d}.log"
    path.write_bytes(content)
    path.with_suffix(".index").write_bytes(OFFSET_INDEX.write(np.array(offsets, OFFSET_ROW), base))
    path.with_suffix(".timeindex").write_bytes(TIME_INDEX.write(np.array(times, TIME_ROW), base))
    return Made(base, path, tuple(records), tuple(positions))


def write_partition(directory: Path, segments: int = 3) -> list[Made]:
    """A partition with some segments."""
    return [write_segment(directory, 200 * number, codec=("none", "lz4", "gzip")[number % 3]) for number in range(segments)]
