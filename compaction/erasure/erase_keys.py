"""One run that erases keys, from a request to its report: the steps of ``engine.clean``, with ``Eraser`` as the cleaner.

What the run replaces does not remain: ``.deleted`` files are removed as soon as their log is swapped, and leftovers of earlier
runs when the log is prepared, also if it has no match.

Internal topics are refused unless the call names them: their keys are groups and transactions, whose state would be lost. The
metadata log is never touched.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import PolicyPlan
from compaction.cleaning.skip_reasons import SkipCause, Verdict
from compaction.config.request import CompactionRequest
from compaction.engine.clean import cleaner_options, do_clean, finish_log, parallel_read
from compaction.engine.cleaner import CleanerOptions
from compaction.engine.concurrency import change_logs
from compaction.engine.destination import Destination, destination, purpose
from compaction.engine.log_cleaning import LogCleaning
from compaction.engine.log_reports import failed_report, note_logs_in_use, versions_used
from compaction.engine.prepare import Sources, prepare
from compaction.engine.protocol import Passes
from compaction.engine.sizing import Sizes
from compaction.erasure.certify_result import Certified, Certifier, Certify, ErasedLog, remove_sources
from compaction.erasure.eraser import Eraser
from compaction.erasure.erasure_report import erased_report, erasure_document, left_files, notes_of
from compaction.erasure.erasure_rules import narrowed, plan_erasure
from compaction.erasure.find_matches import Erasure, FoundKeys
from compaction.erasure.missing_keys import missing_keys
from compaction.formats.key_list import KeyPlaces
from compaction.fs.durable import Steps
from compaction.fs.filesystem import DiskFileSystem
from compaction.fs.uri import any_remote
from compaction.locking.access import access
from compaction.locking.claim import PROCESSES, Runs
from compaction.logdir.settings.log_settings import Settings
from compaction.names import LogLocation
from compaction.output.finished import uncertified
from compaction.output.swap import has_replaced_segments
from compaction.report import LogReport
from compaction.run_report import RunReport
from compaction.screen.amounts import counted
from compaction.screen.steps import step
from compaction.stores.mixed import file_system

_INTERNAL = "__"


@dataclass(frozen=True)
class ErasureRequest:
    """``base`` selects the logs; ``erasure`` says what is erased from them. ``internal``: the internal topics that the call
    names. ``certify`` is called with all logs, in place before the sources are removed; it writes the file ``certificate``.
    ``places``: where the keys of ``erasure`` were given."""

    base: CompactionRequest
    erasure: Erasure
    internal: frozenset[str] = frozenset()
    certify: Certify | None = None
    certificate: str | None = None
    places: KeyPlaces | None = None


def erase_keys(
    start: Callable[[], Passes],
    request: ErasureRequest,
    sizes: Sizes | None = None,
    files: DiskFileSystem | None = None,
    runs: Runs = PROCESSES,
) -> RunReport:
    """Executes ``request``.

    :param start: starts what runs the tasks
    :param sizes: see ``CleanerOptions``
    :param files: how driver and tasks access files; by default the file system of their paths
    :param runs: tells runs apart that claim the same directories
    :raises UsageError: a log directory is in use
    """
    started, base = time.monotonic(), request.base
    certify = None if base.dry_run else request.certify
    files = files or file_system(base.log_dirs)
    recorded = replace(base if request.certify is None else uncertified(base), only_known_files=True)
    with access(files, base.log_dirs, purpose(base), runs) as held, destination(files, recorded, held) as output:
        resumed = _resumed(files, base)
        prepared = prepare(Sources(output.fs, output.disk, held), base, partial(_plan, request), parallel_read(start))
        logs = [
            LogCleaning(log.location, log.plan, output.directory(log.location)) for log in prepared if log.plan is not None
        ]
        options = cleaner_options(base, logs, prepared, sizes, files)
        failed = [ErasedLog(log.location, error=str(log.error)) for log in prepared if log.error is not None]
        selected = [log for log in logs if log.compaction.verdict is Verdict.CLEAN]
        eraser = _erase(start, request.erasure, selected, output, options) if selected else None
        if eraser is not None and not base.dry_run:
            step("replacing segments" if base.output_dir is None else "publishing the copy")
        works = [(log.location.path, _finish(output, request, log, eraser)) for log in logs]
        reports = change_logs(output.disk, works, output.concurrency)
        certified = Certified(reports)
        if certify is not None and base.output_dir is None:
            certified = Certifier(base, certify, output, failed, resumed).judge(logs, reports)
        reports = note_logs_in_use(certified.reports, held.in_use, (log.compaction.view for log in logs))
    if certify is not None and base.output_dir is not None:
        certified = Certifier(base, certify, None, failed, resumed).judge(logs, reports)
        reports = certified.reports
    reports += [failed_report(log.location, log.error) for log in prepared if log.error is not None]
    resumed_here = [log.location for log in logs if log.location in resumed]
    return RunReport(
        uuid.uuid4().hex,
        base.as_of_ms,
        base.dry_run,
        tuple(reports),
        time.monotonic() - started,
        versions_used(log.settings.kafka for log in prepared if log.settings is not None),
        erasure=_document(request, eraser, certified._replace(reports=reports), resumed_here),
        copied=base.output_dir is not None or any_remote(base.log_dirs),
    )


def _document(
    request: ErasureRequest, eraser: Eraser | None, certified: Certified, resumed: Sequence[LogLocation]
) -> dict[str, Any]:
    """The ``erasure`` of the report."""
    base, nothing = request.base, FoundKeys.joined(())
    erased, found = (nothing, nothing) if eraser is None else eraser.found()
    left, missing = left_files(base), missing_keys(request.erasure, found, request.places)
    notes = [*notes_of(base, certified.reports, left), *certified.notes]
    document = erasure_document(request.erasure, erased, resumed, notes) | missing.document() | {"left_files": left}
    if certified.status is not None:
        document["certificate"] = {"path": request.certificate, "status": certified.status}
    return document


def _resumed(files: DiskFileSystem, request: CompactionRequest) -> frozenset[LogLocation]:
    """The logs in which an earlier run or a broker has replaced segments, which ``prepare`` removes."""
    if request.output_dir is not None or request.dry_run:
        return frozenset()
    return frozenset(log for log in request.logs if has_replaced_segments(files, log.path))


def _plan(request: ErasureRequest, view: LogView, settings: Settings) -> PolicyPlan:
    # the policy does not matter; the sources of a log are removed once it is certified
    config = replace(settings.topic, policy_guess=None, file_delete_delay_ms=max(1, settings.topic.file_delete_delay_ms))
    plan = plan_erasure(view, config, settings.kafka.rules, include_active=request.base.include_active)
    topic = view.topic_partition.topic
    if topic.startswith(_INTERNAL) and topic not in request.internal:
        cause = SkipCause.REFUSED
        reason = f"{cause.value}: an internal topic, its keys are groups or transactions; give --topic {topic} to erase from it"
        plan = replace(narrowed(plan, frozenset(), reason), skip_cause=cause)
    return PolicyPlan(plan)


def _erase(
    start: Callable[[], Passes],
    erasure: Erasure,
    logs: Sequence[LogCleaning],
    output: Destination,
    options: CleanerOptions,
) -> Eraser:
    passes = start()
    step(f"looking for keys in {counted(len(logs), 'log')}")
    eraser = Eraser(logs, output.fs, passes, options, erasure)
    do_clean(eraser)
    return eraser


def _finish(output: Destination, request: ErasureRequest, log: LogCleaning, eraser: Eraser | None) -> Steps[LogReport]:
    """Swaps in the result of a log, and removes what it replaces unless it is to be certified; its report."""
    started, in_place = time.monotonic(), request.base.output_dir is None and not request.base.dry_run
    yield from finish_log(output, log)
    if in_place and log.error is None and request.certify is None:
        yield from remove_sources(output, log)
    if log.error is not None:
        return failed_report(log.location, log.error, log.plan)
    records, remaining = (0, 0) if eraser is None else eraser.counts(log.location)
    return replace(erased_report(log, records, remaining), seconds=log.seconds + time.monotonic() - started)
