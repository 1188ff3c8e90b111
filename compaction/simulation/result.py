"""Policies through time, as ``dry_run(..., over_time=True)`` returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from compaction.report import RunStatus
from compaction.results import PageResult
from compaction.screen.amounts import counted
from compaction.screen.text_table import Line, Style
from compaction.simulation.figures import Effect, SimulatedLog, total
from compaction.simulation.fit import Fit
from compaction.simulation.terminal import ahead_note, fit_note, lines_of, notes_of, shared_notes, summary_of

SCHEMA_VERSION = 1
#: topics and logs that the page shows, and the samples of all of them
MOST_VIEWS, _FEW_VIEWS, _MOST_SAMPLES = 200, 10, 25_000
#: the properties of an effect that its object has
_FIGURES = (
    "least_bytes", "mean_bytes", "peak_bytes", "end_bytes", "segments", "cleanings", "bytes_read", "bytes_written",
    "bytes_deleted", "write_amplification", "superseded_share", "oldest_superseded_ms", "oldest_deleted_ms",
)  # fmt: skip


@dataclass(frozen=True)
class OverTime(PageResult):
    """All logs under all policies, named in the order given; ``period_ms`` is the time between two samples, ``ahead_ms`` that
    after ``as_of_ms``; ``fit`` is the search for a policy, if one was asked for."""

    page = "over_time"
    not_on_page: ClassVar[frozenset[str]] = frozenset({"least_bytes", "cleaned_bytes", "arrived_bytes"})

    run_id: str
    as_of_ms: int
    policies: tuple[str, ...]
    logs: tuple[SimulatedLog, ...]
    period_ms: int
    ahead_ms: int = 0
    fit: Fit | None = None
    seconds: float = 0.0
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether a log has no figures."""
        return any(log.error is not None for log in self.logs)

    @property
    def status(self) -> RunStatus:
        return RunStatus.FAILED if self.failed else RunStatus.DONE

    @property
    def exit_code(self) -> int:
        """1 if a log has no figures, else 0."""
        return int(self.failed)

    def totals(self) -> tuple[Effect, ...]:
        """The sums per policy, in the order of ``policies``."""
        shown = [log for log in self.logs if log.error is None]
        return tuple(total(name, [log.effects[number] for log in shown]) for number, name in enumerate(self.policies))

    def lines(self, style: Style | None = None, *, all_rows: bool = False, details: bool = False) -> list[Line]:
        return lines_of(self, style or Style(), all_rows=all_rows, details=details)

    def summary(self) -> str:
        return summary_of(self)

    def page_document(self) -> Mapping[str, Any]:
        """See ``PageResult``: all logs, each topic and log, or as many of the largest ones as fit."""
        logs = [log for log in self.logs if log.error is None]
        groups = _groups(logs)
        samples = sum(len(effect.samples) for log in logs[:1] for effect in log.effects)
        most = min(MOST_VIEWS, max(_FEW_VIEWS, _MOST_SAMPLES // max(1, samples)))
        largest = sorted(sorted(range(len(groups)), key=lambda number: -_peak(groups[number][1]))[:most])
        notes = [f"{counted(len(self.logs), 'log')}, which were only read"]
        if len(groups) > len(largest):
            notes.append(f"the {most} largest topics and logs can be chosen; the report has the others")
        views = [(f"all of {counted(len(logs), 'log')}", logs), *(groups[number] for number in largest)]
        return {
            "as_of_ms": self.as_of_ms,
            "about": " ".join(f"{text[0].upper()}{text[1:]}." for text in [*notes, *ahead_note(self)]),
            "fit": None if self.fit is None else {**asdict(self.fit), "text": "; ".join(fit_note(self.fit))},
            "views": [self._view(name, group) for name, group in views],
        }

    def _view(self, name: str, logs: Sequence[SimulatedLog]) -> dict[str, Any]:
        """The effects of the policies on a log, or on several."""
        notes = notes_of(logs[0]) if len(logs) == 1 else shared_notes(logs)
        errors = [f"{log.name}: {log.error}" for log in self.logs if log.error is not None] if len(logs) != 1 else []
        effects = []
        for number, policy in enumerate(self.policies):
            error = next((log.effects[number].error for log in logs if log.effects[number].error), None)
            effects.append(replace(total(policy, [log.effects[number] for log in logs]), error=error))
        return {"name": name, "notes": [*notes, *errors], "policies": [_effect(effect) for effect in effects]}

    def to_dict(self) -> dict[str, Any]:
        """The document, ``schema_version`` 1; see the field tables of ``compaction.simulation.figures``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "as_of_ms": self.as_of_ms,
            "dry_run": True,
            "over_time": True,
            "status": self.status.value,
            "seconds": round(self.seconds, 3),
            **self.origin,
            "period_ms": self.period_ms,
            "ahead_ms": self.ahead_ms,
            "fit": None if self.fit is None else asdict(self.fit),
            "policies": [_effect(effect) for effect in self.totals()],
            "logs": [_log(log) for log in self.logs],
        }


def _groups(logs: Sequence[SimulatedLog]) -> list[tuple[str, list[SimulatedLog]]]:
    """The topics of several logs, and the logs, with their names."""
    topics: dict[str, list[SimulatedLog]] = {}
    for log in logs:
        topics.setdefault(log.topic, []).append(log)
    groups = [(topic, group) for topic, group in topics.items() if 1 < len(group) < len(logs)]
    return groups + ([(log.name, [log]) for log in logs] if len(logs) > 1 else [])


def _peak(logs: Sequence[SimulatedLog]) -> int:
    return max((effect.peak_bytes for log in logs for effect in log.effects), default=0)


def _log(log: SimulatedLog) -> dict[str, Any]:
    return {
        "topic": log.topic,
        "partition": log.partition,
        "log_dir": log.log_dir,
        "error": log.error,
        "known": None if log.known is None else asdict(log.known),
        "policies": [_effect(effect) for effect in log.effects],
    }


def _effect(effect: Effect) -> dict[str, Any]:
    figures = {name: getattr(effect, name) for name in _FIGURES}
    shares = {name: round(value, 4) for name, value in figures.items() if isinstance(value, float)}
    return {
        "policy": effect.policy,
        "error": effect.error,
        **(figures | shares),
        "samples": [asdict(sample) for sample in effect.samples],
        "events": [asdict(event) for event in effect.events],
    }
