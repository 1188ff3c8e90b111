"""Random rounds over decoded records, with what pass 1 would find: survivor entries, verdicts, limits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compaction.kernels.retention import Limits
from compaction.kernels.tables import (
    DISCARD,
    DROPPED,
    MARKER_OF_EMPTY_TXN,
    OFFSET_SHIFT,
    RETAIN_EMPTY,
    TOMBSTONE,
)
from tests.oracle.records import NaiveBatch, NaiveRecord


@dataclass(frozen=True)
class Situation:
    """A round over some batches: the highest offset of each key, the verdict on each batch, and the kernels' limits."""

    batches: tuple[NaiveBatch, ...]
    latest: dict[bytes, int]
    verdicts: tuple[int, ...]
    first_dirty: int
    latest_offset: int
    now_ms: int
    retain_legacy: bool

    @property
    def limits(self) -> Limits:
        return Limits(self.first_dirty, self.latest_offset, self.now_ms, self.retain_legacy)

    @property
    def survivors(self) -> NDArray[np.uint64]:
        """Survivor entries: dirty records that the map holds, clean records to be dropped, and other clean tombstones."""
        found = []
        for batch in self.batches:
            for record in () if batch.control else batch.records():
                tombstone = TOMBSTONE if record.value is None else 0
                wins = self.is_latest(record)
                if record.offset >= self.first_dirty:
                    found += [tombstone | (record.offset + 1) << OFFSET_SHIFT] if wins else []
                elif not wins:
                    found.append(tombstone | DROPPED | (record.offset + 1) << OFFSET_SHIFT)
                elif tombstone:
                    found.append(tombstone | (record.offset + 1) << OFFSET_SHIFT)
        return np.array(sorted(found), np.uint64)

    def is_latest(self, record: NaiveRecord) -> bool:
        """Whether its key has no higher offset in the map; false without a key."""
        return record.key is not None and record.offset >= self.latest.get(record.key, -1)

    def kept(self, batch: NaiveBatch, verdict: int) -> list[NaiveRecord]:
        """The retained records of a batch."""
        if verdict & DISCARD:
            return []
        return [record for record in batch.records() if batch.control or self._is_retained(batch, record)]

    def _is_retained(self, batch: NaiveBatch, record: NaiveRecord) -> bool:
        if record.offset > self.latest_offset:
            return True
        if not self.is_latest(record):
            return False
        if record.value is not None:
            return True
        if batch.magic < 2:
            return self.retain_legacy
        return batch.delete_horizon_ms is None or self.now_ms < batch.delete_horizon_ms


def random_situation(rng: random.Random, batches: Sequence[NaiveBatch]) -> Situation:
    """A round over these batches, with any first dirty offset and any latest offset of the map."""
    low, high = batches[0].base_offset, batches[-1].last_offset
    first_dirty = rng.choice((low, rng.randrange(low, high + 1), high + 1))
    latest_offset = rng.choice((high, high, rng.randrange(low, high + 1)))
    latest: dict[bytes, int] = {}
    for batch in batches:
        for record in () if batch.control else batch.records():
            if record.key is not None and first_dirty <= record.offset <= latest_offset:
                latest[record.key] = record.offset
    verdicts = tuple(_verdict(rng, batch) for batch in batches)
    times = [batch.base_timestamp for batch in batches if batch.delete_horizon_ms is not None] or [0]
    now_ms = rng.choice(times) + rng.choice((-1, 0, 1))
    retain_legacy = rng.random() < 0.5
    return Situation(tuple(batches), latest, verdicts, first_dirty, latest_offset, now_ms, retain_legacy)


def _verdict(rng: random.Random, batch: NaiveBatch) -> int:
    retain = RETAIN_EMPTY if rng.random() < 0.3 and batch.magic == 2 else 0
    if batch.control:
        return retain | rng.choice((0, MARKER_OF_EMPTY_TXN, MARKER_OF_EMPTY_TXN | DISCARD))
    return retain | (DISCARD if batch.transactional and rng.random() < 0.4 else 0)
