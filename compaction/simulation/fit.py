"""Finds settings under which logs remain within a size: a small search that changes as few settings as possible.

Each round tries every value of every setting that is not changed yet. If some of them suffice, the gentlest is taken: the one
that deletes least and writes least. Else the one with the lowest peak is kept, and the next round adds another setting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compaction.config.sources import CONFIGURED
from compaction.simulation.figures import Effect

#: the settings that matter, each from the gentlest value to the strongest
_COMPACT = {
    "min.cleanable.dirty.ratio": ("0.3", "0.1", "0.02"),
    "segment.ms": ("1d", "6h", "1h"),
    "segment.bytes": ("256MiB", "64MiB", "16MiB"),
    "max.compaction.lag.ms": ("2d", "6h"),
    "delete.retention.ms": ("6h", "1h"),
}
_DELETE = {
    "retention.ms": ("30d", "14d", "7d", "3d", "1d", "12h", "3h"),
    "segment.ms": ("1d", "6h", "1h"),
    "segment.bytes": ("256MiB", "64MiB", "16MiB"),
}
_MOST_CHANGES = 3


@dataclass(frozen=True)
class Trial:
    """A policy that was tried."""

    #: the settings that differ from the policy
    changes: tuple[str, ...]
    #: greatest size of all logs together
    peak_bytes: int
    #: mean size
    mean_bytes: int
    #: bytes that the cleaner writes
    bytes_written: int
    #: bytes that the delete policy removes
    bytes_deleted: int


@dataclass(frozen=True)
class Fit:
    """The result of a search."""

    #: the policy that was changed
    policy: str
    #: the size that was given
    fit_bytes: int
    #: the gentlest policy whose peak fits; ``null`` if none does
    found: Trial | None
    #: the change of a single setting that lowers the peak most; ``null`` if none lowers it
    strongest: Trial | None
    #: all that were tried, in order; the first one is the policy itself
    trials: tuple[Trial, ...]


def fit(policy: str, fit_bytes: int, compacts: bool, deletes: bool, simulate: Callable[[str], Effect]) -> Fit:
    """Search from ``policy`` on.

    :param simulate: the sum over all logs under a policy
    """
    settings = {**(_DELETE if deletes else {}), **(_COMPACT if compacts else {})}
    trials = [_trial((), simulate(policy))]
    changes: tuple[str, ...] = ()
    found = trials[0] if trials[0].peak_bytes <= fit_bytes else None
    strongest: Trial | None = None
    while found is None and len(changes) < _MOST_CHANGES:
        tried = [
            _trial((*changes, f"{name}={value}"), simulate(changed(policy, (*changes, f"{name}={value}"))))
            for name, values in settings.items()
            if not any(change.startswith(f"{name}=") for change in changes)
            for value in values
        ]
        trials += tried
        fitting = [trial for trial in tried if trial.peak_bytes <= fit_bytes]
        found = min(fitting, key=lambda trial: (trial.bytes_deleted, trial.bytes_written, trial.changes), default=None)
        best = min(tried, key=lambda trial: (trial.peak_bytes, trial.bytes_written, trial.changes), default=None)
        if best is None:
            break
        if strongest is None and best.peak_bytes < trials[0].peak_bytes:
            strongest = best
        changes = best.changes
    return Fit(policy, fit_bytes, found, strongest, tuple(trials))


def changed(policy: str, changes: tuple[str, ...]) -> str:
    """The text of a policy with other settings."""
    names = {change.partition("=")[0] for change in changes}
    kept = [] if policy == CONFIGURED else [part for part in policy.split(",") if part.partition("=")[0].strip() not in names]
    return ",".join([*kept, *changes])


def _trial(changes: tuple[str, ...], effect: Effect) -> Trial:
    return Trial(changes, effect.peak_bytes, effect.mean_bytes, effect.bytes_written, effect.bytes_deleted)
