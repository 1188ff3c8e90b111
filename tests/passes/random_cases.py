"""Random logs of every flavour as cases for ``tests.passes.rounds``."""

from __future__ import annotations

import random
from collections.abc import Iterable

from tests.oracle.cleaner import NaiveConfig
from tests.oracle.random_logs import START_MS, Flavour, random_log
from tests.passes.rounds import INTERVAL_BYTES, Case

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


def random_case(flavour: str, seed: int) -> Case:
    """A log with random settings, its producers active but for some."""
    rng = random.Random(f"{flavour} {seed}")
    log = random_log(seed, FLAVOURS[flavour])
    config = NaiveConfig(
        segment_bytes=rng.choice((3_000, 6_000, 1 << 20)),
        index_interval_bytes=INTERVAL_BYTES,
        delete_retention_ms=rng.choice((0, 1_000, 10**9)),
    )
    segments = list(log.segments)
    low, top = log.segments[0].base_offset, log.segment_bases()[-1]
    middle = log.segments[len(log.segments) // 2].base_offset
    checkpoint = min(top, rng.choice((low, middle, rng.randrange(low, top + 1))))
    active = tuple(entry for entry in log.producers if rng.random() < 0.8 or entry.current_txn_first_offset >= 0)
    return Case(f"{flavour}-{seed}", segments, active, log.last_stable_offset, config, checkpoint)


def random_cases(seeds: Iterable[int]) -> list[Case]:
    """One of each flavour for each seed."""
    return [random_case(flavour, seed) for seed in seeds for flavour in FLAVOURS]
