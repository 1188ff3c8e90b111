"""``erase``: one run that erases keys, with ``Eraser`` as its method.

The replaced segments do not remain: ``.deleted`` files are removed as soon as their log is swapped, and leftovers of earlier
runs when the log is prepared, also if it has no match.

Internal topics are refused unless the call names them: their keys are groups and transactions, whose state would be lost. The
metadata log is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import PolicyPlan
from compaction.cleaning.skip_reasons import SkipCause
from compaction.config.request import CompactionRequest
from compaction.erasure.certify_result import Certified, Certifier, Certify, ErasedLog, remove_sources
from compaction.erasure.eraser import Eraser
from compaction.erasure.erasure_report import erased_report, erasure_document, left_files, missing_document, notes_of
from compaction.erasure.erasure_rules import narrowed, plan_erasure
from compaction.erasure.find_matches import Erasure, FoundKeys
from compaction.formats.key_list import KeyPlaces
from compaction.locking.claim import PROCESSES, Runs
from compaction.logdir.settings.log_settings import Settings
from compaction.names import LogLocation
from compaction.output.finished import uncertified
from compaction.output.swap import has_replaced_segments
from compaction.report import LogReport
from compaction.run.cleaner import Cleaner
from compaction.run.command import Command
from compaction.run.destination import Destination
from compaction.run.log_cleaning import LogCleaning
from compaction.run.passes import Passes
from compaction.run.run import carry_out
from compaction.run.sizing import Sizes
from compaction.run_report import RunReport
from compaction.storage.durable import DurableSteps
from compaction.storage.filesystem import DiskFileSystem

_INTERNAL = "__"


@dataclass(frozen=True)
class ErasureRequest:
    """``base`` selects the logs, ``erasure`` the records to erase. ``internal``: the internal topics that the call names.
    ``certify`` is called with all logs, in place before the sources are removed; it writes the file ``certificate``.
    ``places``: the files and lines of the keys of ``erasure``. ``accepts_remaining``: records of the keys where the run does
    not erase are no failure of it."""

    base: CompactionRequest
    erasure: Erasure
    internal: frozenset[str] = frozenset()
    certify: Certify | None = None
    certificate: str | None = None
    places: KeyPlaces | None = None
    accepts_remaining: bool = False


def erase_keys(
    start: Callable[[], Passes],
    request: ErasureRequest,
    sizes: Sizes | None = None,
    files: DiskFileSystem | None = None,
    runs: Runs = PROCESSES,
    on_wave: Callable[[RunReport], None] = lambda report: None,
) -> RunReport:
    """Erases keys; see ``run.carry_out``."""
    base = request.base if request.certify is None else replace(uncertified(request.base), retain_replaced=True)
    recorded = replace(base, only_known_files=True)
    command = _KeyErasure(request)
    report = carry_out(command, start, recorded, sizes, files, runs, on_wave)
    return replace(report, erasure=command.document(report.logs))


class _KeyErasure(Command):
    doing = "looking for keys in"

    def __init__(self, request: ErasureRequest) -> None:
        self._request, self._base = request, request.base
        #: of each wave
        self._erasers: list[Eraser] = []
        #: logs in which an earlier run or a broker has replaced segments, which are removed when the log is prepared
        self._replaced: frozenset[LogLocation] = frozenset()
        self._resumed: list[LogLocation] = []
        self._certified: Certified | None = None

    @property
    def _in_place(self) -> bool:
        return self._base.output_dir is None and not self._base.dry_run

    def begin(self, files: DiskFileSystem) -> None:
        if self._in_place:
            self._replaced = frozenset(log for log in self._base.logs if has_replaced_segments(files, log.path))

    def plan(self, view: LogView, settings: Settings) -> PolicyPlan:
        # the policy has no effect; the sources of a log are removed after its certification
        delay_ms = max(1, settings.topic.file_delete_delay_ms)
        config = replace(settings.topic, policy_guess=None, file_delete_delay_ms=delay_ms)
        plan = plan_erasure(view, config, settings.kafka.rules, include_active=self._base.include_active)
        topic = view.topic_partition.topic
        if topic.startswith(_INTERNAL) and topic not in self._request.internal:
            cause, hint = SkipCause.REFUSED, f"give --topic {topic} to erase from it"
            reason = f"{cause.value}: an internal topic, its keys are groups or transactions; {hint}"
            plan = replace(narrowed(plan, frozenset(), reason), skip_cause=cause)
        return PolicyPlan(plan)

    def method(self, cleaner: Cleaner) -> Eraser:
        sizes, dry_run = cleaner.sizes, self._base.dry_run
        self._erasers.append(Eraser(self._request.erasure, cleaner.runner, sizes.slice_bytes, dry_run))
        return self._erasers[-1]

    def swapped(self, output: Destination, log: LogCleaning) -> DurableSteps[None]:
        if self._in_place and self._request.certify is None:
            yield from remove_sources(output, log)

    def report(self, log: LogCleaning) -> LogReport:
        # no other wave has the log
        counts = [eraser.counts(log.location) for eraser in self._erasers]
        return erased_report(log, sum(erased for erased, _ in counts), sum(remaining for _, remaining in counts))

    def conclude(
        self,
        output: Destination | None,
        logs: Sequence[LogCleaning],
        unplanned: Mapping[LogLocation, str],
        reports: list[LogReport],
    ) -> list[LogReport]:
        self._resumed = [log.location for log in logs if log.location in self._replaced]
        certify = self._request.certify
        if certify is None or self._base.dry_run:
            return reports
        failed = [ErasedLog(location, error=error) for location, error in unplanned.items()]
        self._certified = Certifier(self._base, certify, output, failed, self._replaced).judge(logs, reports)
        return self._certified.reports

    def document(self, reports: Sequence[LogReport]) -> dict[str, Any]:
        request, keys_of_waves = self._request, [eraser.all_keys() for eraser in self._erasers]
        erased, keys = (FoundKeys.joined(parts) for parts in (zip(*keys_of_waves, strict=True) if keys_of_waves else ((), ())))
        certified, files = self._certified or Certified([]), left_files(self._base)
        notes = [*notes_of(self._base, reports, files), *certified.notes]
        document = erasure_document(request.erasure, erased, self._resumed, notes)
        document |= missing_document(request.erasure, keys, request.places) | {"left_files": files}
        document["remaining_records"] = sum(log.remaining_records for log in reports)
        document["remaining_accepted"] = request.accepts_remaining
        if certified.status is not None:
            document["certificate"] = {"path": request.certificate, "status": certified.status}
        return document
