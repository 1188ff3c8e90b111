"""The limits of a run over the directories of several brokers."""

from __future__ import annotations

from itertools import permutations

from compaction.config.resolver import BrokerConfig
from compaction.policies import compare_policies
from compaction.run.run import smallest_broker

SMALL_MAP = BrokerConfig(dedupe_buffer_bytes=1 << 20, load_factor=0.9)
SLOW = BrokerConfig(dedupe_buffer_bytes=1 << 30, load_factor=0.8, io_max_bytes_per_second=1000.0)
USUAL = BrokerConfig()


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
