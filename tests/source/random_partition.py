"""Random logs on disk."""

from __future__ import annotations

from pathlib import Path

from tests.oracle.disk import write_partition, write_producers
from tests.oracle.random_logs import Flavour, RandomLog, random_log

FLAVOURS = {
    "plain": Flavour(batches=80),
    "message sets": Flavour(magics=(0, 1, 2)),
    "gzip": Flavour(codecs=(1,), magics=(0, 1, 2)),
    "snappy": Flavour(codecs=(2,), magics=(0, 1, 2)),
    "lz4": Flavour(codecs=(3,), magics=(0, 1, 2)),
    "zstd": Flavour(codecs=(0, 4), magics=(1, 2)),
}


def write_random(log_dir: Path, flavour: str, seed: int) -> tuple[Path, RandomLog]:
    made = random_log(seed, FLAVOURS[flavour])
    path = log_dir / "random-0"
    write_partition(path, made.segments)
    write_producers(path, made.segments[-1].next_offset, made.producers)
    return path, made
