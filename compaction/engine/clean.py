"""The compaction job: prepare, clean in one round, swap, report. One log's failure never stops another."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from compaction.cleaning.cleanup_policy import plan_policy
from compaction.cleaning.plan import CompactionPlan, LogPlan, plan_logs
from compaction.cleaning.segment_retention import DeletionPlan
from compaction.cleaning.skip_reasons import Verdict
from compaction.config import BrokerConfig
from compaction.config.request import CompactionRequest
from compaction.engine.busy import note_logs_in_use
from compaction.engine.concurrency import run_concurrently
from compaction.engine.destination import Destination, Planned, destination
from compaction.engine.free_space import SpaceBudget
from compaction.engine.prepare import ParallelRead, prepare
from compaction.engine.protocol import Passes
from compaction.engine.round import CleanResult, Round, RoundOptions
from compaction.engine.sizing import Sizes
from compaction.errors import CompactionError, of_log
from compaction.fs.filesystem import DiskFileSystem
from compaction.fs.uri import is_remote
from compaction.locking.access import Purpose, access
from compaction.locking.claim import PROCESSES, Runs
from compaction.logdir.discover import LogLocation
from compaction.report import LogReport, LogStatus, RunReport
from compaction.stores.mixed import MixedFileSystem, file_system

#: a log of whose records a larger share has no key is refused: compaction would drop them
KEYLESS_SHARE = 0.01


class Workers(NamedTuple):
    """Who does the work: makes the passes for work of given sizes, and how many tasks run at once."""

    passes: Callable[[Sizes], Passes]
    cores: int


def clean_logs(
    start: Callable[[], Workers],
    request: CompactionRequest,
    sizes: Sizes | None = None,
    parallel_read: ParallelRead | None = None,
    files: DiskFileSystem | None = None,
    runs: Runs = PROCESSES,
) -> RunReport:
    """Carry out ``request`` by whatever ``start`` starts, when there is something to clean; for ``sizes`` see ``RoundOptions``.

    :param look_ahead: reads logs when they are many
    :param files: how driver and tasks reach all files; chosen by the paths if not given
    :param runs: tells this run from others
    """
    started = time.monotonic()
    files = files or file_system(request.log_dirs)
    with (
        access(files, request.log_dirs, _purpose(request), runs) as held,
        destination(files, request.log_dirs, request.output_dir, held, dry_run=request.dry_run) as place,
    ):
        plan_for = partial(plan_policy, now_ms=request.as_of_ms, include_active=request.include_active)
        prepared = prepare(place.fs, request, plan_for, parallel_read, held)
        planned = {found.location.path: Planned(found.location, found.plan) for found in prepared if found.plan is not None}
        plan = plan_logs(request.as_of_ms, [each.plan.compaction for each in planned.values()])
        broker = smallest_broker(found.settings.broker for found in prepared if found.plan is not None)
        cleaned = _clean(start, place, request, plan, planned, RoundSettings(broker, sizes, files))
        works = [partial(_cleaned, place, planned[each.plan.view.path], each) for each in cleaned]
        skipped = (planned[each.view.path] for each in plan.logs if each.verdict is Verdict.SKIP)
        works += [partial(_skipped, place, log) for log in skipped]
        reports = note_logs_in_use(run_concurrently(works, place.at_once), held.in_use, (log.view for log in plan.logs))
    failures = [_failure(found.location, str(found.error)) for found in prepared if found.error is not None]
    seconds = time.monotonic() - started
    return RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, (*reports, *failures), seconds)


def _purpose(request: CompactionRequest) -> Purpose:
    if request.dry_run:
        return Purpose.READ
    return Purpose.CHANGE if request.output_dir is None else Purpose.COPY


class RoundSettings(NamedTuple):
    """What bounds a round; see ``RoundOptions``."""

    broker: BrokerConfig
    sizes: Sizes | None
    files: DiskFileSystem


def smallest_broker(brokers: Iterable[BrokerConfig]) -> BrokerConfig:
    """What bounds a round over directories of several brokers, each bound the tightest that any of them sets: the least memory
    for offset maps, the lowest load factor, the slowest throttle. None of them changes a result."""
    known = list(brokers) or [BrokerConfig()]
    return replace(
        known[0],
        dedupe_buffer_bytes=min(broker.dedupe_buffer_bytes for broker in known),
        load_factor=min(broker.load_factor for broker in known),
        io_max_bytes_per_second=min(broker.io_max_bytes_per_second for broker in known),
    )


def _clean(
    start: Callable[[], Workers],
    place: Destination,
    request: CompactionRequest,
    plan: CompactionPlan,
    planned: Mapping[str, Planned],
    settings: RoundSettings,
) -> list[CleanResult]:
    """One round over all logs that want it."""
    if not plan.to_clean:
        return []
    options = RoundOptions(
        now_ms=request.as_of_ms,
        dry_run=request.dry_run,
        broker=settings.broker,
        directory_of=lambda each: place.directory(planned[each.view.path].location),
        refuse=keyless_refusal(allow_keyless=request.allow_keyless),
        sizes=settings.sizes,
        room=_room(request, plan),
        files=settings.files if request.output_dir is None or not is_remote(request.output_dir) else MixedFileSystem(),
    )
    workers = start()
    return Round(workers.passes, workers.cores, place.fs, plan.to_clean, options).run()


def _room(request: CompactionRequest, plan: CompactionPlan) -> SpaceBudget | None:
    """The space that outputs may take. Another place takes copies of all that is not cleaned, too."""
    if request.dry_run:
        return None
    if request.output_dir is None:
        return SpaceBudget()
    if is_remote(request.output_dir):
        return None
    everything = sum(segment.size_bytes for log in plan.logs for segment in log.view.segments)
    cleaned = sum(segment.size_bytes for log in plan.to_clean for segment in log.segments)
    return SpaceBudget(everything - cleaned)


def keyless_refusal(*, allow_keyless: bool) -> Callable[[LogPlan, int, int], str | None]:
    """A function that refuses logs that would lose more than ``KEYLESS_SHARE`` of their records for want of a key."""

    def refuse(plan: LogPlan, messages: int, keyless: int) -> str | None:
        if allow_keyless or keyless <= KEYLESS_SHARE * messages:
            return None
        share = 100 * keyless / messages
        return (
            f"{plan.view.path}: {keyless} of {messages} records ({share:.1f} %) have no key and would be lost;"
            " if that is meant, run again with --allow-keyless"
        )

    return refuse


def _cleaned(place: Destination, log: Planned, each: CleanResult) -> LogReport:
    """Hand a cleaned log to its destination; its report. A log that failed stays as it was."""
    started = time.monotonic()
    error = each.error
    try:
        if error is None:
            place.cleaned(log, each.groups)
        else:
            place.failed(log)
    except Exception as failed:
        error = str(of_log(failed, log.location.path))
    if error is not None:
        return _failure(log.location, error)
    return replace(cleaned_report(each, log.plan.expiry), seconds=time.monotonic() - started)


def cleaned_report(each: CleanResult, expiry: DeletionPlan | None) -> LogReport:
    """The report of a log that was, or would be, cleaned."""
    plan, stats = each.plan, each.stats
    return replace(
        expired_report(plan, expiry),
        status=LogStatus.CLEANED,
        first_dirty_offset=plan.first_dirty_offset,
        end_offset=plan.end_offset,
        bytes_before=stats.bytes_read,
        bytes_after=stats.bytes_kept,
        records_before=stats.messages_read,
        records_after=stats.messages_kept,
        segments_before=len(plan.segments),
        segments_after=len(plan.groups),
        superseded_records=stats.superseded(each.invalid),
        tombstones_removed=stats.tombstones_removed,
        invalid_records=each.invalid,
        aborted_records=stats.aborted_records,
        markers_removed=stats.markers_removed,
        keys=each.keys,
    )


def expired_report(plan: LogPlan, expiry: DeletionPlan | None) -> LogReport:
    """The report of a log that is not compacted; what the delete policy takes is in it."""
    name, reason = plan.view.topic_partition, plan.reason
    unknown = plan.config.policy_guess is not None
    report = LogReport(name.topic, name.partition, plan.view.log_dir, LogStatus.SKIPPED, reason, policy_unknown=unknown)
    if expiry is None or not expiry.removals:
        return report
    return replace(
        report,
        reason=f"{expiry.reason}; then {reason}",
        expired_segments=len(expiry.removals),
        expired_bytes=expiry.removed_bytes,
    )


def _skipped(place: Destination, log: Planned) -> LogReport:
    """Hand a log that is not compacted to its destination; its report."""
    try:
        place.skipped(log)
    except Exception as failed:
        return _failure(log.location, of_log(failed, log.location.path))
    return expired_report(log.plan.compaction, log.plan.expiry)


def _failure(location: LogLocation, error: str | CompactionError) -> LogReport:
    name = location.topic_partition
    return LogReport(name.topic, name.partition, location.log_dir, LogStatus.FAILED, str(error))
