"""The end of a certified erasure: the result is certified first, then the replaced segments are removed.

The certificate must still hold when the run has ended: it is written again if a replaced segment cannot be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from compaction.certifier.certificate import Remains, Status, error_line
from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.erasure_certificate import certify_erasure, document, failed_log, status_of
from compaction.certifier.find_pairs import VerifyRequest, of_logs
from compaction.config.request import CompactionRequest
from compaction.engine import Engine
from compaction.erasure.find_matches import Erasure
from compaction.errors import CompactionError, as_log_error
from compaction.files.durable import DurableSteps, names_in, run_alone
from compaction.files.text_files import PRIVATE, remove_text, write_text
from compaction.names import LogLocation, TopicPartition
from compaction.output.finished import layout, record_request
from compaction.output.segment_files import remove_deleted
from compaction.report import LogReport
from compaction.rules.log_to_clean import SkipCause
from compaction.run.destination import Destination
from compaction.run.log import Log, failed_report
from compaction.screen.steps import step

NOT_MADE = "none"
_COPY_AWAY = "copy them away before the next run or a broker's start, which remove them"
_REMAINING = f"; the replaced segments remain as .deleted files: {_COPY_AWAY}"

Errors = Mapping[LogLocation, str]


class Certified(NamedTuple):
    """The reports of the logs, the status of their certificate (``None`` without one), and its notes: the places where records
    of the keys remain."""

    reports: list[LogReport]
    status: str | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Certifier:
    """Certifies the run of ``base`` and writes its certificate to the file ``path``; ``output`` is its destination if it is in
    place. ``unplanned``: the errors of logs that could not be planned. ``replaced``: logs in which the run removed segments
    that a broker had replaced, or an earlier run, possibly killed before its certificate."""

    start: Callable[[], Engine]
    base: CompactionRequest
    erasure: Erasure
    path: str
    output: Destination | None
    unplanned: Errors
    replaced: frozenset[LogLocation]
    #: what the certificate has: the objects of logs, and files elsewhere
    _objects: dict[LogLocation, Mapping[str, Any]] = field(default_factory=dict)
    _elsewhere: list[Remains] = field(default_factory=list)

    @property
    def _erased(self) -> ErasedKeys:
        return ErasedKeys(self.erasure.criteria, self.erasure.tombstones)

    def judge(self, logs: Sequence[Log], reports: Sequence[LogReport]) -> Certified:
        """Makes the certificate, then removes the sources of an erasure in place; returns the reports."""
        step("certifying the result")
        status, errors, notes = self._certify(logs)
        for log in logs:
            if log.location in errors:
                log.error = errors[log.location] + (_REMAINING if self.output is not None and log.groups else "")
        if remaining := self._remove(logs):
            status = self._write(remaining)
        judged = [
            report if log.error is None else failed_report(log.location, log.error, log.plan)
            for log, report in zip(logs, reports, strict=True)
        ]
        return Certified(judged, status, notes)

    def _certify(self, logs: Sequence[Log]) -> tuple[str, Errors, Sequence[str]]:
        """Makes the certificate; returns its status, the violations in logs that the run did not fail, and its notes. If it
        cannot be made, all logs fail; if it holds, a copy is recorded as the call's finished output."""
        base = self.base
        failed = {log.location: log.error for log in logs if log.error is not None} | dict(self.unplanned)
        errors: dict[LogLocation, str] = {}
        notes: list[str] = []
        try:
            # from now on the file is not that of an earlier run, even if this run fails
            remove_text(self.path)
            for request, locations in self._requests(logs, failed):
                certified = certify_erasure(self.start, request, self._erased)
                for log, fields in zip(certified.report.logs, certified.logs, strict=True):
                    location = locations[log.topic_partition]
                    self._objects[location] = {**fields, "resumed": location in self.replaced}
                    if log.status not in (Status.HOLDS, Status.INCOMPLETE):
                        errors[location] = f"certificate: {error_line(log)}"
                    if log.remaining:
                        notes.append(f"{log.name}: {log.left_text}")
                self._elsewhere.extend(certified.report.elsewhere)
                notes += (str(file) for file in certified.report.elsewhere if file.records)
            status = self._write(failed)
            if status == Status.HOLDS.value and base.output_dir is not None and base.call is not None:
                record_request(base.output_dir, base.call)
        except Exception as error:
            message = error.describe() if isinstance(error, CompactionError) else f"{type(error).__name__}: {error}"
            line = CompactionError(f"certificate: it could not be written ({message})").describe()
            return NOT_MADE, {log.location: line for log in logs if log.error is None}, ()
        return status, errors, notes

    def _write(self, failed: Errors) -> str:
        """Writes the certificate with the logs that failed since; returns its status."""
        self._objects.update({log: failed_log(log.topic_partition, error) for log, error in failed.items()})
        objects = list(self._objects.values())
        text = document(self.base, self._erased, self.erasure.salt, objects, self._elsewhere)
        write_text(self.path, text, PRIVATE)
        return status_of(objects, self._elsewhere).value

    def _requests(
        self, logs: Sequence[Log], failed: Errors
    ) -> Iterator[tuple[VerifyRequest, Mapping[TopicPartition, LogLocation]]]:
        """One request per log directory, with its logs."""
        base = self.base
        targets = {} if base.output_dir is None else layout(base.output_dir, base.log_dirs)
        for log_dir in base.log_dirs:
            plans = {
                log.location: log.compaction for log in logs if log.location.log_dir == log_dir and log.location not in failed
            }
            locations = {location.topic_partition: location for location in plans}
            failed_here = frozenset(location.topic_partition for location in failed if location.log_dir == log_dir)
            if not plans and not failed_here:
                continue
            request = of_logs(base, log_dir, frozenset(locations), targets.get(log_dir))
            cleaned_to = {location.topic_partition: plan.view.cleaner_checkpoint for location, plan in plans.items()}
            refused = {location for location, plan in plans.items() if plan.skip_cause is SkipCause.REFUSED}
            yield (
                replace(
                    request,
                    cleaned_to=cleaned_to,
                    refused=frozenset(location.topic_partition for location in refused),
                    failed=failed_here,
                    sources_remain=not targets,
                ),
                locations,
            )

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
