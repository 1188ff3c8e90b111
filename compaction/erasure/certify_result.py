"""The end of a certified erasure: the result is certified first, then the replaced segments are removed.

The certificate must still hold when the run has ended: it is written again if a replaced segment cannot be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compaction.cleaning.skip_reasons import SkipCause
from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError, as_log_error
from compaction.names import LogLocation
from compaction.output.finished import record_request
from compaction.output.segment_files import remove_deleted
from compaction.report import LogReport
from compaction.run.destination import Destination
from compaction.run.log import Log, failed_report
from compaction.run_report import HOLDS
from compaction.screen.steps import step
from compaction.storage.durable import DurableSteps, names_in, run_alone

NOT_MADE = "none"
_COPY_AWAY = "copy them away before the next run or a broker's start, which remove them"
_REMAINING = f"; the replaced segments remain as .deleted files: {_COPY_AWAY}"


class ErasedLog(NamedTuple):
    """A log of the run: its cleaner checkpoint when it was planned, and its error if it failed. ``resumed``: the run removed
    segments that a broker had replaced, or an earlier run, possibly killed before its certificate. ``refused``: the run does
    not erase from it."""

    location: LogLocation
    checkpoint: int | None = None
    error: str | None = None
    resumed: bool = False
    refused: bool = False


Errors = Mapping[LogLocation, str]


class Certification(NamedTuple):
    """The ``status`` of a certificate; ``errors``: the violations in logs that the run did not fail; ``notes``: the places
    where records of the keys remain. ``amend`` writes the certificate again with logs that failed since, and returns its
    status."""

    status: str
    errors: Errors
    notes: Sequence[str]
    amend: Callable[[Errors], str]


class Certified(NamedTuple):
    """The reports of the logs, the status of their certificate (``None`` without one), and its notes."""

    reports: list[LogReport]
    status: str | None = None
    notes: Sequence[str] = ()


Certify = Callable[[Sequence[ErasedLog]], Certification]


@dataclass(frozen=True)
class Certifier:
    """Certifies the run of ``request``; ``output`` is its destination if it is in place. ``failed`` are the logs that could not
    be planned, ``resumed`` as in ``ErasedLog``."""

    request: CompactionRequest
    certify: Certify
    output: Destination | None
    failed: Sequence[ErasedLog]
    resumed: frozenset[LogLocation]

    def judge(self, logs: Sequence[Log], reports: Sequence[LogReport]) -> Certified:
        """Makes the certificate, then removes the sources of an erasure in place; returns the reports."""
        step("certifying the result")
        certification = self._certify([*map(self._erased, logs), *self.failed])
        for log in logs:
            if log.location in certification.errors:
                log.error = certification.errors[log.location] + (_REMAINING if self.output is not None and log.groups else "")
        remaining_errors = self._remove(logs)
        status = certification.amend(remaining_errors) if remaining_errors else certification.status
        judged = [
            report if log.error is None else failed_report(log.location, log.error, log.plan)
            for log, report in zip(logs, reports, strict=True)
        ]
        return Certified(judged, status, certification.notes)

    def _erased(self, log: Log) -> ErasedLog:
        plan = log.compaction
        refused = plan.skip_cause is SkipCause.REFUSED
        return ErasedLog(log.location, plan.view.cleaner_checkpoint, log.error, log.location in self.resumed, refused)

    def _certify(self, run: Sequence[ErasedLog]) -> Certification:
        """Makes the certificate. If it cannot be made, all logs fail; if it holds, a copy is recorded as the call's finished
        output."""
        base = self.request
        try:
            certification = self.certify(run)
            if certification.status == HOLDS and base.output_dir is not None and base.call is not None:
                record_request(base.output_dir, base.call)
        except Exception as error:
            message = error.describe() if isinstance(error, CompactionError) else f"{type(error).__name__}: {error}"
            line = CompactionError(f"certificate: it could not be written ({message})").describe()
            return Certification(NOT_MADE, {log.location: line for log in run if log.error is None}, (), lambda _: NOT_MADE)
        return certification

    def _remove(self, logs: Sequence[Log]) -> Errors:
        """Removes the segments that certified results replaced; returns errors by log."""
        if self.output is None:
            return {}
        certified = [log for log in logs if log.error is None]
        for log in certified:
            run_alone(self.output.disk, remove_sources(self.output, log))
        return {log.location: log.error for log in certified if log.error is not None}


def remove_sources(output: Destination, log: Log) -> DurableSteps[None]:
    try:
        remove_deleted(output.disk, log.location.path)
        yield names_in(log.location.path)
    except Exception as error:
        log.error = str(as_log_error(error, log.location.path))
