"""When records arrived: by timestamps, by files, or not at all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compaction.errors import UnsupportedLogError
from compaction.names import TopicPartition
from compaction.policies.arrivals import COLUMNS, FIRST_OFFSET, LARGEST_TIMESTAMP, Arrivals, Cells
from compaction.policies.over_time import arrival_times, clock, period
from compaction.rules.log_view import LogView, Segment

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NOW_MS = 20_000 * DAY_MS


def arrivals(*times: int) -> Arrivals:
    parts = np.zeros((len(times), COLUMNS), np.int64)
    parts[:, LARGEST_TIMESTAMP], parts[:, FIRST_OFFSET] = times, np.arange(len(times)) * 10
    none = np.empty((0, 2), np.int64)
    return Arrivals(parts, np.arange(len(parts)), Cells(none[:, 0], none), True, none)


def view(*written_ms: int, end: int) -> LogView:
    segments = [
        Segment(number * 20, 100, at_ms * 1_000_000, 0, 0, at_ms, at_ms, number * 20 + 20)
        for number, at_ms in enumerate(written_ms)
    ]
    return LogView(TopicPartition("t", 0), "/logs", "/logs/t-0", tuple(segments), 0, end, end, end, None)


def test_timestamps_are_times_of_arrival_even_if_some_are_late() -> None:
    times = [NOW_MS - 50 * HOUR_MS, NOW_MS - 60 * HOUR_MS, NOW_MS - HOUR_MS]
    found, by_files = arrival_times(arrivals(*times), view(NOW_MS, end=30), NOW_MS)
    assert (found.tolist(), by_files) == ([times[0], times[0], times[2]], False)


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        ([NOW_MS, NOW_MS + 2 * DAY_MS, NOW_MS], "in the future"),
        ([NOW_MS - DAY_MS] * 3, "equal"),
        ([NOW_MS - 5 * DAY_MS, -1, NOW_MS], "have none"),
        ([NOW_MS - days * DAY_MS for days in range(1, 6)], "decrease"),
    ],
)
def test_other_timestamps_are_replaced_by_file_times_or_refused(times: list[int], problem: str) -> None:
    written = (NOW_MS - 10 * DAY_MS, NOW_MS - 4 * DAY_MS, NOW_MS - DAY_MS)
    found, by_files = arrival_times(arrivals(*times), view(*written, end=60), NOW_MS)
    assert by_files
    assert found[0] == written[0] and (np.diff(found) >= 0).all() and found[-1] <= NOW_MS
    with pytest.raises(UnsupportedLogError, match=problem):
        arrival_times(arrivals(*times), view(*[NOW_MS] * 3, end=60), NOW_MS)


def test_an_empty_log_has_no_times() -> None:
    found, by_files = arrival_times(arrivals(), replace(view(NOW_MS, end=0), segments=()), NOW_MS)
    assert (len(found), by_files) == (0, False)


def test_periods_are_days_unless_there_are_few() -> None:
    assert period(0, 60 * DAY_MS) == DAY_MS
    assert period(0, 3 * DAY_MS) == HOUR_MS
    assert period(0, 3 * HOUR_MS) == 600_000


def test_each_end_of_a_period_is_a_check() -> None:
    first_ms = NOW_MS + HOUR_MS
    found = clock(first_ms, first_ms + 3 * DAY_MS, first_ms + DAY_MS, DAY_MS)
    assert found.ends.tolist() == [first_ms + DAY_MS, NOW_MS + 2 * DAY_MS, NOW_MS + 3 * DAY_MS, first_ms + 3 * DAY_MS]
    assert set(found.ends.tolist()) <= set(found.checks.tolist())
    assert found.checks[0] == first_ms and (np.diff(found.checks) > 0).all()
