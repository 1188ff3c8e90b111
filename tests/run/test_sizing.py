"""How work is divided among tasks, and the limits of a run over the directories of several brokers."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.config.resolver import BrokerConfig
from compaction.passes.tasks import Slice
from compaction.policies import compare_policies
from compaction.run.run import smallest_broker
from compaction.run.sizing import ShardPlaces, core_utilization, max_records_by_log, sizes

FULL = 1000
SMALL_MAP = BrokerConfig(dedupe_buffer_bytes=1 << 20, load_factor=0.9)
SLOW = BrokerConfig(dedupe_buffer_bytes=1 << 30, load_factor=0.8, io_max_bytes_per_second=1000.0)
USUAL = BrokerConfig()


def part(log: int, offsets: int, size_bytes: int) -> Slice:
    return Slice(log, 0, "x", 100, 100 + offsets, 0, size_bytes, 0)


def loads(logs: dict[int, tuple[int, int]], places: ShardPlaces) -> Counter[int]:
    """Entries by task, if those of each log are spread evenly over its shards."""
    found: Counter[int] = Counter()
    for log, (count, entries) in logs.items():
        for shard in range(count):
            found[places((log, shard))] += -(-entries // count)
    return found


@pytest.mark.parametrize(("tasks", "share"), [([5, 5], 1.0), ([10], 0.5), ([4, 4, 4], 0.75), ([], 1.0), ([0], 1.0)])
def test_core_utilization_is_the_fraction_of_time_until_the_last_task_ends(tasks: list[int], share: float) -> None:
    assert core_utilization(tasks, 2) == share


def test_a_record_has_its_own_offset_and_takes_at_least_a_byte() -> None:
    assert max_records_by_log([part(0, 7, 500), part(1, 900, 30), part(0, 5, 500)]) == {0: 12, 1: 30}


def test_thousands_of_small_logs_need_few_tasks() -> None:
    logs = dict.fromkeys(range(1200), (1, 5))
    places = ShardPlaces.of(logs, 2 * FULL, 4)
    assert places.parts == 4
    assert set(loads(logs, places).values()) == {1500}


def test_there_are_no_more_tasks_than_shards() -> None:
    assert ShardPlaces.of({0: (1, 5), 1: (2, 9)}, 2 * FULL, 4).parts == 3
    assert ShardPlaces.of({0: (1, 0)}, 2 * FULL, 4) == ShardPlaces(1, {0: 0})


def test_full_shards_are_spread_over_all_tasks() -> None:
    logs = {log: (1, FULL if log % 4 == 0 else 1) for log in range(96)}
    places = ShardPlaces.of(logs, 2 * FULL, 4)
    assert places.parts == 5
    assert max(loads(logs, places).values()) < 6 * FULL


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, FULL)), min_size=1, max_size=60), st.integers(1, 8))
def test_no_task_exceeds_the_average_by_more_than_a_shard(shape: list[tuple[int, int]], at_least: int) -> None:
    logs = {log: (shards, shards * fill) for log, (shards, fill) in enumerate(shape)}
    places = ShardPlaces.of(logs, 2 * FULL, at_least)
    share = sum(entries for _, entries in logs.values()) / places.parts
    assert max(loads(logs, places).values()) <= share + FULL


def test_a_shard_fits_into_the_dedupe_buffer() -> None:
    assert sizes([1 << 30], 2, 24 * 1000, 0.5).shard_entries == 500
    assert sizes([], 2, 1, 0.5).shard_entries == 1


@pytest.mark.parametrize(("gigabytes", "tasks"), [(1, 2), (8, 2), (9, 4), (33, 10)])
def test_all_tasks_of_pass_1_read_equal_amounts_of_a_bounded_size(gigabytes: int, tasks: int) -> None:
    share = sizes([gigabytes << 30], 2, 1 << 27, 0.9).scan_bytes
    assert share * tasks - (gigabytes << 30) in range(tasks)
    assert share <= 4 << 30


def test_each_limit_is_the_tightest_of_any_broker() -> None:
    for brokers in permutations((SMALL_MAP, SLOW, USUAL)):
        found = smallest_broker(brokers)
        assert found.dedupe_buffer_bytes == 1 << 20
        assert found.io_max_bytes_per_second == 1000.0
        assert found.load_factor == 0.8


def test_one_broker_sets_all_limits_and_none_means_kafkas_defaults() -> None:
    assert smallest_broker([SLOW]) == SLOW
    assert smallest_broker([]) == BrokerConfig()


def test_comparisons_use_the_same_limits() -> None:
    assert vars(compare_policies)["smallest_broker"] is smallest_broker
