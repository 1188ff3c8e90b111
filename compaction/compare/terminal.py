"""A comparison as text: a line per log or topic with what each policy frees, the legend, and the totals; and explanations.

Policies have letters, as on the page, because their names are long. A cell is the share that the policy frees, or the reason,
in a word, why the log would not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from compaction.compare.figures import ComparedLog, LogTotals, Outcome, OutcomeStatus
from compaction.screen.amounts import change, counted, elapsed, share_freed, size
from compaction.screen.text_table import Column, Line, Row, Style, TopRows, letter, table, top_rows, wrapped

if TYPE_CHECKING:
    from compaction.compare.comparison import Comparison

#: outcomes without figures
_WITHOUT_FIGURES = (OutcomeStatus.FAILED, OutcomeStatus.POLICY_UNKNOWN)
#: reasons that are shown in place of a figure, and their meanings
_MEANINGS = {
    "failed": "it cannot be read or cleaned",
    "refused": "many of its records have no key: a run needs --allow-keyless",
    "unknown": "no source has its cleanup.policy",
    "ratio": "too little is dirty for min.cleanable.dirty.ratio",
    "clean": "nothing was appended since it was cleaned",
    "active": "all dirty records are in the active segment; for an export, --include-active cleans it",
    "held": "all dirty records are in an open transaction, or above the high watermark",
    "lag": "min.compaction.lag.ms has not passed",
    "empty": "it has no bytes",
    "policy": "its policy neither compacts nor deletes",
    "retention": "nothing in it has expired",
    "tiered": "its segments are in tiered storage, too",
    "future": "its oldest record is in the future",
}
#: a policy's column, with the gap before it
_POLICY_CELLS = 11
_OTHER_CELLS = 27
#: the columns of totals before the last one
_TOTALS_CELLS = 40


def comparison_lines(comparison: Comparison, style: Style, *, all_rows: bool, details: bool) -> list[Line]:
    """Each log under each policy, and the totals."""
    layout = _TableLayout(style, all_rows, details)
    rows = [line for block in _blocks(comparison, style) for line in _table(comparison, block, layout)]
    versions = [line for kafka_version in comparison.kafka_versions for line in wrapped(str(kafka_version), style)]
    last = wrapped(comparison_summary(comparison), style)
    head, totals = _legend(comparison, style), _totals(comparison, style)
    return [*head, *rows, *_meanings(comparison, style), *totals, Line(""), *versions, *last]


class _TableLayout(NamedTuple):
    """The layout of the table; whether it has every log, and details of each."""

    style: Style
    all_rows: bool
    details: bool


def explanation_lines(logs: Iterable[ComparedLog], style: Style) -> Iterator[Line]:
    """All conditions of each policy for each log."""
    for log in logs:
        lines = wrapped(f"{log.name} in {log.log_dir}", style, hanging=2)
        if log.error is not None:
            lines += wrapped(f"failed: {log.error}", style, indent=2, hanging=2)
        for outcome in log.outcomes:
            head = f"{outcome.policy}: {outcome.status.would}: {outcome.reason}"
            lines += wrapped(head, style, indent=2, hanging=2)
            for text in (line for why in outcome.why for line in why.split("\n")):
                remedy = text.startswith(" ")
                indent, hanging = (10, 0) if remedy else (4, 6)
                lines += wrapped(text.strip(), style, indent=indent, hanging=hanging)
        yield from lines


def _legend(comparison: Comparison, style: Style) -> list[Line]:
    """The letters of the policies; a long name is broken after a comma."""
    lines = []
    for number, name in enumerate(comparison.policies):
        spaced = name.replace(",", ", ") if len(name) + 3 > style.width else name
        lines += wrapped(f"{letter(number)}  {spaced}", style, hanging=3, colour="bold")
    return [*lines, Line("")]


def _blocks(comparison: Comparison, style: Style) -> list[range]:
    """The policies of each table, as many as fit the width."""
    most_policies = max(1, (style.width - _OTHER_CELLS) // _POLICY_CELLS)
    count = len(comparison.policies)
    return [range(first, min(first + most_policies, count)) for first in range(0, count, most_policies)]


def _table(comparison: Comparison, policies: range, layout: _TableLayout) -> list[Line]:
    logs = comparison.logs
    names = [(log.topic, log.partition) for log in logs]
    top = top_rows(names, lambda row: _rank([logs[number] for number in row]), layout.style.ellipsis, all_rows=layout.all_rows)
    columns = [Column(top.title, right=False), Column("on disk"), Column("records", rank=2), Column("keys", rank=1)]
    columns += [Column(f"{letter(number)} freed") for number in policies]
    total = _row(f"total, {counted(len(logs), 'log')}", logs, policies, "bold", ())
    *body, last = table(columns, [*_rows(top, logs, policies, layout), total], layout.style)
    return [*body, *wrapped(top.hidden, layout.style, colour="dim"), last, Line("")]


def _rows(top: TopRows, logs: Sequence[ComparedLog], policies: range, layout: _TableLayout) -> Iterator[Row]:
    for name, numbers in top.rows:
        row_logs = [logs[number] for number in numbers]
        details = (
            [text for log in row_logs for text in _details(log, policies, named=len(row_logs) > 1)] if layout.details else []
        )
        yield _row(name, row_logs, policies, "bold red" if _failed(row_logs) else "", details)


def _row(name: str, logs: Sequence[ComparedLog], policies: range, colour: str, details: Sequence[str]) -> Row:
    before = sum((log.before for log in logs), LogTotals())
    keys = sum(log.keys.distinct for log in logs)
    cells = [name, size(before.bytes), f"{before.records:,}", f"{keys:,}"]
    if all(log.error is not None for log in logs):
        cells = [name, "", "", ""]
    return Row([*cells, *(_cell(logs, number) for number in policies)], colour, details)


def _cell(logs: Sequence[ComparedLog], number: int) -> str:
    """The share that the policy frees, or the reason why none of the logs would change."""
    before = sum(log.before.bytes for log in logs)
    after = sum(log.remaining(number).bytes for log in logs)
    reasons = {_reason(log, number) for log in logs}
    return next(iter(reasons)) if len(reasons) == 1 and "" not in reasons else share_freed(before, after)


def _reason(log: ComparedLog, number: int) -> str:
    """Why a policy would not change a log, in a word; empty if it would."""
    if log.error is not None:
        return "failed"
    outcome = log.outcomes[number]
    if outcome.status is OutcomeStatus.POLICY_UNKNOWN:
        return "unknown"
    if outcome.status is OutcomeStatus.SKIPPED:
        return outcome.run.reason_code or "skipped"
    return "" if outcome.status is OutcomeStatus.CLEANED else outcome.status.value


def _rank(logs: Sequence[ComparedLog]) -> tuple[bool, int, int, str, int]:
    """Failed logs first, then the most bytes freed by any policy, then the most bytes."""
    before = sum(log.before.bytes for log in logs)
    policies = range(min((len(log.outcomes) for log in logs if log.error is None), default=0))
    least_bytes = min((sum(log.remaining(number).bytes for log in logs) for number in policies), default=before)
    return not _failed(logs), least_bytes - before, -before, logs[0].topic, logs[0].partition


def _failed(logs: Iterable[ComparedLog]) -> bool:
    return any(log.fails for log in logs)


def _details(log: ComparedLog, policies: range, *, named: bool) -> Iterator[str]:
    """The effect of each policy, with its reason."""
    prefix = f"{log.name}: " if named else ""
    if log.error is not None:
        yield f"{prefix}failed: {log.error}"
        return
    for number in policies:
        outcome = log.outcomes[number]
        rounds = f", {outcome.broker_rounds} rounds of a broker" if outcome.broker_rounds > 1 else ""
        remaining = "" if outcome.status in _WITHOUT_FIGURES else f": {_remaining(outcome)}{rounds}"
        yield f"{prefix}{letter(number)} {outcome.status.would}{remaining}; {outcome.reason}"


def _remaining(outcome: Outcome) -> str:
    after = outcome.after
    parts = (counted(after.segments, "segment"), counted(after.records, "record"), counted(after.tombstones, "tombstone"))
    return f"{size(after.bytes)} in {', '.join(parts)} remaining"


def _meanings(comparison: Comparison, style: Style) -> list[Line]:
    numbers = range(len(comparison.policies))
    used = {_reason(log, number) for log in comparison.logs for number in numbers}
    lines = [
        line
        for word, text in _MEANINGS.items()
        if word in used
        for line in wrapped(f"{word + ':':<10} {text}", style, hanging=11, colour="dim")
    ]
    return [*lines, Line("")] if lines else []


def _totals(comparison: Comparison, style: Style) -> list[Line]:
    """The totals of each policy; a log that would not be changed counts as it is."""
    columns = [Column("policy", right=False), *(Column(title) for title in ("on disk", "after", "freed"))]
    would = [_would(comparison, number) for number in range(len(comparison.policies))]
    in_rows = max(map(len, would), default=0) <= style.width - _TOTALS_CELLS
    if in_rows:
        columns.append(Column("logs would be", right=False))
    rows = []
    for number, total in enumerate(comparison.totals()):
        before, after = total.before.bytes, total.after.bytes
        figures = [size(before), size(after), share_freed(before, after)]
        outcome_cells = [would[number]] if in_rows else []
        rows.append(
            Row([letter(number), *figures, *outcome_cells], details=() if in_rows else [f"logs would be: {would[number]}"])
        )
    return table(columns, rows, style)


def _would(comparison: Comparison, number: int) -> str:
    """The number of logs by outcome."""
    counts = Counter(log.outcomes[number].words for log in comparison.logs if log.error is None)
    failed = sum(log.error is not None for log in comparison.logs)
    if failed:
        counts["failed"] += failed
    return ", ".join(f"{count} {words}" for words, count in counts.most_common())


def comparison_summary(comparison: Comparison) -> str:
    totals = enumerate(comparison.totals())
    policies = [f"{letter(number)} {change(total.before.bytes, total.after.bytes)}" for number, total in totals]
    failed = sum(_failed([log]) for log in comparison.logs)
    tail = f", {failed} failed" if failed else ""
    logs = counted(len(comparison.logs), "log")
    time = f"in {elapsed(comparison.seconds)} without start-up"
    return f"dry run, nothing written: {logs}{tail}; {', '.join(policies)} on disk, {time}"
