"""The end of a certified erasure: the result is certified first, then the replaced segments are removed.

The certificate must still hold when the run has ended: it is written again if a replaced segment cannot be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
from compaction.rules.log_to_clean import SkipCause
from compaction.run.destination import Destination
from compaction.run.log import Log
from compaction.screen.steps import step

NOT_MADE = "none"
_COPY_AWAY = "copy them away before the next run or a broker's start, which remove them"
_REMAINING = f"; the replaced segments remain as .deleted files: {_COPY_AWAY}"


@dataclass
class Certifier:
    """Certifies the run of ``base`` and writes its certificate to the file ``path``; ``output`` is its destination if it is in
    place. ``replaced``: logs in which the run removed segments that a broker had replaced, or an earlier run, possibly killed
    before its certificate.

    :ivar status: that of the certificate
    :ivar notes: the places where records of the keys remain
    """

    start: Callable[[], Engine]
    base: CompactionRequest
    erasure: Erasure
    path: str
    output: Destination | None
    replaced: frozenset[LogLocation]
    status: str = NOT_MADE
    notes: list[str] = field(default_factory=list)
    #: what the certificate has: the objects of logs, and files elsewhere
    _objects: dict[LogLocation, Mapping[str, Any]] = field(default_factory=dict)
    _elsewhere: list[Remains] = field(default_factory=list)

    def certify(self, logs: Sequence[Log], unplanned: Mapping[LogLocation, str]) -> None:
        """Makes the certificate, then removes the sources of an erasure in place. A log that is not certified fails; if the
        certificate cannot be made, all do.

        :param unplanned: the errors of the logs that could not be planned
        """
        step("certifying the result")
        done = [log for log in logs if log.error is None]
        failed = {log.location: log.error for log in logs if log.error is not None} | dict(unplanned)
        try:
            self._make(done, failed)
        except Exception as error:
            message = error.describe() if isinstance(error, CompactionError) else f"{type(error).__name__}: {error}"
            self.status, self.notes = NOT_MADE, []
            for log in done:
                log.error = CompactionError(f"certificate: it could not be written ({message})").describe()
        if self.output is not None:
            self._remove_sources(self.output, done)

    def _make(self, done: Sequence[Log], failed: Mapping[LogLocation, str]) -> None:
        """Makes the certificate. If it holds, a copy is recorded as the call's finished output."""
        base, erased = self.base, self._erased
        # from now on the file is not that of an earlier run, even if this run fails
        remove_text(self.path)
        for request, logs in self._requests(done, failed):
            certified = certify_erasure(self.start, request, erased)
            for result, fields in zip(certified.report.logs, certified.logs, strict=True):
                log = logs[result.topic_partition]
                self._objects[log.location] = {**fields, "resumed": log.location in self.replaced}
                if result.status not in (Status.HOLDS, Status.INCOMPLETE):
                    log.error = f"certificate: {error_line(result)}"
                if result.remaining:
                    self.notes.append(f"{result.name}: {result.left_text}")
            self._elsewhere.extend(certified.report.elsewhere)
            self.notes += (str(file) for file in certified.report.elsewhere if file.records)
        self._write(failed)
        if self.status == Status.HOLDS.value and base.output_dir is not None and base.call is not None:
            record_request(base.output_dir, base.call)

    @property
    def _erased(self) -> ErasedKeys:
        return ErasedKeys(self.erasure.criteria, self.erasure.tombstones)

    def _write(self, failed: Mapping[LogLocation, str]) -> None:
        """Writes the certificate with the logs that failed since."""
        self._objects.update({log: failed_log(log.topic_partition, error) for log, error in failed.items()})
        objects = list(self._objects.values())
        text = document(self.base, self._erased, self.erasure.salt, objects, self._elsewhere)
        write_text(self.path, text, PRIVATE)
        self.status = status_of(objects, self._elsewhere).value

    def _requests(
        self, done: Sequence[Log], failed: Mapping[LogLocation, str]
    ) -> Iterator[tuple[VerifyRequest, Mapping[TopicPartition, Log]]]:
        """One request per log directory, with its logs."""
        base = self.base
        targets = {} if base.output_dir is None else layout(base.output_dir, base.log_dirs)
        for log_dir in base.log_dirs:
            logs = {log.location.topic_partition: log for log in done if log.location.log_dir == log_dir}
            failed_here = frozenset(location.topic_partition for location in failed if location.log_dir == log_dir)
            if logs or failed_here:
                request = replace(
                    of_logs(base, log_dir, frozenset(logs), targets.get(log_dir)),
                    cleaned_to={name: log.compaction.view.cleaner_checkpoint for name, log in logs.items()},
                    refused=frozenset(name for name, log in logs.items() if log.compaction.skip_cause is SkipCause.REFUSED),
                    failed=failed_here,
                    sources_remain=not targets,
                )
                yield request, logs

    def _remove_sources(self, output: Destination, done: Sequence[Log]) -> None:
        """Removes the segments that certified results replaced."""
        for log in done:
            if log.error is not None and log.groups:
                log.error += _REMAINING
        certified = [log for log in done if log.error is None]
        for log in certified:
            run_alone(output.disk, remove_sources(output, log))
        failed = {log.location: log.error for log in certified if log.error is not None}
        if failed:
            self._write(failed)


def remove_sources(output: Destination, log: Log) -> DurableSteps[None]:
    try:
        remove_deleted(output.disk, log.location.path)
        yield names_in(log.location.path)
    except Exception as error:
        log.error = str(as_log_error(error, log.location.path))
