"""Policies through time, as ``dry_run(..., over_time=True)`` returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from compaction.report import RunStatus
from compaction.results import Result
from compaction.screen.text_table import Line, Style
from compaction.simulation.figures import Effect, SimulatedLog, total
from compaction.simulation.fit import Fit
from compaction.simulation.html_page import to_html
from compaction.simulation.terminal import lines_of, summary_of

SCHEMA_VERSION = 1
#: the properties of an effect that its object has
_FIGURES = (
    "least_bytes", "mean_bytes", "peak_bytes", "end_bytes", "segments", "cleanings", "bytes_read", "bytes_written",
    "bytes_deleted", "write_amplification", "superseded_share", "oldest_superseded_ms", "oldest_deleted_ms",
)  # fmt: skip


@dataclass(frozen=True)
class OverTime(Result):
    """All logs under all policies, named in the order given; ``period_ms`` is the time between two samples, ``ahead_ms`` that
    after ``as_of_ms``; ``fit`` is the search for a policy, if one was asked for."""

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

    def to_html(self) -> str:
        """The figures as one HTML page."""
        return to_html(self)

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
