"""Which part of a log is dirty and how far it can be cleaned; the cases are those of Kafka's ``LogCleanerManagerTest``."""

from __future__ import annotations

from typing import Any

import pytest

from compaction.config.resolver import TopicConfig
from compaction.rules.log_to_clean import LogToClean, log_to_clean, segments_between
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


def test_a_segment_with_the_first_dirty_offset_inside_is_clean_and_dirty() -> None:
    dirt = measured(four(cleaner_checkpoint=15))
    assert (dirt.clean_bytes, dirt.dirty_bytes) == (200, 200)
    assert dirt.cleanable_ratio == 0.5


def test_segments_below_the_log_start_count_as_clean() -> None:
    dirt = measured(four(log_start_offset=20, cleaner_checkpoint=None))
    assert (dirt.clean_bytes, dirt.dirty_bytes) == (200, 100)


def test_nothing_is_dirty_when_the_open_transaction_starts_in_the_segment_of_the_checkpoint() -> None:
    dirt = measured(four(cleaner_checkpoint=15, last_stable_offset=17))
    assert (dirt.first_uncleanable_offset, dirt.dirty_bytes) == (10, 0)


def test_nothing_is_dirty_when_the_checkpoint_is_in_the_active_segment() -> None:
    dirt = measured(four(cleaner_checkpoint=35))
    assert (dirt.first_dirty_offset, dirt.first_uncleanable_offset, dirt.dirty_bytes, dirt.clean_bytes) == (35, 30, 0, 400)


def test_a_last_stable_offset_below_the_first_dirty_offset_does_not_lower_it() -> None:
    dirt = measured(four(cleaner_checkpoint=20, last_stable_offset=5))
    assert (dirt.first_dirty_offset, dirt.first_uncleanable_offset, dirt.dirty_bytes) == (20, 20, 0)


LAGGING = log(
    segment(0, timestamp_ms=NOW_MS - 300),
    segment(10, timestamp_ms=NOW_MS - 100),
    segment(20, timestamp_ms=NOW_MS - 200),
    segment(30, timestamp_ms=NOW_MS),
    end=40,
)


@pytest.mark.parametrize(
    ("lag_ms", "end"),
    [
        pytest.param(0, 30, id="no lag"),
        pytest.param(99, 30, id="every inactive segment is older"),
        pytest.param(100, 30, id="exactly as old as the lag is old enough"),
        pytest.param(101, 10, id="the second is too young; the older third waits with it"),
        pytest.param(301, 0, id="all are too young"),
    ],
)
def test_min_compaction_lag_stops_at_the_first_segment_that_is_too_young(lag_ms: int, end: int) -> None:
    assert measured(LAGGING, min_compaction_lag_ms=lag_ms).first_uncleanable_offset == end


def test_min_compaction_lag_ignores_clean_segments() -> None:
    view = log(segment(0, timestamp_ms=NOW_MS), segment(10), segment(20), end=30, cleaner_checkpoint=10)
    assert measured(view, min_compaction_lag_ms=1).first_uncleanable_offset == 20


@pytest.mark.parametrize(
    ("max_lag_ms", "overdue_ms"),
    [(99, 1), (100, 0), (101, 0), (2**63 - 1, 0)],
    ids=["passed", "just reached", "not yet", "no bound"],
)
def test_max_compaction_lag_is_measured_from_the_oldest_first_batch(max_lag_ms: int, overdue_ms: int) -> None:
    view = log(
        segment(0, first_batch_timestamp_ms=NOW_MS - 50),
        segment(10, first_batch_timestamp_ms=NOW_MS - 100),
        segment(20, first_batch_timestamp_ms=1),
        end=30,
    )
    assert measured(view, max_compaction_lag_ms=max_lag_ms).overdue_ms == overdue_ms


@pytest.mark.parametrize("stamp", [0, -1, 2**63 - 1], ids=["zero", "no timestamp", "empty segment"])
def test_max_compaction_lag_ignores_segments_without_a_timestamp(stamp: int) -> None:
    view = log(segment(0, first_batch_timestamp_ms=stamp), segment(10), end=20)
    assert measured(view, max_compaction_lag_ms=1).overdue_ms == 0


def test_max_compaction_lag_ignores_clean_segments() -> None:
    view = log(segment(0, first_batch_timestamp_ms=1), segment(10), segment(20), end=30, cleaner_checkpoint=10)
    assert measured(view, max_compaction_lag_ms=NOW_MS - 5).overdue_ms == 0


def test_an_export_is_cleaned_up_to_its_log_end() -> None:
    dirt = measured(FOUR, include_active=True)
    assert (dirt.first_uncleanable_offset, dirt.dirty_bytes) == (40, 400)


def test_a_log_of_one_segment_has_nothing_to_clean_unless_it_is_an_export() -> None:
    view = log(segment(0), end=10)
    assert measured(view).dirty_bytes == 0
    assert measured(view, include_active=True).dirty_bytes == 100


def test_an_empty_last_segment_of_an_export_stays_active() -> None:
    view = log(segment(0), segment(10), segment(20, 0), end=20)
    assert measured(view, include_active=True) == measured(view)


@pytest.mark.parametrize(("stable", "end"), [(35, 30), (30, 30), (29, 20), (39, 30), (40, 40)])
def test_an_open_transaction_holds_back_the_last_segment_of_an_export(stable: int, end: int) -> None:
    assert measured(four(last_stable_offset=stable), include_active=True).first_uncleanable_offset == end


def test_min_compaction_lag_holds_back_the_last_segment_of_an_export() -> None:
    assert measured(LAGGING, include_active=True, min_compaction_lag_ms=50).first_uncleanable_offset == 30


def test_max_compaction_lag_includes_the_last_segment_of_an_export() -> None:
    view = log(segment(0, first_batch_timestamp_ms=NOW_MS - 10), end=10)
    assert measured(view, max_compaction_lag_ms=5).overdue_ms == 0
    assert measured(view, include_active=True, max_compaction_lag_ms=5).overdue_ms == 5


def test_index_bytes_do_not_make_a_log_dirty() -> None:
    # valid entries only are counted by whoever reads the log (KAFKA-5431); bytes of logs alone make a log dirty
    sizes = [measured(log(segment(0, index_bytes=size), segment(10), end=20)).dirty_bytes for size in (8, 10 << 20)]
    assert sizes == [100, 100]


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
