"""Random logs with a mix of everything that a cleaner must handle, reproducible from a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from compaction.formats.producer_snapshot import ProducerEntry
from tests.oracle.logs import ABORT, COMMIT, LEADER_CHANGE, Batching, LogBuilder, Sent
from tests.oracle.oddities import BAD_NAMES, GOOD_NAMES, loosen, restate, spoil
from tests.oracle.segments import NaiveSegment

START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Flavour:
    """The content of a random log.

    ``codecs`` and ``magics`` are equally likely; ``odd`` is the probability of a batch that no current producer would write,
    ``stated`` that of one whose header has times and bits that no broker writes, ``spoiled`` that of a batch that Kafka's
    cleaner cannot rewrite. A segment ends with the markers of all open transactions with probability ``settled``, and with
    probability ``far`` a gap follows of up to half of what an index can express. ``marker_keys`` says that records may have the
    keys of transaction markers.
    """

    batches: int = 60
    keys: int = 12
    codecs: tuple[int, ...] = (0,)
    magics: tuple[int, ...] = (2,)
    producers: int = 4
    transactions: bool = True
    gaps: bool = True
    index_interval_bytes: int = 200
    odd: float = 0.0
    stated: float = 0.0
    spoiled: float = 0.0
    settled: float = 0.0
    far: float = 0.0
    marker_keys: bool = True


@dataclass(frozen=True)
class RandomLog:
    """All segments (the last one is active), the producers' state, the last stable offset and the latest timestamp."""

    segments: list[NaiveSegment]
    producers: tuple[ProducerEntry, ...]
    last_stable_offset: int
    end_ms: int

    def segment_bases(self) -> list[int]:
        """Possible first dirty and first uncleanable offsets: base offsets at or below the last stable offset."""
        bases = [segment.base_offset for segment in self.segments]
        return [base for base in bases if base <= self.last_stable_offset] or bases[:1]


def random_log(seed: int, flavour: Flavour, start_ms: int = START_MS) -> RandomLog:
    """The log of this seed, its first record written shortly after ``start_ms``."""
    return _Writer(random.Random(seed), flavour, start_ms).write()


class _Writer:
    def __init__(self, rng: random.Random, flavour: Flavour, start_ms: int) -> None:
        self.rng = rng
        self.flavour = flavour
        self.log = LogBuilder(flavour.index_interval_bytes)
        self.now_ms = start_ms

    def write(self) -> RandomLog:
        for _ in range(self.flavour.batches):
            self.now_ms += self.rng.choice([0, 1, 50, 1_000])
            self._step()
            if self.log.size_bytes > 1_500 and self.rng.random() < 0.4:
                self._roll()
        last_stable = min(self.log.open_txns.values(), default=self.log.next_offset)
        return RandomLog(self.log.build(self.now_ms), self.log.producers(), last_stable, self.now_ms)

    def _roll(self) -> None:
        if self.flavour.settled and self.rng.random() < self.flavour.settled:
            for producer in list(self.log.open_txns):
                self._end(producer)
        self.log.roll(self.now_ms)
        if self.flavour.gaps and self.rng.random() < 0.3:
            self.log.skip(self.rng.randrange(5))
        if self.flavour.far and self.rng.random() < self.flavour.far:
            self.log.skip(self.rng.choice((1 << 30, (1 << 30) - 1, (1 << 30) - self.rng.randrange(60), 1 << 29)))

    def _step(self) -> None:
        draw = self.rng.random()
        if self.flavour.gaps and draw < 0.05:
            self.log.skip(self.rng.randrange(1, 20))
        self.odd = self.rng.random() < self.flavour.odd
        self.log.mangle = (lambda raw: loosen(raw, self.rng)) if self.odd and self.rng.random() < 0.5 else None
        if self.flavour.spoiled and self.rng.random() < self.flavour.spoiled:
            self.log.mangle = lambda raw: spoil(raw, self.rng)
        # of its own draws, so that the logs are otherwise those without it
        header = random.Random(draw)
        self.log.restate = (lambda raw: restate(raw, header)) if header.random() < self.flavour.stated else None
        magic = self.rng.choice(self.flavour.magics)
        if self.odd and self.rng.random() < 0.3:
            self._odd_batch()
        elif magic < 2:
            # zstd does not exist in v0/v1
            codec = self.rng.choice([codec for codec in self.flavour.codecs if codec != 4] or [0])
            append_ms = self.now_ms if self.rng.random() < 0.2 else None
            inner = 1 - magic if self.odd else magic
            self.log.legacy(self._records(keyed=True), magic, codec, log_append_ms=append_ms, inner_magic=inner)
        elif self.flavour.transactions and draw < 0.3:
            self._control()
        else:
            self._data()

    def _control(self) -> None:
        if self.rng.random() < 0.1:
            self.log.marker(-1, LEADER_CHANGE, timestamp=self.now_ms)
            return
        candidates = list(self.log.open_txns) or [self.rng.randrange(self.flavour.producers)]
        producer = self.rng.choice(candidates if self.rng.random() < 0.9 else list(range(self.flavour.producers)))
        self._end(producer)

    def _end(self, producer: int) -> None:
        how = Batching(epoch=self.log.epoch_of(producer) + (self.rng.random() < 0.3))
        kind = self.rng.choice([ABORT, COMMIT])
        self.log.marker(producer, kind, how, timestamp=self.now_ms)

    def _odd_batch(self) -> None:
        rng = self.rng
        producer = rng.randrange(max(self.flavour.producers, 1))
        epoch = self.log.epoch_of(producer)
        horizon = Batching(epoch=epoch, horizon_ms=self.now_ms + rng.randrange(-2_000, 10_000))
        kind = rng.randrange(5)
        if kind == 0:
            self.log.marker(-1, rng.choice((6, 7, 300, -1, -3)), timestamp=self.now_ms)
        elif kind == 1 and self.flavour.transactions:
            self.log.marker(producer, rng.choice((ABORT, COMMIT)), Batching(epoch=epoch), empty=True)
        elif kind == 2 and self.flavour.transactions:
            self.log.marker(producer, rng.choice((ABORT, COMMIT)), horizon, timestamp=self.now_ms)
        elif kind == 3 and self.flavour.producers:
            self.log.batch([], Batching(producer=producer, epoch=epoch, transactional=producer in self.log.open_txns))
        else:
            self.log.batch(self._records(keyed=True), replace(horizon, codec=rng.choice(self.flavour.codecs)))

    def _data(self) -> None:
        producer = self.rng.randrange(-2, self.flavour.producers) if self.flavour.producers else -1
        producer = max(producer, -1)
        transactional = (
            self.flavour.transactions and producer >= 0 and (producer in self.log.open_txns or self.rng.random() < 0.7)
        )
        how = Batching(
            codec=self.rng.choice(self.flavour.codecs),
            producer=producer,
            epoch=self.log.epoch_of(producer) if producer >= 0 else 0,
            transactional=transactional,
            log_append_ms=self.now_ms if self.rng.random() < 0.15 else None,
            leader_epoch=self.log.next_offset // 100,
        )
        self.log.batch(self._records(keyed=self.rng.random() < 0.95), how)

    def _records(self, *, keyed: bool) -> Sequence[Sent]:
        return [self._record(keyed=keyed) for _ in range(self.rng.choice([1, 1, 2, 3, 8]))]

    def _record(self, *, keyed: bool) -> Sent:
        rng = self.rng
        rare = rng.random()
        key = b"key-%d" % rng.randrange(self.flavour.keys)
        if rare < 0.05:
            # empty, or like the keys of transaction markers
            key = (
                b""
                if rare < 0.03
                else struct.pack(">hh" if self.flavour.marker_keys else ">hhx", 0, rng.choice((ABORT, COMMIT)))
            )
        if not keyed and rng.random() < 0.5:
            key_or_none: bytes | None = None
        else:
            key_or_none = key
        value = None if rng.random() < 0.15 else rng.randbytes(rng.randrange(60))
        headers: tuple[tuple[bytes, bytes | None], ...] = ()
        if rng.random() < 0.2:
            names = (*BAD_NAMES, *GOOD_NAMES) if self.odd else ("é".encode(),)
            headers = ((b"h", None), (rng.choice(names), rng.randbytes(3)))
        return Sent(key_or_none, value, self.now_ms - rng.randrange(3_000), headers)
