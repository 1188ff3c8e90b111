"""Random scenarios, each from a seed: a random log, cut into the appends before each round, and the settings.

The times of the rounds are the same for all, so that one run cleans many logs; each has some of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

from compaction.config.entries import MAX_RECORD
from tests.oracle.random_logs import Flavour, RandomLog, random_log
from tests.scenarios.language import DAY, KNOWN, Round, Scenario, T

_LATEST_START_MS = T + 100_000
NEWEST = (4, 4, 0)
#: the first release whose cleaner keeps markers beside records with the keys of markers (KAFKA-14055)
_KEEPS_MARKERS = (3, 0, 2)
#: the first release that cleans nothing at or past the high watermark (KAFKA-13194)
_BOUND_BY_HIGH_WATERMARK = (3, 1)
#: the first release that deletes by size before it deletes by time
_SIZE_FIRST = (3, 0)
_LARGEST_INDEX = "10485760"
#: the times of the rounds: every log has been written by the first one
ROUND_TIMES = tuple(T + 400_000 + later for later in (0, 500, 1_000, 60_000, DAY, DAY + 999, 12 * DAY))


def has_sparse_indexes(release: tuple[int, ...]) -> bool:
    """Whether this version's cleaner adds an index entry for a buffer that it wrote, not for a batch."""
    return release < (3, 9, 1) or release == (4, 0, 0)


def limits_records(release: tuple[int, ...]) -> bool:
    """Whether this version has ``max.decompressed.message.bytes``."""
    return release >= (4, 4) or (4, 2, 2) <= release < (4, 3)


def draw(seed: int, release: tuple[int, ...] = NEWEST) -> Scenario:
    """The scenario of this seed, without what the cleaner of that release handles against its own rules."""
    return _Drawer(seed, release).draw()


def drawn(seeds: Iterable[int], release: tuple[int, ...] = NEWEST) -> dict[str, Scenario]:
    """The scenarios of these seeds, as a broker wrote them that was shut down."""
    found = {f"seed{seed}": draw(seed, release) for seed in seeds}
    return {
        name: replace(one, as_leader=False, rounds=[replace(each, killed=False, lost=()) for each in one.rounds])
        for name, one in found.items()
    }


def _without_offsets(round_: Round) -> Round:
    checkpoint = round_.checkpoint if round_.checkpoint in (None, KNOWN) else 0
    return replace(round_, log_start=0, high_watermark=None, checkpoint=checkpoint)


class _Drawer:
    def __init__(self, seed: int, release: tuple[int, ...]) -> None:
        self.seed, self.release = seed, release
        self.rng = random.Random(f"story {seed}")
        self.as_leader = self.rng.random() < 0.2
        self.deletes = random.Random(f"policy {seed}").random() < 0.15

    def draw(self) -> Scenario:
        rng = self.rng
        log = self._log()
        stages = [stage for stage in log.stages if stage.segments >= 2] or [log.stages[-1]]
        grown = sorted(rng.sample(range(len(stages)), min(len(stages), rng.choice((1, 2, 2, 3)))))
        grown[-1] = len(stages) - 1 if rng.random() < 0.7 else grown[-1]
        steps = [stages[at].segments for at in sorted(set(grown))]
        times = sorted(rng.sample(range(len(ROUND_TIMES)), min(len(ROUND_TIMES), len(steps) + rng.choice((0, 1, 2, 3)))))
        rounds: list[Round] = []
        done = start = 0
        for number, at in enumerate(times):
            upto = steps[number] if number < len(steps) else done
            grows = upto > done
            new = log.segments[done:upto]
            done = max(done, upto)
            known = log.segments[:done]
            start = self._log_start(start, known[-1].next_offset)
            high = rng.randrange(start, known[-1].next_offset + 1) if rng.random() < 0.1 else None
            # mostly below the active segment, where it has an effect
            bound = known[-1].next_offset if rng.random() < 0.2 else known[-1].base_offset
            checkpoint = self._checkpoint(number, bound, grows=grows)
            if number and log.producers and has_sparse_indexes(self.release) and checkpoint not in (None, KNOWN):
                # inside a cleaned segment the index decides whether the map pass reads an ABORT marker before the checkpoint
                checkpoint = 0
            # when Kafka recovers it replays from the log start, and then takes aborted data before it for committed; and when
            # it rebuilds an index it removes producer snapshots, and then loses producers and their transactions
            killed, lost = grows and rng.random() < 0.1 and not start, () if log.producers else self._lost()
            if self.deletes:
                # the log start is that of the last round, and both halves of the policy are checked
                killed, lost = False, ()
            if killed or any(each.killed for each in rounds):
                # when it recovers, Kafka loses which transactions ended past the high watermark
                high = None
            if self.release < _BOUND_BY_HIGH_WATERMARK:
                high = None
            replays = rng.random() < 0.15 and not self.deletes and not any((killed, *(each.killed for each in rounds)))
            rounds.append(
                Round(
                    ROUND_TIMES[at],
                    [[batch.raw for batch in segment.batches] for segment in new],
                    {place: segment.mtime_ms for place, segment in enumerate(new)},
                    checkpoint,
                    start,
                    high,
                    killed,
                    (*lost, *["newest.snapshot"] * replays),
                )
            )
        if self.as_leader:
            # a leader assigns other offsets than these batches have
            rounds = list(map(_without_offsets, rounds))
        config = self._config(log, rounds)
        if any(each.killed for each in rounds):
            # Kafka refuses preallocated indexes over the bound
            config["segment.index.bytes"] = _LARGEST_INDEX
        if has_sparse_indexes(self.release):
            # the job rebuilds indexes with few entries, and groups are bound by the size of their indexes
            config["segment.index.bytes"] = _LARGEST_INDEX
        return Scenario(rounds, config, as_leader=self.as_leader)

    def _log(self) -> RandomLog:
        rng = self.rng
        flavour = Flavour(
            batches=rng.choice((12, 25, 40, 40, 90)),
            keys=rng.choice((1, 2, 5, 12, 12, 40)),
            codecs=rng.choice(((0,), (0,), (0,), (1,), (2,), (3,), (4,), (0, 1, 2, 3, 4))),
            magics=rng.choice(((2,), (2,), (2,), (2,), (1, 2), (0, 1, 2), (0, 1))),
            producers=rng.choice((0, 1, 4, 4, 12)),
            transactions=rng.random() < 0.75,
            gaps=rng.random() < 0.7,
            index_interval_bytes=int(self._interval()),
            odd=rng.choice((0.0, 0.0, 0.1, 0.5)),
            stated=random.Random(f"headers {self.seed}").choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.05, 0.5)),
            spoiled=0.0 if rng.random() < 0.95 else 0.1,
            settled=rng.choice((0.0, 0.4, 0.9)),
            far=0.0 if rng.random() < 0.93 else 0.6,
            marker_keys=self.release >= _KEEPS_MARKERS,
        )
        if not flavour.producers or flavour.magics == (0, 1):
            flavour = replace(flavour, transactions=False)
        if self.as_leader:
            flavour = replace(flavour, odd=0.0, stated=0.0, spoiled=0.0, gaps=False, far=0.0, magics=(2,))
        if self.deletes:
            # a log that cannot be cleaned is unchanged here, and loses its expired segments in Kafka
            flavour = replace(flavour, spoiled=0.0)
        start_ms = T + rng.randrange(_LATEST_START_MS - T)
        log = random_log(self.seed, flavour, start_ms)
        if log.producers and rng.random() < 0.3:
            # one of them expires exactly at the time of a later round
            start_ms += ROUND_TIMES[0] - rng.choice(log.producers).last_timestamp_ms
            log = random_log(self.seed, flavour, start_ms)
        return log

    def _some_age(self, log: RandomLog, rounds: Sequence[Round], *, first: bool = False) -> int:
        """About the time between a round and a segment's largest timestamp, or that of its ``first`` batch."""
        filled = [[batch.max_timestamp for batch in segment.batches] for segment in log.segments if segment.batches]
        times = [each[0] if first else max(each) for each in filled]
        time = times[0] if first and self.rng.random() < 0.5 else self.rng.choice(times)
        return self.rng.choice(rounds).now_ms - time + self.rng.choice((-1, 0, 0, 0, 1))

    def _some_wait(self, rounds: Sequence[Round]) -> str:
        """About the time between two rounds."""
        early, late = sorted((self.rng.choice(rounds).now_ms, self.rng.choice(rounds).now_ms))
        return str(max(late - early + self.rng.choice((-1, 0, 0, 1)), 0))

    def _interval(self) -> str:
        return random.Random(f"interval {self.seed}").choice(("200", "200", "1", "4096"))

    def _lost(self) -> tuple[str, ...]:
        rng = self.rng
        if rng.random() < 0.95:
            return ()
        # Kafka does not notice if only a time index is missing
        place = rng.randrange(6)
        return rng.choice(((f"{place}.index",), (f"{place}.index", f"{place}.timeindex")))

    def _checkpoint(self, number: int, bound: int, *, grows: bool) -> int | None:
        rng = self.rng
        draw = rng.random()
        if number:
            return KNOWN if draw < (0.7 if grows else 0.05) else rng.choice((None, rng.randrange(bound + 1)))
        if draw < 0.6:
            return None
        return rng.randrange(bound + 3) if draw < 0.9 else 0

    def _log_start(self, before: int, end_offset: int) -> int:
        if self.rng.random() < 0.93:
            return before
        return self.rng.randrange(before, end_offset + 1)

    def _config(self, log: RandomLog, rounds: Sequence[Round]) -> dict[str, str]:
        rng = self.rng
        config = {
            "internal.segment.bytes": rng.choice(("3000", "6000", "1048576", self._sum_of([len(s.log) for s in log.segments]))),
            "segment.index.bytes": rng.choice(("10485760", self._index_bound(log))),
            "index.interval.bytes": self._interval(),
            "delete.retention.ms": rng.choice(("0", "1000000000", *([self._some_wait(rounds)] * 3))),
        }
        if rng.random() < 0.15:
            config["min.cleanable.dirty.ratio"] = rng.choice(("0.2", "0.5", "0.8"))
        if rng.random() < 0.4:
            bound = rng.choice(("min.compaction.lag.ms", "max.compaction.lag.ms"))
            age = self._some_age(log, rounds, first=bound == "max.compaction.lag.ms")
            config[bound] = str(max(rng.choice((1, DAY, age, age, age, age)), 1))
            if bound == "max.compaction.lag.ms":
                config["min.cleanable.dirty.ratio"] = rng.choice(("0", "0.9", "1"))
        if self.as_leader:
            config["compression.type"] = rng.choice(("producer", "gzip", "snappy", "lz4", "zstd", "uncompressed"))
            config["message.timestamp.type"] = rng.choice(("CreateTime", "CreateTime", "LogAppendTime"))
        if self.deletes:
            config.update(self._retention(log, rounds))
        if limits_records(self.release):
            # about the largest records of these logs
            limited = random.Random(f"record limit {self.seed}")
            config.update({MAX_RECORD: str(limited.choice((40, 60, 70, 80)))} if limited.random() < 0.08 else {})
        return config

    def _sum_of(self, sizes: Sequence[int]) -> str:
        """About the total size of some adjacent segments."""
        first = self.rng.choice((0, 0, self.rng.randrange(len(sizes))))
        return str(max(sum(sizes[first : first + self.rng.choice((2, 3, 4))]) + self.rng.choice((-1, 0, 0, 1)), 100))

    def _index_bound(self, log: RandomLog) -> str:
        # an index over the bound cannot even be opened by Kafka; one that it writes may be longer than those of its sources
        sizes = [len(each.time_index) for each in log.segments]
        longest = max([*sizes, *(len(each.index) for each in log.segments)])
        return self.rng.choice((str(96 + 3 * longest), str(max(int(self._sum_of(sizes)), 24 + 2 * longest))))

    def _retention(self, log: RandomLog, rounds: Sequence[Round]) -> dict[str, str]:
        """``compact,delete`` with limits that some segments exceed."""
        rng = self.rng
        longest = max(self._some_age(log, rounds), 1)
        sizes = [len(segment.log) for segment in log.segments]
        kept = sum(sizes[rng.randrange(len(sizes)) :]) + rng.choice((-1, 0, 1))
        by_time, by_size = {"retention.ms": str(longest)}, {"retention.bytes": str(kept)}
        bounds = rng.choice((by_time, by_time, by_size, {**by_time, **by_size}))
        if self.release < _SIZE_FIRST and len(bounds) > 1:
            bounds = by_size
        return {"cleanup.policy": "compact,delete", "retention.ms": "-1", **bounds}
