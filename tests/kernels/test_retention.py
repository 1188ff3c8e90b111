"""What the cleaner retains, by keys and by batches; these kernels also run without the compiler (``tools/mutation.py``).

Keys: their hash against published vectors and a plain implementation, the filter of dirty keys, exact sets, and copies. Slot
tables, which map them, of each layout against a dictionary, with colliding hashes; entries by shard, survivor entries by part.
Decisions on batches, counts of dropped records, and batches that cannot be rewritten; ``tests/scenarios/test_drawn.py``
compares what is retained with a plain cleaner, ``tests/policies`` the counts with a plain reader.
"""

from __future__ import annotations

import pickle
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from compaction.formats.record_batch import HEADER_SIZE
from compaction.kernels import keys as module
from compaction.kernels.keys import NO_KEY, HashSecret, KeyFilter, KeySet, copy_keys, hash_keys, siphash, unmatch_tombstones
from compaction.kernels.records import BAD_RECORD, OK
from compaction.kernels.retention import BAD_NAMES, BYTES, COLUMNS, Limits, LogRange, age_bucket, decide, tally
from compaction.kernels.rewrite import BAD_PRODUCER, BAD_TIMESTAMP, COUNTERS, RECORD_GROWTH, rewrite
from compaction.kernels.slot_table import COUNTS, NEWEST, OFFSETS, Arena, SlotTable, by_bound, by_shard
from compaction.kernels.tables import (
    BATCH_ROW,
    COPY,
    DROP,
    DROPPED,
    ENTRY_BYTES,
    LOOKUP,
    OFFSET_SHIFT,
    OUT_ROW,
    REWRITE,
    TOMBSTONE,
)
from tests.kernels.tables import Blocks, Bytes, Fenced, random_segment, scanned
from tests.oracle.logs import LogBuilder, Sent
from tests.oracle.oddities import padded
from tests.oracle.siphash import naive_siphash

WORD = st.integers(0, 2**64 - 1)
SECRETS = st.builds(HashSecret, WORD, WORD)
#: of the published vectors: the secret is 00 01 .. 0f, a message of n bytes 00 01 .. n - 1
VECTOR_SECRET = HashSecret(0x0706050403020100, 0x0F0E0D0C0B0A0908)
#: SipHash-2-4-128, from the reference implementation
REFERENCE = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    63: "5150d1772f50834a503e069a973fbd7c",
}
#: SipHash-1-3-128, from Rust's
RUST = {0: "e77ebcb22788a5befd62db6add303001", 1: "fc6f370460d3eda85e0573cc2b2ff063"}


@njit
def hashed(data, at, size, state):  # type: ignore[no-untyped-def]
    """The hash of ``data[at : at + size]``."""
    return siphash(state[0], state[1], np.int64(data.ctypes.data + at), size)


@njit
def hashed_rows(table, rows, state):  # type: ignore[no-untyped-def]
    """``hash_keys``, which only kernels can call."""
    hash_keys(table, rows, state)


@njit
def with_key(low, high):  # type: ignore[no-untyped-def]
    """The hash of a key whose SipHash this is."""
    return module._with_key(low, high)


def text(halves: Sequence[int]) -> str:
    return b"".join(int(half).to_bytes(8, "little") for half in halves).hex()


def located(keys: Sequence[bytes | None], after: bytes = b"") -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Rows of these keys, not hashed, all of tombstones; the bytes that they point to, each key at any alignment, followed by
    ``after`` and the next one."""
    data = np.frombuffer(bytearray(b"".join((key or b"") + after for key in keys) or b"."), np.uint8)
    table, at = np.empty((len(keys), 3), np.uint64), data.ctypes.data
    for row, key in enumerate(keys):
        table[row] = *((0, NO_KEY) if key is None else (at, len(key))), offset_word(row)
        at += len(key or b"") + len(after)
    return table, data


def offset_word(row: int) -> int:
    return (row + 1) << OFFSET_SHIFT | TOMBSTONE


def test_the_plain_implementation_and_the_kernel_have_published_vectors() -> None:
    low, high = VECTOR_SECRET.low, VECTOR_SECRET.high
    assert {size: text(naive_siphash(low, high, bytes(range(size)), 2, 4)) for size in REFERENCE} == REFERENCE
    data = np.arange(64, dtype=np.uint8)
    assert {size: text(hashed(data, 0, size, VECTOR_SECRET.state())) for size in RUST} == RUST


@pytest.mark.parametrize("size", [*range(101), 127, 128, 129, 255, 256, 257, 1_000, 70_001])
def test_a_key_of_any_size_at_any_address_is_hashed_as_the_plain_implementation_does(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 8).astype(np.uint8)
    secret = HashSecret.random()
    for at in range(8) if size < 1_000 else (3,):
        expected = naive_siphash(secret.low, secret.high, data[at : at + size].tobytes())
        assert tuple(map(int, hashed(data, at, size, secret.state()))) == expected


@given(st.lists(st.none() | st.binary(max_size=160), max_size=80), SECRETS)
def test_many_keys_are_hashed_like_single_keys(keys: list[bytes | None], secret: HashSecret) -> None:
    table, data = located(keys)
    hashed_rows(table, len(keys), secret.state())
    expected = [(0, 0) if key is None else naive_siphash(secret.low, secret.high, key) for key in keys]
    assert table.tolist() == [[*halves, offset_word(row)] for row, halves in enumerate(expected)]
    assert data.tobytes() == b"".join(key or b"" for key in keys) or not any(keys)


@pytest.mark.parametrize("size", [0, 7, 8, 36, 127, 128, 500])
def test_full_lanes_and_remainders_are_hashed_alike_within_one_call(size: int) -> None:
    secret = HashSecret.random()
    for count in (1, 15, 16, 17, 40):
        keys = [bytes([n]) * size for n in range(count + 3)]
        table, _data = located(keys)
        after = table[count:].tolist()
        hashed_rows(table, count, secret.state())
        assert table[:count, :2].tolist() == [list(naive_siphash(secret.low, secret.high, key)) for key in keys[:count]]
        assert table[count:].tolist() == after


def test_no_key_hashes_to_the_reserved_value_of_null_keys() -> None:
    zero, most = np.uint64(0), np.uint64(2**64 - 1)
    assert tuple(map(int, with_key(zero, zero))) == (0, 1)
    for low, high in ((0, 1), (1, 0), (most, zero), (zero, most), (zero, np.uint64(2))):
        assert tuple(map(int, with_key(np.uint64(low), np.uint64(high)))) == (low, high)


@pytest.mark.parametrize("last", [False, True])
def test_no_byte_outside_of_a_key_is_read(last: bool) -> None:
    fenced, state = Fenced(), HashSecret.random().state()
    for size in range(150):
        key = fenced.place(bytes(size), last=last)
        hashed_rows(np.array([[key.ctypes.data, size, 0]] * 17, np.uint64), 17, state)


@given(SECRETS)
def test_a_secret_cannot_be_logged_by_mistake(secret: HashSecret) -> None:
    for shown in (repr(secret), str(secret), f"{secret}", f"{[secret]}"):
        assert "HashSecret()" in shown
    assert pickle.loads(pickle.dumps(secret)) == secret  # noqa: S301 - made here


def test_secrets_differ() -> None:
    drawn = [HashSecret.random() for _ in range(100)]
    assert len({half for secret in drawn for half in (secret.low, secret.high)}) == 200


Rows = list[tuple[int, int, int]]
#: few different halves besides any, so that keys share words and bits
HALF = st.sampled_from([0, 1, 63, 64, 2**32 - 1, 2**32, 2**64 - 1]) | WORD
ENTRY = st.tuples(HALF, HALF, st.integers(1, 2**40).map(lambda offset: offset << 2))


def entries_of(rows: Rows) -> NDArray[np.uint64]:
    return np.array(rows, np.uint64).reshape(-1, 3)


def naive_words(size: int, entries: Rows) -> list[int]:
    """What ``add`` makes of ``size`` empty words."""
    words = [0] * size
    for low, high, word in entries:
        if word and not word & LOOKUP:
            words[(high & 0xFFFFFFFF) * size >> 32] |= 1 << (low & 63) | 1 << (low >> 6 & 63)
    return words


@given(st.lists(ENTRY, max_size=40), st.integers(0, 200), st.integers(0, 4000))
def test_the_bits_are_those_of_plain_arithmetic_also_of_joined_filters(entries: Rows, keys: int, most_bytes: int) -> None:
    found, other = KeyFilter.sized(keys, most_bytes), KeyFilter.sized(keys, most_bytes)
    found.add(entries_of([*entries[::2], (5, 5, 0), (6, 6, 4 << 2 | LOOKUP)]))
    other.add(entries_of(entries[1::2]))
    found.join(other)
    assert found.words.tolist() == naive_words(len(found.words), entries)
    assert found.words.nbytes <= max(8, most_bytes)


@given(st.lists(ENTRY, max_size=40), st.lists(ENTRY, max_size=40), st.integers(0, 100), st.integers(0, 2**38))
def test_pruned_lookups_are_of_clean_records_with_keys_that_are_not_mapped(
    entries: Rows, looked_up: Rows, keys: int, first_dirty: int
) -> None:
    filtered = KeyFilter.sized(keys, 1 << 20)
    filtered.add(entries_of(entries))
    lookups = [(a, b, word | LOOKUP | (TOMBSTONE if word % 3 == 0 else 0)) for a, b, word in [*looked_up, *entries]]
    kept = filtered.prune(entries_of(lookups), first_dirty).tolist()
    words = filtered.words.tolist()

    def matters(low: int, high: int, word: int) -> bool:
        bits = 1 << (low & 63) | 1 << (low >> 6 & 63)
        mapped = words[(high & 0xFFFFFFFF) * len(words) >> 32] & bits == bits
        return mapped or word >> 2 >= first_dirty + 1 or bool(word & TOMBSTONE) or (low, high) == (0, 0)

    assert kept == [list(each) for each in lookups if matters(*each)]
    mapped_keys = {(low, high) for low, high, _ in entries}
    lost = [each for each in lookups if list(each) not in kept]
    assert not mapped_keys & {(low, high) for low, high, _ in lost}


@pytest.mark.parametrize("keys", [1_000, 200_000])
def test_fewer_than_four_in_a_hundred_unmapped_keys_pass(keys: int) -> None:
    rng = np.random.default_rng(2)
    filtered = KeyFilter.sized(keys, 1 << 24)
    filtered.add(rng.integers(0, 1 << 63, (keys, 3), np.uint64) << np.uint64(1) & ~np.uint64(LOOKUP) | np.uint64(4))
    lookups = rng.integers(0, 1 << 63, (100_000, 3), np.uint64) << np.uint64(1)
    lookups[:, 2] = 8 | LOOKUP
    assert len(filtered.prune(lookups, 1 << 40)) < 0.04 * 100_000


SECRET = HashSecret(7, 11)


def key_set(keys: list[bytes]) -> KeySet:
    starts = np.cumsum([0, *map(len, keys)]).astype(np.int64)
    return KeySet.of(starts, np.frombuffer(b"".join(keys), np.uint8), SECRET)


@pytest.mark.parametrize(("seed", "share"), [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0)])
def test_a_set_matches_its_keys_and_no_other(seed: int, share: float) -> None:
    rng = random.Random(seed)
    every = [b"", b"\0", *(rng.randbytes(rng.randrange(1, 40)) for _ in range(150)), b"x" * 70_000]
    # beside each, keys of its size that differ in one byte
    every += [key[:at] + bytes([key[at] ^ 1]) + key[at + 1 :] for key in every[1:] for at in {0, len(key) // 2, len(key) - 1}]
    held = rng.sample(every, int(len(every) * share))
    rows, _data = located(every)
    matched = np.zeros(len(every), np.bool_)
    key_set([*held, *held[:3]]).match(rows, SECRET, matched)
    assert [key for key, found in zip(every, matched, strict=True) if found] == [key for key in every if key in set(held)]


def test_chosen_keys_are_copied_in_order() -> None:
    rows, _data = located([b"one", b"", b"three", b"four"])
    offsets, blob = np.zeros(4, np.int32), np.empty(8, np.uint8)
    copy_keys(rows, np.array([True, True, True, False]), offsets, blob)
    assert (offsets.tolist(), blob.tobytes()) == ([0, 3, 3, 8], b"onethree")


@pytest.mark.parametrize(
    ("after", "left"),
    [(b"\x01\x00", False), (b"\x81\x80\x00\x80\x00", False), (b"\x01\x02\x02a\x01", True), (b"\x81\x00\x82\x80\x00", True)],
)
def test_a_tombstone_without_headers_is_not_matched(after: bytes, left: bool) -> None:
    rows, _data = located([b"key"], after)
    matched = np.ones(1, np.bool_)
    unmatch_tombstones(rows, matched)
    assert matched[0] == left


Entries = NDArray[np.uint64]
#: hashes of few different halves, so that slots and shards collide
HASHES = st.tuples(st.integers(0, 7) | st.just(2**64 - 1), st.integers(0, 3) | st.just(2**64 - 1))
#: records whose keys have these hashes, in any order of offsets
PUTS = st.lists(st.tuples(HASHES, st.integers(0, 60), st.booleans()), max_size=80)
Puts = list[tuple[tuple[int, int], int, bool]]
Held = dict[tuple[int, int], tuple[int, ...]]


def entries(puts: Puts, flag: int = 0) -> Entries:
    rows = [(low, high, (offset + 1) << 2 | (TOMBSTONE if tombstone else 0) | flag) for (low, high), offset, tombstone in puts]
    return np.array(rows, np.uint64).reshape(-1, 3)


def records(seed: int, count: int, keys: int) -> Entries:
    """Map entries with distinct offsets, whose hashes collide."""
    rng = random.Random(seed)
    numbers = [(rng.randrange(keys), offset) for offset in rng.sample(range(10 * count), count)]
    return entries([((key % 3, key + 1), offset, False) for key, offset in numbers])


def dictionary(layout: int, given: Entries) -> Held:
    """Of each key the entry with the highest offset, the first of equal ones; the number of entries; or both."""
    held: Held = {}
    for low, high, word in given.tolist():
        newest, count = held.get((low, high), (0, 0))
        held[low, high] = (word if word >> 2 > newest >> 2 else newest, count + 1)
    return {key: {OFFSETS: found[:1], COUNTS: found[1:], NEWEST: found}[layout] for key, found in held.items()}


def values(table: SlotTable) -> Held:
    return {(row[0], row[1]): tuple(row[2:]) for row in table.occupied().tolist()}


def check_halves(layout: int, given: Entries) -> None:
    """A table holds what a dictionary holds, in one call or two."""
    table, half = SlotTable(layout, 1 << 20, 0.9, len(given), Arena()), len(given) // 2
    assert (table.put(given[:half]), table.put(given, half)) == (half, len(given))
    assert values(table) == dictionary(layout, given)
    assert len(table) == len(values(table)) == len(table.offset_words())
    assert table.offset_words().all()


@given(PUTS, st.sampled_from([OFFSETS, COUNTS]))
def test_a_table_holds_what_a_dictionary_holds(puts: Puts, layout: int) -> None:
    check_halves(layout, entries(puts))


@pytest.mark.parametrize("layout", [OFFSETS, COUNTS, NEWEST])
@pytest.mark.parametrize(("count", "keys"), [(1, 1), (50, 1), (500, 60), (500, 10_000)])
def test_a_large_table_holds_what_a_dictionary_holds(layout: int, count: int, keys: int) -> None:
    check_halves(layout, records(count, count, keys))


@given(PUTS, PUTS)
def test_only_a_higher_offset_of_the_same_key_supersedes_a_record(puts: Puts, looked_up: Puts) -> None:
    highest: dict[tuple[int, int], int] = {}
    for key, offset, _ in puts:
        highest[key] = max(offset, highest.get(key, -1))
    found = SlotTable(OFFSETS, 1 << 16, 0.9, 80, Arena())
    found.put(entries(puts))
    expected = [highest.get(key, -1) > offset for key, offset, _ in looked_up]
    assert found.superseded(entries(looked_up, LOOKUP)).tolist() == expected


@pytest.mark.parametrize("load_factor", [0.5, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("slots", [2, 4, 64, 4096])
def test_a_map_holds_as_many_keys_as_its_buffer_and_load_factor_allow(slots: int, load_factor: float) -> None:
    found = SlotTable(OFFSETS, slots * ENTRY_BYTES, load_factor, 1 << 40, Arena())
    room = found.remaining()
    assert room == min(int(slots * load_factor), slots - 1)
    found.put(entries([((key, key * 7), key, False) for key in range(room)]))
    assert (found.remaining(), len(found)) == (0, room)
    # an entry is not looked up in a full map
    assert found.put(entries([((1, 7), 99, False)])) == 0
    assert not found.superseded(entries([((room, 7), 0, False)], LOOKUP)).any()
    found.clear()
    assert (len(found), found.remaining(), values(found)) == (0, room, {})


@pytest.mark.parametrize("layout", [COUNTS, NEWEST])
def test_the_slots_of_two_tables_add_up(layout: int) -> None:
    given = records(1, 500, 60)
    # not full with all keys, as no entry is put into a full table
    total = SlotTable.of_keys(layout, 61)
    for part in (given[:200], given[200:]):
        table = SlotTable.of_keys(layout, 61)
        table.put(part)
        assert total.put(table.occupied(), of_records=False) == len(table)
    assert values(total) == dictionary(layout, given)


def test_updates_change_held_keys_and_return_the_others() -> None:
    given, table = records(2, 400, 60), SlotTable(OFFSETS, 1 << 20, 0.9, 400, Arena())
    table.put(given[:40])
    held = set(values(table))
    others = table.update(given[40:].copy())
    assert others.tolist() == [row for row in given[40:].tolist() if (row[0], row[1]) not in held]
    expected = dictionary(OFFSETS, given)
    assert values(table) == {key: expected[key] for key in held}


def rounds_of(keys: list[int], most: int) -> int:
    """As Kafka's cleaner goes on: a round ends at the first record that meets a full map."""
    rounds, known = 0, set[int]()
    for number, key in enumerate(keys):
        if number == 0 or len(known) >= most:
            rounds, known = rounds + 1, set()
        known.add(key)
    return rounds


@pytest.mark.parametrize("most", [1, 2, 7, 50, 51])
@pytest.mark.parametrize("distinct", [1, 5, 50, 1000])
def test_a_table_is_full_with_the_given_number_of_keys(most: int, distinct: int) -> None:
    given, at, rounds = records(most, 400, distinct), 0, 0
    while at < len(given):
        table = SlotTable.of_keys(COUNTS, most)
        at = table.put(given, at)
        assert len(table) <= most
        rounds += 1
    assert rounds == rounds_of(given[:, 1].tolist(), most)


@pytest.mark.parametrize("expected_keys", [0, 1, 100, 5_000])
def test_a_map_for_few_keys_is_small_and_holds_them(expected_keys: int) -> None:
    found = SlotTable(OFFSETS, 1 << 24, 0.9, expected_keys, Arena())
    assert found.remaining() >= expected_keys
    assert found.slots.nbytes < 1 << 19


def test_an_arena_reuses_its_memory_and_clears_it() -> None:
    arena = Arena()
    first = SlotTable(OFFSETS, 1 << 12, 0.9, 100, arena)
    first.put(entries([((key, 1), key, False) for key in range(50)]))
    again = SlotTable(OFFSETS, 1 << 12, 0.9, 100, arena)
    assert values(again) == {}
    assert np.shares_memory(first.slots, again.slots)


def test_an_arena_keeps_memory_for_similar_tables_and_releases_that_of_a_much_larger_one() -> None:
    arena, slots = Arena(), (64 << 20) // ENTRY_BYTES
    first = arena.table(slots)
    assert np.shares_memory(first, arena.table(slots * 2 // 3))
    small = arena.table(slots // 3)
    assert not np.shares_memory(first, small)
    assert small.base is not None
    assert small.base.nbytes == small.nbytes
    assert len(small) == slots // 3
    assert not small.any()
    # a few MiB are kept
    assert np.shares_memory(arena.table(1000), arena.table(10))


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 64, 1000])
@pytest.mark.parametrize(("words", "count"), [(3, 500), (4, 500), (3, 0)])
def test_every_entry_is_put_into_the_shard_of_its_hash(shards: int, words: int, count: int) -> None:
    table = np.random.default_rng(shards).integers(1, 2**64, (count, words), np.uint64)
    table[::5, 2] = 0
    ordered, starts = by_shard(table, shards)
    assert (starts[0], starts[-1]) == (0, np.count_nonzero(table[:, 2]))
    assert sorted(ordered.tolist()) == sorted(row for row in table.tolist() if row[2])
    for shard in range(shards):
        for high in ordered[starts[shard] : starts[shard + 1], 1].tolist():
            assert (high >> 32) * shards >> 32 == shard


@given(st.lists(st.integers(0, 40), max_size=60), st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_survivor_entries_are_ordered_by_the_part_between_their_bounds(survivors: list[int], bounds: list[int]) -> None:
    bounds.sort()
    edges = np.zeros(len(bounds) + 2, np.int64)
    ordered = by_bound(np.array(survivors, np.uint64), np.array(bounds, np.uint64), edges)
    parts: list[list[int]] = [[] for _ in range(len(bounds) + 1)]
    for word in survivors:
        parts[bisect_right(bounds, word)].append(word)
    assert [ordered[edges[k] : edges[k + 1]].tolist() for k in range(len(parts))] == parts
    assert edges[-1] == len(survivors)


def test_survivor_entries_of_other_batches_are_skipped() -> None:
    """Gaps between batches, survivors in the gaps, thousands of survivors before: only a batch's own survivors count."""
    rows = np.zeros(3, BATCH_ROW)
    rows["base_offset"], rows["last_offset"], rows["count"] = [5_000, 9_000, 20_000], [5_001, 9_002, 20_000], [2, 3, 1]
    rows["magic"] = 2
    offsets = [*range(5_000), 5_000, 5_001, *range(5_002, 9_000), 9_001, *range(9_500, 19_000)]
    survivors = np.array([(offset + 1) << OFFSET_SHIFT for offset in offsets], np.uint64)
    actions = np.empty(3, np.uint8)
    limits = Limits(0, 1 << 40, 0, False)
    assert decide(rows, np.zeros(3, np.uint8), survivors, limits, actions) == 0
    assert actions.tolist() == [COPY, REWRITE, DROP]


@pytest.mark.parametrize(
    ("attributes", "base_timestamp", "limits", "action"),
    [
        pytest.param(0x40, 1_000, Limits(0, 10, 999, False), COPY, id="before its delete horizon"),
        pytest.param(0x40, 1_000, Limits(0, 10, 1_000, False), DROP, id="at its delete horizon"),
        pytest.param(0x40, 1_000, Limits(0, 10, 1_001, False), DROP, id="after its delete horizon"),
        pytest.param(0x40, -1, Limits(10, 9, -1, False, erases=True), COPY, id="by no erasure, whatever its delete horizon"),
        pytest.param(
            0x40, 1_000, Limits(0, 10, 2_000, True, mtime_only=True), COPY, id="not before Kafka 3.1 in a young segment"
        ),
        pytest.param(0x40, 1_000, Limits(0, 10, 2_000, False, mtime_only=True), DROP, id="before Kafka 3.1 in an old segment"),
        pytest.param(0, 1_000, Limits(0, 10, 2_000, True, mtime_only=True), COPY, id="a young segment, no delete horizon"),
        pytest.param(0, 1_000, Limits(0, 10, 2_000, False, mtime_only=True), DROP, id="an old segment, no delete horizon"),
    ],
)
def test_a_tombstone_is_dropped(attributes: int, base_timestamp: int, limits: Limits, action: int) -> None:
    rows = np.zeros(1, BATCH_ROW)
    rows["count"], rows["magic"], rows["attributes"], rows["base_timestamp"] = 1, 2, attributes, base_timestamp
    survivors = np.array([1 << OFFSET_SHIFT | TOMBSTONE], np.uint64)
    actions = np.empty(1, np.uint8)
    assert decide(rows, np.zeros(1, np.uint8), survivors, limits, actions) == int(action == DROP)
    assert actions.tolist() == [action]


BOUNDS = np.array((0, 500, 2_000, 5_000), np.int64)


def tallied(blocks: Blocks, actions: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, int]]:
    """The counts of dropped records by position and by age; the last batch and the error."""
    positions, ages = np.zeros((7, COLUMNS), np.int64), np.zeros((len(BOUNDS) + 2, COLUMNS), np.int64)
    end = tally(
        blocks.raw, blocks.scratch, blocks.rows, blocks.spans, actions, np.zeros(len(actions), np.uint8),
        np.empty(0, np.uint64), Limits(0, 0, 0, False), LogRange(0, 1 << 20, 0), BOUNDS, positions, ages,
    )  # fmt: skip
    return positions, ages, end


def test_the_counted_bytes_are_those_of_the_records() -> None:
    blocks = scanned(random_segment(1).log)
    positions, ages, _ = tallied(blocks, np.full(len(blocks.rows), DROP, np.uint8))
    plain = int((blocks.spans[:, 1] - blocks.spans[:, 0])[blocks.rows["count"] > 0].sum())
    assert ages[:, BYTES].sum() == positions[:, BYTES].sum() == plain


def test_a_malformed_record_is_rejected() -> None:
    blocks = scanned(random_segment(2).log)
    at = next(at for at, span in enumerate(blocks.spans) if span[1] > span[0] and not span[2])
    blocks.raw[blocks.spans[at, 0]] = 0xFF
    actions = np.full(len(blocks.rows), DROP, np.uint8)
    actions[:at] = COPY
    assert tallied(blocks, actions)[2] == (at, BAD_RECORD)


@pytest.mark.parametrize(
    ("age", "bucket"), [(-1, 0), (0, 1), (499, 1), (500, 2), (1_999, 2), (2_000, 3), (4_999, 3), (5_000, 4), (10**9, 4)]
)
def test_ages_are_counted_from_each_bound_up_to_the_next(age: int, bucket: int) -> None:
    now_ms = 10**12
    assert age_bucket(now_ms - age, now_ms, BOUNDS) == bucket
    # without a timestamp
    assert age_bucket(-1, now_ms, BOUNDS) == len(BOUNDS) + 1


def batch_of(*records: Sent) -> bytes:
    log = LogBuilder()
    log.batch(list(records))
    return log.build()[0].log


A, B = Sent(b"a", b"1"), Sent(b"b", b"2")
TWO = batch_of(A, B)


def rewritten(log: bytes, fields: Mapping[str, int], out: Bytes | None = None, kept_rows: int = 100) -> tuple[int, int]:
    """The number of batches read and the error for a batch of which the first record is dropped; ``fields`` of its row are set
    before."""
    out = np.zeros(10_000, np.uint8) if out is None else out
    blocks = scanned(log)
    for name, value in fields.items():
        blocks.rows[name] = value
    next_row, _, _, error = rewrite(
        blocks.raw, blocks.scratch, blocks.rows, blocks.spans, np.array([REWRITE], np.uint8), np.zeros(1, np.uint8),
        np.array([1 << OFFSET_SHIFT | DROPPED], np.uint64), Limits(99, 98, 0, False), 0, 0, 0, out,
        np.empty(1, OUT_ROW), np.empty((kept_rows, 6), np.int64), np.zeros(COUNTERS, np.int64),
    )  # fmt: skip
    return int(next_row), int(error)


def test_buffers_that_are_too_small_make_no_progress() -> None:
    plain_size = 2 * 9
    least = np.zeros(HEADER_SIZE + plain_size + 2 * RECORD_GROWTH, np.uint8)
    assert rewritten(TWO, {}, least[:-1], 2) == rewritten(TWO, {}, least, 1) == (0, OK)
    assert rewritten(TWO, {}, least, 2) == (1, OK)


def test_a_negative_horizon_is_none() -> None:
    out = np.zeros(10_000, np.uint8)
    rewritten(TWO, {"attributes": 0x40, "base_timestamp": -1}, out)
    assert out[16] == 2
    assert out[22] & 0x40 == 0


def padded_record(*longer: int) -> bytes:
    """A record at offset delta 1; some of its varints are a byte longer than necessary."""
    *fields, name, value = (padded(int(at > 0), 1 + (at in longer)) for at in range(7))
    body = b"\0" + b"".join([*fields[:3], b"b", fields[3], b"2", fields[4], name, b"h", value, b"x"])
    return padded(len(body), 1 + (7 in longer)) + body


@pytest.mark.parametrize("longer", [(), *((at,) for at in range(8)), *combinations(range(8), 2)])
def test_a_record_becomes_canonical_whichever_of_its_varints_are_padded(longer: tuple[int, ...]) -> None:
    records = TWO[HEADER_SIZE : HEADER_SIZE + 9] + padded_record(*longer)
    log, out, expected = bytearray(TWO[:HEADER_SIZE] + records), np.zeros(10_000, np.uint8), padded_record()
    log[8:12] = (len(log) - 12).to_bytes(4, "big")
    assert rewritten(bytes(log), {}, out) == (1, OK)
    assert out[HEADER_SIZE:].tobytes().rstrip(b"\0") == expected


BAD_NAME = ((b"\xff", b""),)


@pytest.mark.parametrize(
    ("log", "fields", "error"),
    [
        pytest.param(TWO, {}, OK, id="sound"),
        pytest.param(TWO, {"base_timestamp": -2}, BAD_TIMESTAMP, id="time before the epoch"),
        pytest.param(TWO, {"base_timestamp": -1}, OK, id="no time"),
        pytest.param(TWO, {"attributes": 0x10}, BAD_PRODUCER, id="transactional without a producer"),
        pytest.param(TWO, {"producer_id": 3}, BAD_PRODUCER, id="producer without an epoch"),
        pytest.param(TWO, {"producer_id": 3, "producer_epoch": 0}, BAD_PRODUCER, id="producer without a sequence"),
        pytest.param(TWO, {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0}, OK, id="producer"),
        pytest.param(batch_of(A, B, Sent(b"c", b"3", headers=BAD_NAME)), {}, BAD_NAMES, id="a name that is no text"),
        pytest.param(batch_of(Sent(b"a", b"1", headers=BAD_NAME), B), {}, OK, id="such a name in what goes"),
    ],
)
def test_batches_that_kafka_refuses_give_their_error(log: bytes, fields: dict[str, int], error: int) -> None:
    assert rewritten(log, fields) == (1 if error == OK else 0, error)
