"""Policies through time as text: a line for each policy with its sizes, as figures and as a line of bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from compaction.screen.amounts import counted, elapsed, short_duration, size
from compaction.screen.text_table import Column, Line, Row, Style, letter, table, wrapped
from compaction.simulation.figures import Effect, SimulatedLog
from compaction.simulation.fit import Fit

if TYPE_CHECKING:
    from compaction.simulation.result import OverTime

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*%#"
_BAR_CELLS = 60


def lines_of(result: OverTime, style: Style, *, all_rows: bool, details: bool) -> list[Line]:
    """The sums of each policy; with ``all_rows`` each log too; with ``details`` the cleanings and deletions of each policy."""
    lines: list[Line] = []
    shown = [log for log in result.logs if log.error is None]
    named = shown if all_rows or len(shown) <= 1 else []
    for log in named:
        lines += [*wrapped(log.name, style, colour="bold"), *_dim(notes_of(log), style)]
        lines += [*_table(log.effects, style, details), Line("")]
    if len(shown) > 1 or not named:
        lines += [*wrapped(f"all of {counted(len(shown), 'log')}", style, colour="bold"), *_dim(shared_notes(shown), style)]
        lines += [*_table(result.totals(), style, details), Line("")]
    lines += _fit(result.fit, style) if result.fit is not None else []
    for log in result.logs:
        for error in dict.fromkeys([log.error if details else None, *(effect.error for effect in log.effects)]):
            if error is not None:
                lines += wrapped(f"{log.name}: {error}", style, hanging=2, colour="red")
    lines += _dim(ahead_note(result), style)
    return [*lines, *wrapped(summary_of(result), style)]


def summary_of(result: OverTime) -> str:
    peaks = [f"{letter(number)} at most {size(total.peak_bytes)}" for number, total in enumerate(result.totals())]
    failed = sum(log.error is not None for log in result.logs)
    tail = f", {failed} failed" if failed else ""
    logs = counted(len(result.logs), "log")
    time = f"in {elapsed(result.seconds)} without start-up"
    return f"simulated, nothing written: {logs}{tail}; {', '.join(peaks)} on disk, {time}"


def _fit(found: Fit, style: Style) -> list[Line]:
    """The search: what fits, the strongest single setting, and each setting alone."""
    lines = [line for text in fit_note(found) for line in wrapped(text, style, hanging=2)]
    columns = [Column("setting", right=False), Column("peak"), Column("mean"), Column("cleaner writes"), Column("deleted")]
    rows = [
        Row([",".join(trial.changes) or found.policy, *map(size, (trial.peak_bytes, trial.mean_bytes)),
             size(trial.bytes_written), size(trial.bytes_deleted)])
        for trial in found.trials
        if len(trial.changes) <= 1
    ]  # fmt: skip
    return [*lines, *table(columns, rows, style), Line("")]


def _table(effects: Sequence[Effect], style: Style, details: bool) -> list[Line]:
    """A row of figures for each policy, with a line of bars below it."""
    titles = ("mean", "peak", "end", "cleaned", "written", "superseded for", "deleted for")
    peak = max((effect.peak_bytes for effect in effects), default=0)
    lines = []
    for number, effect in enumerate(effects):
        lines += wrapped(f"{letter(number)}  {effect.policy}", style, hanging=3)
    rows = [_row(number, effect, peak, style, details) for number, effect in enumerate(effects)]
    return [*lines, *table([Column("", right=False), *map(Column, titles)], rows, style)]


def _row(number: int, effect: Effect, peak: int, style: Style, details: bool) -> Row:
    if not effect.samples:
        return Row([letter(number), *[""] * 7], "", ["no figures"])
    cells = [
        letter(number), size(effect.mean_bytes), size(effect.peak_bytes), size(effect.end_bytes), f"{effect.cleanings:,} x",
        f"{effect.write_amplification:.2f} x", short_duration(effect.oldest_superseded_ms),
        short_duration(effect.oldest_deleted_ms),
    ]  # fmt: skip
    bars = _bars([sample.bytes for sample in effect.samples], peak, style)
    return Row(cells, "", [bars, *(_events(effect) if details else ())])


def _events(effect: Effect) -> Iterator[str]:
    for event in effect.events:
        if event.what == "cleaned":
            yield f"{_time(event.at_ms)} cleaned {size(event.bytes_before)} -> {size(event.bytes_after)}"
        else:
            yield f"{_time(event.at_ms)} deleted {size(event.bytes_before)}"


def _bars(sizes: Sequence[int], most: int, style: Style) -> str:
    """A bar for each of up to ``_BAR_CELLS`` equal numbers of periods: their largest size."""
    signs = _BARS if style.ellipsis == "…" else _ASCII_BARS
    cells = min(len(sizes), _BAR_CELLS)
    if not cells or not most:
        return ""
    edges = [len(sizes) * cell // cells for cell in range(cells + 1)]
    largest = (max(sizes[first:end]) for first, end in zip(edges, edges[1:], strict=False))
    return "".join(signs[min(len(signs) - 1, value * len(signs) // (most + 1))] for value in largest)


def notes_of(log: SimulatedLog) -> list[str]:
    """What the log does not tell, and how exact the figures are."""
    known = log.known
    if known is None:
        return []
    first = f"{size(known.arrived_bytes)} arrived since {_time(known.first_ms)}"
    texts = [f"{first}; {'exact' if known.exact else 'estimated'}" + (f": {known.estimate}" if known.estimate else "")]
    if known.missing_share:
        share = f"{100 * known.missing_share:.0f} %"
        texts.append(f"complete from {_time(known.complete_from_ms)} on; before that {share} of its records are gone")
    if known.file_times:
        texts.append("its timestamps do not say when its records arrived: the times of its files are used")
    return texts


def shared_notes(logs: Sequence[SimulatedLog]) -> list[str]:
    """The same of several logs."""
    known = [log.known for log in logs if log.known is not None]
    if not known:
        return []
    arrived, first = sum(each.arrived_bytes for each in known), min(each.first_ms for each in known)
    exact, gone = sum(each.exact for each in known), sum(each.missing_share > 0 for each in known)
    how = "exact" if exact == len(known) else f"{exact} of {len(known)} logs exact, the others estimated"
    texts = [f"{size(arrived)} arrived since {_time(first)}; {how}"]
    return [*texts, f"of {counted(gone, 'log')} records of the past are gone"] if gone else texts


def ahead_note(result: OverTime) -> list[str]:
    """What comes after the present."""
    if not result.ahead_ms:
        return []
    return [f"after {_time(result.as_of_ms)}: the arrivals of the last 30 days once more, whose keys recur as they did"]


def fit_note(found: Fit) -> list[str]:
    """What fits, and the strongest single setting."""
    if found.found is None:
        texts = [f"none of {counted(len(found.trials), 'policy')} remains within {size(found.fit_bytes)}"]
    else:
        how = ",".join(found.found.changes) or "unchanged"
        texts = [f"within {size(found.fit_bytes)}: {found.policy}, {how}: at most {size(found.found.peak_bytes)}"]
    if found.strongest is not None:
        texts.append(f"strongest single setting: {found.strongest.changes[0]}: at most {size(found.strongest.peak_bytes)}")
    return texts


def _dim(texts: Sequence[str], style: Style) -> list[Line]:
    return [line for text in texts for line in wrapped(text, style, colour="dim")]


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%MZ")
