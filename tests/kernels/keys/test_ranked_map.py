"""Maps of ranked entries beside a dictionary, in one map and through spills, and the ranks of records."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from compaction.kernels.keys.ranked_map import RankedMap
from compaction.kernels.reading.batches import scan_batches
from compaction.kernels.reading.ranks import RANKED_WORDS, Ranking, rank_records
from compaction.kernels.reading.records import MAP, scan_records
from compaction.kernels.reading.siphash import HashSecret
from compaction.kernels.reading.tables import ENTRY_WORDS, LOOKUP, OFFSET_SHIFT, RANKED, UNEXPIRED
from compaction.passes.merge import resolve_shard
from compaction.passes.task_map import RankedTaskMap
from compaction.passes.tasks import LastRecord, RankedEntries
from tests.kafka.encode import Batch, Record

#: an entry as its order: key, whether it has a rank, the rank, the offset
Ranked = tuple[int, bool, int, int]


def random_entries(seed: int, count: int, keys: int) -> list[Ranked]:
    rng = random.Random(seed)
    offsets = rng.sample(range(10 * count), count)
    return [(rng.randrange(keys), rng.random() < 0.8, rng.choice((0, 1, 2**64 - 1, rng.getrandbits(64))), o) for o in offsets]


def words(entries: Sequence[Ranked], flags: int = 0) -> NDArray[np.uint64]:
    rows = [
        (key + 1, key << 40, (offset + 1) << OFFSET_SHIFT | flags | (RANKED if ranked else 0), rank if ranked else 0)
        for key, ranked, rank, offset in entries
    ]
    return np.array(rows, np.uint64).reshape(-1, RANKED_WORDS)


def order(entry: Ranked) -> tuple[bool, int, int]:
    _, ranked, rank, offset = entry
    return ranked, rank if ranked else 0, offset


def winners(entries: Sequence[Ranked]) -> dict[int, Ranked]:
    best: dict[int, Ranked] = {}
    for entry in entries:
        best[entry[0]] = max(best.get(entry[0], entry), entry, key=order)
    return best


@pytest.mark.parametrize("seed", range(4))
def test_a_map_holds_what_a_dictionary_holds(seed: int) -> None:
    entries, lookups = random_entries(seed, 400, 60), random_entries(seed + 100, 200, 90)
    held = RankedMap(1 << 20, 0.9, 400)
    held.put(words(entries[:200]))
    left = held.update(words(entries[200:]))
    held.put(left.copy())
    best = winners(entries)
    assert sorted(held.offset_words().tolist()) == sorted((each[3] + 1) << OFFSET_SHIFT for each in best.values())
    expected = [each[0] in best and order(best[each[0]]) > order(each) for each in lookups]
    assert held.superseded_by_map(words(lookups, LOOKUP)).tolist() == expected
    assert any(expected) and not all(expected)


@pytest.mark.parametrize("map_bytes", [64, 640, 1 << 20])
def test_entries_that_do_not_fit_are_spilled_and_merge_to_the_same_winners(map_bytes: int) -> None:
    entries, spilled = random_entries(7, 3_000, 200), []
    task = RankedTaskMap(map_bytes, 0.9, 3_000)
    for at in range(0, 3_000, 500):
        spilled += [slots[slots[:, 2] != 0] for slots in task.put(words(entries[at : at + 500]))]
    parts = [*spilled, *(slots[slots[:, 2] != 0] for slots in task.drain())]
    assert (task.complete is None) == (map_bytes < 1 << 20) == (len(parts) > 1)
    survivors, keys = resolve_shard([RankedEntries(each) for each in parts if len(each)], 0, 0.9)
    best = winners(entries)
    assert keys == len(best)
    assert sorted(survivors.tolist()) == sorted((each[3] + 1) << OFFSET_SHIFT for each in best.values())


@pytest.mark.parametrize(("last", "flagged"), [((3, True, 5, 9), [2]), ((3, True, 7, 9), []), ((4, True, 1, 9), [])])
def test_what_supersedes_the_last_record_does_not_expire(last: Ranked, flagged: list[int]) -> None:
    entries = words([(2, True, 9, 1), (3, True, 6, 2), last])
    survivors, keys = resolve_shard([RankedEntries(entries[:2]), LastRecord(entries[2:]), RankedEntries(entries[2:])], 0, 0.9)
    assert keys == len({2, 3, last[0]})
    assert [(word >> OFFSET_SHIFT) - 1 for word in survivors.tolist() if word & UNEXPIRED] == flagged


LONG = struct.Struct(">q").pack
HEADERS = (
    ((), None),
    (((b"v", LONG(5)),), 5),
    (((b"v", LONG(-5)),), -5),
    (((b"v", LONG(-(2**63))),), -(2**63)),
    (((b"v", LONG(1)), (b"w", LONG(9)), (b"v", LONG(2))), 2),
    (((b"v", LONG(1)), (b"v", b"2")), None),
    (((b"v", None),), None),
    (((b"v", b""),), None),
    (((b"v", LONG(1) + b"0"),), None),
    (((b"V", LONG(1)), (b"vv", LONG(1)), (b"", LONG(1))), None),
)


@pytest.mark.parametrize("by_header", [True, False])
def test_ranks_are_those_of_the_last_header_of_the_name_or_the_timestamps(by_header: bool) -> None:
    records = [Record(i, 1_000 - i, b"%d" % i, b"", headers=headers) for i, (headers, _) in enumerate(HEADERS)]
    raw = np.frombuffer(bytearray(Batch(records).encode()), np.uint8)
    rows = scan_batches(raw, 0, check_crc=True).rows
    spans = np.array([[61, len(raw), 0]], np.int64)
    entries, lookups = (np.empty((32, ENTRY_WORDS), np.uint64) for _ in range(2))
    actions, secret = np.full(1, MAP, np.uint8), HashSecret(1, 2).state()
    arrays = raw, np.empty(0, np.uint8), rows, spans, actions, 3, 0
    _, n, m, error = scan_records(*arrays, entries, lookups, np.zeros(1, np.int32), np.zeros(3, np.int64), secret)
    assert (n, m, error) == (len(HEADERS) - 3, 3, 0)
    ranked, looked_up = np.empty((n, RANKED_WORDS), np.uint64), np.empty((m, RANKED_WORDS), np.uint64)
    name = Ranking(b"v").name()
    missing = rank_records(*arrays, by_header, name, entries[:n], lookups[:m], ranked, looked_up)
    expected = [rank for _, rank in HEADERS] if by_header else [1_000 - i for i in range(len(HEADERS))]
    found = np.concatenate([looked_up, ranked])
    has_rank = (found[:, 2] & np.uint64(RANKED)) != 0
    ranks = [int(rank) - 2**63 if has else None for has, rank in zip(has_rank, found[:, 3], strict=True)]
    assert ranks == expected
    assert (found[:, :2] == np.concatenate([lookups[:m, :2], entries[:n, :2]])).all()
    assert missing == sum(rank is None for rank in expected[3:])
