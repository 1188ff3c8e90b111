"""Which logs a run defers because of its budget. A deferred log is not changed; it is dirtier in the next run.

1. A log that is expected to free less than the least share of what would be rewritten is deferred (``cleaning.plan``).
2. In the order of the run, logs whose rewriting exceeds the most bytes are deferred; later ones that still fit are not.
3. A log that would not be done in time at the rate of the run so far is deferred, but not the first one of the run. Waves are
   short for that: the first one has at most ``_FIRST_WAVE_BYTES``, each other one at most what the run rewrites in a tenth of
   its time.
"""

from __future__ import annotations

from collections.abc import Sequence

from compaction.cleaning.plan import freed_bytes, rewritten_bytes
from compaction.config.request import Budget
from compaction.run.log_cleaning import LogCleaning
from compaction.screen.amounts import elapsed, size

#: of a run with a time limit, before its rate is known
_FIRST_WAVE_BYTES = 1 << 30
#: waves that a run with a time limit has at least
_WAVES = 10


def defer(logs: Sequence[LogCleaning], budget: Budget) -> None:
    """Sets ``deferred`` of logs to clean, in the order of the run, by rules 1 and 2."""
    planned_bytes, most_bytes, least_share = 0, budget.max_rewrite_bytes, budget.min_freed_share
    for log in logs:
        log_bytes = rewritten_bytes(log.compaction)
        freed = freed_bytes(log.plan)
        if least_share is not None and freed < least_share * log_bytes:
            share = f"{100 * freed / log_bytes:.1f} % of {size(log_bytes)}"
            log.deferred = f"deferred: would free about {share}, less than --min-freed {100 * least_share:g} %"
        elif most_bytes is not None and planned_bytes + log_bytes > most_bytes:
            amounts = f"{size(log_bytes)} after {size(planned_bytes)}"
            log.deferred = f"deferred: {amounts} would exceed --max-rewrite {size(most_bytes)}"
        else:
            planned_bytes += log_bytes


class Pace:
    """The rate of a run, and which logs would be done before it ends (rule 3).

    :param started_s: when the run began, by the clock of ``now_s``
    """

    def __init__(self, max_duration_ms: int | None, started_s: float) -> None:
        self._max_s = None if max_duration_ms is None else max_duration_ms / 1000
        self._started_s = started_s
        #: of the waves that have ended
        self.rewritten_bytes, self._seconds = 0, 0.0
        self._begun = False

    @property
    def limited(self) -> bool:
        return self._max_s is not None

    @property
    def end_s(self) -> float:
        return float("inf") if self._max_s is None else self._started_s + self._max_s

    @property
    def bytes_per_second(self) -> float:
        """The rate of the run so far; 0 if that is not known."""
        return self.rewritten_bytes / self._seconds if self._seconds else 0.0

    def add(self, log_bytes: int, seconds: float) -> None:
        """A wave took ``seconds``; ``log_bytes`` are those of its logs that did not fail."""
        self._begun = True
        self.rewritten_bytes += log_bytes
        self._seconds += seconds

    def defer_late(self, logs: Sequence[LogCleaning], now_s: float) -> None:
        """Sets ``deferred`` of logs that would not be done in time, each begun now; the first wave has the first log anyway."""
        left_s = self.end_s - now_s
        for log in logs if self._begun else logs[1:]:
            seconds = self.seconds_for(rewritten_bytes(log.compaction))
            if left_s <= 0:
                log.deferred = "deferred: --max-duration has passed"
            elif seconds > left_s:
                needed = f"{elapsed(seconds)} at {size(self.bytes_per_second)}/s"
                log.deferred = f"deferred: would take {needed}, {elapsed(left_s)} of --max-duration are left"

    def wave_bytes(self, now_s: float) -> float:
        """The most bytes of a wave of several logs."""
        if self._max_s is None:
            return float("inf")
        if not self.rewritten_bytes:
            return _FIRST_WAVE_BYTES
        return min(self._max_s / _WAVES, self.end_s - now_s) * self.rewritten_bytes / max(self._seconds, 0.001)

    def seconds_for(self, log_bytes: int) -> float:
        """How long logs take at the rate of the run so far; 0 if that is not known."""
        rate = self.bytes_per_second
        return log_bytes / rate if rate else 0.0
