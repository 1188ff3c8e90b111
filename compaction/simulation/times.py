"""When the records of a log arrived, by their timestamps or by the times of its files; and the times of a simulation."""

from __future__ import annotations

import numpy as np

from compaction.cleaning.log_view import LogView
from compaction.errors import UnsupportedLogError
from compaction.simulation.arrivals import FIRST_OFFSET, LARGEST_TIMESTAMP, Arrivals, Int64s
from compaction.simulation.replay import Clock

_MINUTE_MS, _HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
#: a broker's ``log.retention.check.interval.ms``; its cleaner looks more often
_LEAST_CHECK_MS = 5 * _MINUTE_MS
#: checks of a simulation, at most this number and the ends of periods
_CHECKS = 1000
_PERIODS_MS = (10 * _MINUTE_MS, _HOUR_MS, 6 * _HOUR_MS)
#: with fewer days periods are shorter
_FEW = 14
#: timestamps may be later than now, or fall, by this time
_TOLERANCE_MS = _DAY_MS
#: at most this share of the parts may be out of order by more
_DISORDER = 0.1


def arrival_times(arrivals: Arrivals, view: LogView, now_ms: int) -> tuple[Int64s, bool]:
    """When each part arrived, int64[n], ascending; and whether that is by the times of files.

    :raises UnsupportedLogError: neither timestamps nor files say when
    """
    largest = arrivals.parts[:, LARGEST_TIMESTAMP]
    if not len(largest):
        return largest, False
    problem = _problem(largest, now_ms)
    if problem is None:
        return np.maximum.accumulate(np.minimum(largest, now_ms)), False
    bases = np.array([segment.base_offset for segment in view.segments])
    written = np.array([segment.mtime_ms for segment in view.segments])
    written = np.maximum.accumulate(np.minimum(written, now_ms))
    if len(written) < 2 or written[-1] - written[0] < _HOUR_MS:
        message = f"its timestamps do not say when its records arrived ({problem}), nor do the times of its files"
        raise UnsupportedLogError(message, path=view.path, hint="copy it with its file times (cp -p, rsync -t)")
    # a file is written last when the next one begins
    ends = np.append(bases[1:], view.log_end_offset)
    offsets = arrivals.parts[:, FIRST_OFFSET]
    return np.interp(offsets, np.append(bases[:1], ends), np.append(written[:1], written)).astype(np.int64), True


def _problem(largest: Int64s, now_ms: int) -> str | None:
    """Why timestamps are no times of arrival; ``None`` if they are."""
    if (largest < 0).any():
        return "some records have none"
    future = int((largest > now_ms + _TOLERANCE_MS).sum())
    if future:
        return "some are in the future"
    if len(largest) > 2 and largest.min() == largest.max():
        return "all are equal"
    fallen = np.maximum.accumulate(largest) - largest > _TOLERANCE_MS
    return "they decrease" if fallen.mean() > _DISORDER else None


def period(first_ms: int, last_ms: int) -> int:
    """The length of a period, ms: a day, or less if there are few days."""
    span_ms = last_ms - first_ms
    return next((each for each in _PERIODS_MS if span_ms < _FEW * _DAY_MS and span_ms / each <= 2 * _FEW * 4), _DAY_MS)


def clock(first_ms: int, last_ms: int, shown_ms: int, period_ms: int) -> Clock:
    """The times of a simulation from the first time to the last, at which a period ends, whichever its length.

    :param shown_ms: the first end of a period
    """
    step_ms = max(_LEAST_CHECK_MS, -(-(last_ms - first_ms) // _CHECKS))
    first_end = shown_ms - shown_ms % period_ms + period_ms
    ends = np.unique([shown_ms, *range(first_end, last_ms, period_ms), last_ms])
    checks = np.arange(first_ms, last_ms, step_ms, dtype=np.int64)
    return Clock(np.unique(np.concatenate([checks, ends])), ends)
