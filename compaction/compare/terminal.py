"""A comparison as text: a table on a terminal, plain lines otherwise; and explanations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from compaction.compare.figures import ComparedLog, Comparison, LogTotals, Outcome, OutcomeStatus
from compaction.printable import printable

_STYLES = {
    OutcomeStatus.CLEANED: "green",
    OutcomeStatus.SKIPPED: "dim",
    OutcomeStatus.REFUSED: "yellow",
    OutcomeStatus.POLICY_UNKNOWN: "yellow",
    OutcomeStatus.FAILED: "bold red",
}
#: outcomes without figures
_WITHOUT_FIGURES = (OutcomeStatus.FAILED, OutcomeStatus.POLICY_UNKNOWN)


def print_comparison(comparison: Comparison, stream: TextIO) -> None:
    """Print each log under each policy, and the totals."""
    if stream.isatty():
        console = Console(file=stream)
        console.print(_table(comparison))
        for line in _summary(comparison):
            console.print(Text(printable(line)))
    else:
        _write(stream, [*_plain(comparison.logs), *_summary(comparison)])


def print_explanations(logs: Iterable[ComparedLog], stream: TextIO) -> None:
    """Print all conditions of each policy for each log."""
    for log in logs:
        lines = [f"{log.name} in {log.log_dir}"]
        if log.error is not None:
            lines.append(f"  failed: {log.error}")
        for outcome in log.outcomes:
            lines.append(f"  {outcome.policy}: {outcome.status.words}: {outcome.reason}")
            lines += [f"    {line}" for text in outcome.why for line in text.split("\n")]
        _write(stream, lines)


def _write(stream: TextIO, lines: Iterable[str]) -> None:
    stream.write("".join(f"{printable(line)}\n" for line in lines))


def freed(before: LogTotals, after: LogTotals) -> str:
    """How much smaller the files would be, in per cent."""
    if not before.bytes:
        return "nothing"
    return f"{100 * (before.bytes - after.bytes) / before.bytes:.1f} %"


def _plain(logs: Iterable[ComparedLog]) -> list[str]:
    lines = []
    for log in logs:
        lines.append(f"{log.name}: {_sizes(log.before)}, {log.keys.distinct} keys" if log.error is None else log.name)
        if log.error is not None:
            lines.append(f"    failed: {log.error}")
        for outcome in log.outcomes:
            lines.append(f"  {outcome.policy}: {outcome.status.words}{_remaining(log, outcome)}")
            lines.append(f"    {outcome.reason}")
    return lines


def _remaining(log: ComparedLog, outcome: Outcome) -> str:
    if outcome.status in _WITHOUT_FIGURES:
        return ""
    rounds = f", {outcome.broker_rounds} broker rounds" if outcome.broker_rounds > 1 else ""
    return f", {_sizes(outcome.after)} remaining, {freed(log.before, outcome.after)} freed{rounds}"


def _sizes(totals: LogTotals) -> str:
    return f"{decimal(totals.bytes)} in {totals.segments} segments, {totals.records} records, {totals.tombstones} tombstones"


def _summary(comparison: Comparison) -> list[str]:
    lines = []
    for totals in comparison.totals():
        counts = ", ".join(f"{count} {OutcomeStatus(status).words}" for status, count in totals.statuses.items() if count)
        sizes = f"{decimal(totals.before.bytes)} -> {decimal(totals.after.bytes)}"
        lines.append(f"{totals.policy}: {sizes}, {freed(totals.before, totals.after)} freed ({counts or 'no logs'})")
    failed = sum(log.error is not None for log in comparison.logs)
    tail = f", {failed} failed" if failed else ""
    return [*lines, f"{len(comparison.logs)} logs{tail}, nothing written, in {comparison.seconds:.1f} s"]


def _table(comparison: Comparison) -> Table:
    table = Table("log", "policy", "status", "bytes", "records", "tombstones", "segments", "freed", "why")
    for log in comparison.logs:
        if log.error is not None:
            table.add_row(_cell(log.name), "", Text("failed", style="bold red"), "", "", "", "", "", _cell(log.error))
        else:
            table.add_row(_cell(log.name), "", "", *_cells(log.before), "", f"{log.keys.distinct} keys")
        for outcome in log.outcomes:
            table.add_row(*_row(log, outcome))
        table.add_section()
    return table


def _row(log: ComparedLog, outcome: Outcome) -> tuple[Text | str, ...]:
    after, status = outcome.after, Text(outcome.status.words, style=_STYLES[outcome.status])
    if outcome.status in _WITHOUT_FIGURES:
        return ("", _cell(outcome.policy), status, "", "", "", "", "", _cell(outcome.reason))
    return ("", _cell(outcome.policy), status, *_cells(after), freed(log.before, after), _cell(outcome.reason))


def _cell(text: str) -> Text:
    return Text(printable(text))


def _cells(totals: LogTotals) -> tuple[str, str, str, str]:
    return decimal(totals.bytes), str(totals.records), str(totals.tombstones), str(totals.segments)
