"""Batch verdicts agree with the oracle over rounds of random logs; ``tests/scenarios`` has each rule by itself."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from compaction.formats.producer_snapshot import ProducerEntry
from compaction.kernels import tables
from compaction.rules.record_retention import ActiveProducers, RoundRules
from compaction.rules.transactions import AbortedRanges, resolve_cleaning, summarise
from tests.oracle.cleaner import NaiveConfig, NaiveRound, after_round, clean_log_naively
from tests.oracle.logs import LogBuilder, Sent
from tests.oracle.random_logs import Flavour, random_log
from tests.oracle.tables import as_segment, batch_table


class V(IntFlag):
    DISCARD = tables.DISCARD
    RETAIN_EMPTY = tables.RETAIN_EMPTY
    MARKER_OF_EMPTY_TXN = tables.MARKER_OF_EMPTY_TXN


ONE = [Sent(b"k", b"v")]
P = 7
NOBODY = ActiveProducers.of([])


def ranges(*triples: tuple[int, int, int]) -> AbortedRanges:
    columns = np.array(triples, dtype=np.int64).reshape(-1, 3)
    return AbortedRanges(columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy())


def rows_of(log: LogBuilder) -> NDArray[np.void]:
    (segment,) = log.build()
    return batch_table(segment)


RULES = RoundRules(ranges(), np.empty(0, np.int64), NOBODY, retain_end_offset=1_000, now_ms=6_000)


def test_a_batch_without_a_producer_is_no_producers_last_record() -> None:
    log = LogBuilder()
    log.batch(ONE)
    none = ActiveProducers.of([ProducerEntry(-1, 0, 0, 0, 0, 0, 0, -1)])
    assert not none.are_last_records(rows_of(log)).any()


def test_message_sets_have_neither_transactions_nor_horizons() -> None:
    log = LogBuilder()
    log.legacy(ONE, 1)
    rows = rows_of(log)
    rows["attributes"] = 0x70
    rules = replace(RULES, aborted=ranges((-1, 0, 9)), discardable=np.array([0], np.int64))
    assert rules.verdicts(rows).tolist() == [0]


def test_no_batches_give_no_verdicts() -> None:
    assert RULES.verdicts(rows_of(LogBuilder())).tolist() == []


def test_verdicts_agree_with_the_oracle_over_rounds_of_random_logs() -> None:
    seen: Counter[int] = Counter()
    for seed in range(60):
        rng = random.Random(seed)
        log = random_log(seed, Flavour(batches=70, keys=3, producers=8, magics=(2, 2, 2, 1)))
        segments, now_ms = log.segments, log.end_ms
        active = tuple(entry for entry in log.producers if rng.random() < 0.8)
        end = log.segment_bases()[-1]
        for _ in range(3):
            round_ = NaiveRound(segments[0].base_offset, end, now_ms, segments[0].base_offset, active)
            result = clean_log_naively(segments, NaiveConfig(segment_bytes=6_000, delete_retention_ms=1_000), round_)
            models = {segment.base_offset: as_segment(segment) for segment in segments}
            groups = [[models[base] for base in group.sources] for group in result.groups]
            tables = [batch_table(segment) for segment in segments]
            rows = np.concatenate([summarise(table, at) for at, table in enumerate(tables)])
            resolved = resolve_cleaning(list(models.values()), groups, round_.log_start_offset, rows)
            cleaned = np.concatenate(
                [tables[at] for at, base in enumerate(models) if base < result.end_offset] or [tables[0][:0]]
            )
            # as ``LogPlan.retain_end_offset``: the high watermark is the log end
            last = end if end == segments[-1].next_offset else -1
            rules = RoundRules(resolved.aborted, resolved.discardable, ActiveProducers.of(active), last, now_ms)
            verdicts = rules.verdicts(cleaned)
            bits = (V.DISCARD, V.RETAIN_EMPTY, V.MARKER_OF_EMPTY_TXN)
            ours = [
                (int(row["last_offset"]), *(bool(v & bit) for bit in bits)) for row, v in zip(cleaned, verdicts, strict=True)
            ]
            assert ours == [tuple(judged) for judged in result.judged]
            seen.update(int(v) for v in verdicts)
            segments, now_ms = after_round(segments, result), now_ms + 2_000
    shown = [V(v) for v in seen]
    for bit in V:
        assert any(bit in verdict for verdict in shown), bit
