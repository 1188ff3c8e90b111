"""Which part of a log is dirty and how far it can be cleaned, where a log that is cleaned does not show it, and the remedies of
one that is skipped; ``tests/scenarios`` has the rules. Cases are those of Kafka's ``LogCleanerManagerTest``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compaction.config.resolver import TopicConfig
from compaction.rules.log_to_clean import LogToClean, bytes_missing, log_to_clean, ratio_below, ratio_remedy, segments_between
from compaction.rules.log_view import LogView
from tests.rules.views import NOW_MS, log, segment

#: 4 segments of 100 bytes, the last one active
FOUR = log(segment(0), segment(10), segment(20), segment(30), end=40)


def four(**given: Any) -> LogView:
    return log(segment(0), segment(10), segment(20), segment(30), end=40, **given)


def measured(view: LogView, *, include_active: bool = False, **settings: Any) -> LogToClean:
    config = TopicConfig(cleanup_compact=True, **settings)
    return log_to_clean(view, config, now_ms=NOW_MS, include_active=include_active)


@pytest.mark.parametrize(
    ("given", "first_dirty", "reset"),
    [
        pytest.param({"cleaner_checkpoint": None}, 0, False, id="missing: log start"),
        pytest.param({"cleaner_checkpoint": None, "log_start_offset": 7}, 7, False, id="missing, log start inside a segment"),
        pytest.param({"cleaner_checkpoint": 20}, 20, False, id="inside the log"),
        pytest.param({"cleaner_checkpoint": 5, "log_start_offset": 5}, 5, False, id="at log start"),
        pytest.param({"cleaner_checkpoint": 4, "log_start_offset": 5}, 5, True, id="below log start (KAFKA-8724)"),
        pytest.param({"cleaner_checkpoint": 40}, 40, False, id="at log end"),
        pytest.param({"cleaner_checkpoint": 41}, 0, True, id="above log end (KAFKA-6499)"),
        pytest.param({"cleaner_checkpoint": 99, "log_start_offset": 12}, 12, True, id="above log end, with a log start"),
    ],
)
def test_cleaning_starts_at_the_checkpoint_if_it_is_inside_the_log(
    given: dict[str, Any], first_dirty: int, reset: bool
) -> None:
    dirt = measured(four(**given))
    assert (dirt.first_dirty_offset, dirt.checkpoint_reset) == (first_dirty, reset)


@pytest.mark.parametrize(
    ("given", "end", "limit"),
    [
        pytest.param({}, 30, "active segment", id="nothing else: the active segment's base"),
        pytest.param({"high_watermark": 30}, 30, "active segment", id="high watermark at the active segment"),
        pytest.param({"high_watermark": 29}, 20, "high watermark", id="high watermark inside a segment (KAFKA-13194)"),
        pytest.param({"high_watermark": 20}, 20, "high watermark", id="high watermark at a segment's base"),
        pytest.param({"high_watermark": 0}, 0, "high watermark", id="nothing is committed"),
        pytest.param({"last_stable_offset": 15}, 10, "last stable offset", id="open transaction inside a segment"),
        pytest.param({"last_stable_offset": 35}, 30, "active segment", id="open transaction in the active segment"),
        pytest.param({"last_stable_offset": 25, "high_watermark": 12}, 10, "high watermark", id="the high watermark is lower"),
    ],
)
def test_the_first_uncleanable_offset_is_the_base_of_the_segment_that_holds_the_bound(
    given: dict[str, Any], end: int, limit: str
) -> None:
    dirt = measured(four(**given))
    assert dirt.first_uncleanable_offset == end
    assert dirt.bounds[0].name.startswith(limit)
    assert dirt.dirty_bytes == end * 10


def test_a_last_stable_offset_below_the_first_dirty_offset_does_not_lower_it() -> None:
    dirt = measured(four(cleaner_checkpoint=20, last_stable_offset=5))
    assert (dirt.first_dirty_offset, dirt.first_uncleanable_offset, dirt.dirty_bytes) == (20, 20, 0)


@pytest.mark.parametrize("stamp", [0, -1, 2**63 - 1], ids=["zero", "no timestamp", "empty segment"])
def test_max_compaction_lag_ignores_segments_without_a_timestamp(stamp: int) -> None:
    view = log(segment(0, first_batch_timestamp_ms=stamp), segment(10), end=20)
    assert measured(view, max_compaction_lag_ms=1).overdue_ms == 0


def test_max_compaction_lag_ignores_clean_segments() -> None:
    view = log(segment(0, first_batch_timestamp_ms=1), segment(10), segment(20), end=30, cleaner_checkpoint=10)
    assert measured(view, max_compaction_lag_ms=NOW_MS - 5).overdue_ms == 0


def test_max_compaction_lag_is_that_of_the_oldest_dirty_segment() -> None:
    ages = [segment(base, first_batch_timestamp_ms=NOW_MS - age_ms) for base, age_ms in ((0, 5), (10, 9), (20, 7), (30, 99))]
    assert measured(log(*ages, end=40), max_compaction_lag_ms=2).overdue_ms == 7


def test_segments_below_the_log_start_count_as_clean() -> None:
    assert measured(four(log_start_offset=12, cleaner_checkpoint=20)).clean_bytes == 200


def test_an_empty_last_segment_of_an_export_stays_active() -> None:
    view = log(segment(0), segment(10), segment(20, 0), end=20)
    assert measured(view, include_active=True) == measured(view)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 40, [0, 10, 20, 30]),
        (5, 11, [0, 10]),
        (10, 20, [10]),
        (-1, 10, [0]),
        (-1, 11, [0, 10]),
        (39, 40, [30]),
        (7, 7, []),
        (99, 100, [30]),
    ],
)
def test_segments_between_two_offsets_start_with_the_holder_of_the_first(start: int, end: int, expected: list[int]) -> None:
    assert [each.base_offset for each in segments_between(FOUR.segments, start, end)] == expected


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1))
def test_the_missing_bytes_are_the_fewest_that_suffice(clean: int, dirty: int, ratio: float) -> None:
    more = bytes_missing(clean, dirty, ratio)
    if more is None:
        assert ratio == 1
        return
    assert (dirty + more) / max(clean + dirty + more, 1) > ratio
    if more:
        assert not (dirty + more - 1) / max(clean + dirty + more - 1, 1) > ratio


def test_a_bound_just_below_one_is_found_quickly() -> None:
    assert bytes_missing(1_000_000, 5, 1 - 2**-53) is not None


@given(st.floats(0.0001, 1))
def test_the_lower_bound_is_below_the_ratio_and_short(ratio: float) -> None:
    bound = ratio_below(ratio)
    assert 0 <= bound < ratio
    assert len(f"{bound:g}") <= 7


@pytest.mark.parametrize(("ratio", "bound"), [(0.31, 0.3), (0.3, 0.2), (0.05, 0.04), (1.0, 0.9), (0.1, 0.09), (1e-9, 0.0)])
def test_the_lower_bound_has_the_fewest_digits(ratio: float, bound: float) -> None:
    assert ratio_below(ratio) == bound


def test_a_log_at_a_third_needs_as_much_dirty_as_clean() -> None:
    assert ratio_remedy(2_000_000, 1_000_000, 0.5) == (
        "becomes cleanable after 1.0 MB more, or with min.cleanable.dirty.ratio=0.3"
    )


def test_a_bound_of_one_cannot_be_reached_by_bytes() -> None:
    assert ratio_remedy(1, 3, 1.0) == "becomes cleanable with min.cleanable.dirty.ratio=0.7"


def test_without_dirty_bytes_no_bound_is_suggested() -> None:
    assert ratio_remedy(5, 0, 0.5) == "becomes cleanable once an inactive segment is dirty"
