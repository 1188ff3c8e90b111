"""Policies through time as one self-contained HTML page: all logs, each topic, and as many of the largest logs as fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from compaction.printable import printable
from compaction.screen.amounts import counted
from compaction.screen.html_page import html_page
from compaction.simulation.figures import Effect, SimulatedLog, total
from compaction.simulation.fit import Fit
from compaction.simulation.terminal import ahead_note, fit_note, notes_of, shared_notes

if TYPE_CHECKING:
    from compaction.simulation.result import OverTime

#: topics and logs with samples of their own, the largest ones
MOST_VIEWS = 200


def to_html(result: OverTime) -> str:
    count, policies = len(result.logs), len(result.policies)
    title = f"{counted(policies, 'policy')} through time, {counted(count, 'log')}"
    return html_page("compaction.simulation", title, model(result))


def model(result: OverTime) -> dict[str, Any]:
    """The data of the script."""
    shown = [log for log in result.logs if log.error is None]
    topics: dict[str, list[SimulatedLog]] = {}
    for log in shown:
        topics.setdefault(log.topic, []).append(log)
    groups = [(topic, logs) for topic, logs in topics.items() if 1 < len(logs) < len(shown)]
    groups += [(log.name, [log]) for log in shown] if len(shown) > 1 else []
    largest = sorted(sorted(range(len(groups)), key=lambda number: -_peak(groups[number][1]))[:MOST_VIEWS])
    views = [(f"all of {counted(len(shown), 'log')}", shown), *(groups[number] for number in largest)]
    about = f"{counted(len(result.logs), 'log')}, which were only read."
    if len(groups) > len(largest):
        about += f" The {MOST_VIEWS} largest topics and logs can be chosen; the report has the others."
    return {
        "asOf": result.as_of_ms,
        "about": " ".join([about, *(f"{text[0].upper()}{text[1:]}." for text in ahead_note(result))]),
        "policies": list(result.policies),
        "views": [_view(result, name, logs) for name, logs in views],
        "fit": None if result.fit is None else {"text": "; ".join(fit_note(result.fit)), "trials": _trials(result.fit)},
    }


def _peak(logs: Sequence[SimulatedLog]) -> int:
    return max((effect.peak_bytes for log in logs for effect in log.effects), default=0)


def _view(result: OverTime, name: str, logs: Sequence[SimulatedLog]) -> dict[str, Any]:
    notes = notes_of(logs[0]) if len(logs) == 1 else shared_notes(logs)
    errors = [f"{log.name}: {log.error}" for log in result.logs if log.error is not None] if len(logs) != 1 else []
    effects = [total(policy, [log.effects[number] for log in logs]) for number, policy in enumerate(result.policies)]
    reasons = [
        next((log.effects[number].error for log in logs if log.effects[number].error), None) for number in range(len(effects))
    ]
    return {
        "name": printable(name),
        "notes": [printable(text) for text in (*notes, *errors)],
        "policies": [_effect(effect, reason) for effect, reason in zip(effects, reasons, strict=True)],
    }


def _effect(effect: Effect, reason: str | None) -> dict[str, Any]:
    return {
        "error": None if reason is None else printable(reason),
        "mean": effect.mean_bytes,
        "peak": effect.peak_bytes,
        "end": effect.end_bytes,
        "cleanings": effect.cleanings,
        "written": effect.write_amplification,
        "share": round(effect.superseded_share, 4),
        "superseded": effect.oldest_superseded_ms,
        "deleted": effect.oldest_deleted_ms,
        "samples": [[sample.at_ms, sample.bytes, sample.superseded_bytes, sample.segments] for sample in effect.samples],
        "events": [[event.at_ms, event.what, event.bytes_before, event.bytes_after] for event in effect.events],
    }


def _trials(found: Fit) -> list[list[Any]]:
    return [
        [", ".join(trial.changes) or found.policy, trial.peak_bytes, trial.mean_bytes, trial.bytes_written, trial.bytes_deleted]
        for trial in found.trials
        if len(trial.changes) <= 1
    ]
