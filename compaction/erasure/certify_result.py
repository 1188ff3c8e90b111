"""The end of an erasure that is certified: the result is judged first, then what it replaced is removed.

What the certificate says must also hold once the run has ended: it is written again if a replaced segment cannot be removed.
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
from compaction.run.log_cleaning import LogCleaning
from compaction.run.log_reports import failed_report
from compaction.run_report import HOLDS
from compaction.screen.steps import step
from compaction.storage.durable import Steps, names_in, run_alone

NOT_MADE = "none"
_COPY_AWAY = "copy them away before the next run or a broker's start, which remove them"
_LEFT = f"; the replaced segments remain as .deleted files: {_COPY_AWAY}"


class ErasedLog(NamedTuple):
    """A log of the run: its cleaner checkpoint when it was planned, and why it failed, if it did. ``resumed``: the run removed
    segments that an earlier run, which may have been killed before its certificate, or a broker had replaced. ``refused``: the
    run does not erase from it."""

    location: LogLocation
    checkpoint: int | None = None
    error: str | None = None
    resumed: bool = False
    refused: bool = False


Errors = Mapping[LogLocation, str]


class Certification(NamedTuple):
    """The ``status`` of a certificate; ``errors``: why the result of a log that did not fail is not what it must be;
    ``notes``: where records of the keys remain. ``amend`` writes it again with logs that have failed since, and returns its
    status then."""

    status: str
    errors: Errors
    notes: Sequence[str]
    amend: Callable[[Errors], str]


class Certified(NamedTuple):
    """The reports of the logs, the status of their certificate, and its notes (``None``: there is none)."""

    reports: list[LogReport]
    status: str | None = None
    notes: Sequence[str] = ()


Certify = Callable[[Sequence[ErasedLog]], Certification]


@dataclass(frozen=True)
class Certifier:
    """Certifies the run of ``request``, whose result is at ``output`` if it is in place. ``failed`` are the logs that could not
    be planned, ``resumed`` as in ``ErasedLog``."""

    request: CompactionRequest
    certify: Certify
    output: Destination | None
    failed: Sequence[ErasedLog]
    resumed: frozenset[LogLocation]

    def judge(self, logs: Sequence[LogCleaning], reports: Sequence[LogReport]) -> Certified:
        """The reports after the certificate is made, and the sources of an erasure in place are removed."""
        step("certifying the result")
        made = self._certify([*map(self._erased, logs), *self.failed])
        for log in logs:
            if log.location in made.errors:
                log.error = made.errors[log.location] + (_LEFT if self.output is not None and log.groups else "")
        kept = self._remove(logs)
        status = made.amend(kept) if kept else made.status
        judged = [
            report if log.error is None else failed_report(log.location, log.error, log.plan)
            for log, report in zip(logs, reports, strict=True)
        ]
        return Certified(judged, status, made.notes)

    def _erased(self, log: LogCleaning) -> ErasedLog:
        plan = log.compaction
        refused = plan.skip_cause is SkipCause.REFUSED
        return ErasedLog(log.location, plan.view.cleaner_checkpoint, log.error, log.location in self.resumed, refused)

    def _certify(self, run: Sequence[ErasedLog]) -> Certification:
        """If the certificate cannot be made, all logs fail; if it holds, a copy is recorded as the call's finished output."""
        base = self.request
        try:
            made = self.certify(run)
            if made.status == HOLDS and base.output_dir is not None and base.call is not None:
                record_request(base.output_dir, base.call)
        except Exception as error:
            message = error.describe() if isinstance(error, CompactionError) else f"{type(error).__name__}: {error}"
            line = CompactionError(f"certificate: it could not be made ({message})").describe()
            return Certification(NOT_MADE, {log.location: line for log in run if log.error is None}, (), lambda _: NOT_MADE)
        return made

    def _remove(self, logs: Sequence[LogCleaning]) -> Errors:
        """Removes what a certified result replaced; why that failed."""
        if self.output is None:
            return {}
        certified = [log for log in logs if log.error is None]
        for log in certified:
            run_alone(self.output.disk, remove_sources(self.output, log))
        return {log.location: log.error for log in certified if log.error is not None}


def remove_sources(output: Destination, log: LogCleaning) -> Steps[None]:
    try:
        remove_deleted(output.disk, log.location.path)
        yield names_in(log.location.path)
    except Exception as error:
        log.error = str(as_log_error(error, log.location.path))
