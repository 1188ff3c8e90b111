"""Random logs of every flavour, with settings and a checkpoint, on disk as a broker leaves them that was shut down."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compaction.formats.producer_snapshot import ProducerEntry
from tests.local_job import write_offsets
from tests.oracle.disk import write_partition, write_producers
from tests.oracle.random_logs import START_MS, Flavour, random_log
from tests.oracle.segments import NaiveSegment

INTERVAL_BYTES = 200
FLAVOURS = {
    "plain": Flavour(batches=80),
    "small": Flavour(batches=40, keys=4),
    "markers": Flavour(batches=70, keys=2, producers=12),
    "one-key": Flavour(batches=40, keys=1, producers=0, transactions=False),
    "no-transactions": Flavour(transactions=False, keys=40),
    "message-sets": Flavour(magics=(0, 1, 2)),
    "gzip": Flavour(codecs=(1,), magics=(0, 1, 2)),
    "snappy": Flavour(codecs=(2,), magics=(0, 1, 2)),
    "lz4": Flavour(codecs=(3,), magics=(0, 1, 2)),
    "zstd": Flavour(codecs=(0, 4), magics=(1, 2)),
    "odd": Flavour(batches=80, odd=0.5, stated=0.2),
    "odd-of-all-codecs": Flavour(odd=0.4, stated=0.1, codecs=(0, 1, 2, 3, 4), magics=(0, 1, 2)),
    "odd-markers": Flavour(odd=0.6, keys=2, producers=10),
}
#: later than anything in any of them
NOW_MS = START_MS + 300_000


@dataclass
class Case:
    """A log with its active producers, its topic-level settings, and its cleaner checkpoint."""

    name: str
    segments: Sequence[NaiveSegment]
    producers: tuple[ProducerEntry, ...]
    topic_config: dict[str, str]
    checkpoint: int

    def write(self, log_dir: Path, now_ms: int = NOW_MS) -> None:
        """The partition directory; no producer has expired."""
        write_partition(log_dir / f"{self.name}-0", self.segments)
        active = (entry._replace(last_timestamp_ms=now_ms) for entry in self.producers)
        write_producers(log_dir / f"{self.name}-0", self.segments[-1].next_offset, active)


def lay_out(log_dir: Path, cases: Iterable[Case], now_ms: int = NOW_MS) -> None:
    """A log directory with these logs, and their checkpoints."""
    cases = list(cases)
    for case in cases:
        case.write(log_dir, now_ms)
    write_offsets(log_dir, cleaner_offsets={case.name: case.checkpoint for case in cases})


def contents(log_dir: Path) -> dict[str, bytes]:
    """All files but those on their way out, and the lock."""
    files = (path for path in log_dir.rglob("*") if path.is_file() and path.suffix not in (".deleted", ".lock"))
    return {str(path.relative_to(log_dir)): path.read_bytes() for path in files}


def random_case(flavour: str, seed: int) -> Case:
    """A log with random settings, its producers active but for some."""
    rng = random.Random(f"{flavour} {seed}")
    log = random_log(seed, FLAVOURS[flavour])
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "internal.segment.bytes": str(rng.choice((3_000, 6_000, 1 << 20))),
        "index.interval.bytes": str(INTERVAL_BYTES),
        "delete.retention.ms": str(rng.choice((0, 1_000, 10**9))),
    }
    low, top = log.segments[0].base_offset, log.segment_bases()[-1]
    middle = log.segments[len(log.segments) // 2].base_offset
    checkpoint = min(top, rng.choice((low, middle, rng.randrange(low, top + 1))))
    active = tuple(entry for entry in log.producers if rng.random() < 0.8 or entry.current_txn_first_offset >= 0)
    return Case(f"{flavour}-{seed}", list(log.segments), active, config, checkpoint)


def random_cases(seeds: Iterable[int]) -> list[Case]:
    """One of each flavour for each seed."""
    return [random_case(flavour, seed) for seed in seeds for flavour in FLAVOURS]
