"""A comparison as one self-contained HTML page that opens from disk and loads nothing.

The page consists of the files in ``assets`` and the figures as JSON. Its script draws the charts for all logs or for one, and
sorts and filters the table of logs. With very many logs the page omits their conditions; the JSON report has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compaction.compare.figures import ComparedLog, LogTotals, Outcome
from compaction.printable import printable
from compaction.screen.amounts import counted
from compaction.screen.html_page import html_page

if TYPE_CHECKING:
    from compaction.compare.comparison import Comparison

#: with more logs the page omits the conditions
MOST_EXPLAINED = 300

_HOUR_MS, _DAY_MS = 3_600_000, 86_400_000


def to_html(comparison: Comparison) -> str:
    count, policies = len(comparison.logs), len(comparison.policies)
    title = f"{counted(policies, 'policy')}, {counted(count, 'log')}"
    return html_page("compaction.compare", title, model(comparison))


def model(comparison: Comparison) -> dict[str, Any]:
    """The data of the script; names are short because they repeat for every log and policy."""
    explained = len(comparison.logs) <= MOST_EXPLAINED
    return {
        "asOf": comparison.as_of_ms,
        "policies": list(comparison.policies),
        "ages": age_labels(comparison.age_bounds_ms),
        "logs": [_log(log, explained) for log in comparison.logs],
    }


def age_labels(bounds_ms: tuple[int, ...]) -> list[str]:
    named = [_age(bound) for bound in bounds_ms]
    between = [f"{low} to {high}" for low, high in zip(named, named[1:], strict=False)]
    return ["in the future", f"up to {named[1]}", *between[1:], f"{named[-1]} and older", "no time"]


def _age(bound_ms: int) -> str:
    for name, size in (("y", 365 * _DAY_MS), ("d", _DAY_MS), ("h", _HOUR_MS)):
        if bound_ms and bound_ms % size == 0:
            return f"{bound_ms // size} {name}"
    return f"{bound_ms} ms"


def _log(log: ComparedLog, explained: bool) -> dict[str, Any]:
    return {
        "name": printable(log.name),
        "dir": printable(log.log_dir),
        "error": None if log.error is None else printable(log.error),
        "before": _columns(log.before),
        "ages": log.spread.by_age,
        "places": log.spread.by_place,
        "keys": [log.keys.distinct, log.keys.most_repeated],
        "repeats": [
            [repetition.at_least, repetition.at_most, repetition.keys, repetition.records] for repetition in log.keys.repetition
        ],
        "outcomes": [_outcome(outcome, explained) for outcome in log.outcomes],
    }


def _outcome(outcome: Outcome, explained: bool) -> dict[str, Any]:
    return {
        "status": outcome.status.value,
        "words": outcome.words,
        "reason": outcome.reason,
        "why": list(outcome.why) if explained else [],
        "after": _columns(outcome.after),
        "expired": _columns(outcome.expired),
        "ages": outcome.gone.by_age,
        "expiredAges": outcome.expired_by_age,
        "places": outcome.gone.by_place,
        "rounds": outcome.broker_rounds,
    }


def _columns(totals: LogTotals) -> list[int]:
    return [totals.bytes, totals.segments, totals.records, totals.record_bytes, totals.tombstones, totals.keyless_records]
