"""The compaction job: prepare, clean in one round, swap, report. One log's failure never stops another."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from pyspark.sql import SparkSession

from compaction.cleaning.expiry import ExpiryPlan
from compaction.cleaning.model import LogView
from compaction.cleaning.plan import CompactionPlan, LogPlan, plan_logs
from compaction.cleaning.policy import PolicyPlan, plan_policy
from compaction.cleaning.verdicts import Verdict
from compaction.config import BrokerConfig
from compaction.errors import CompactionError, LogError
from compaction.names import CLEANER_OFFSETS
from compaction.report import LogReport, LogStatus, RunReport
from compaction.request import CompactionRequest
from compaction.spark.look_ahead import look_ahead_with
from compaction.spark.partition import Sizes
from compaction.spark.passes import Passes
from compaction.spark.pipeline import SparkPasses
from compaction.spark.round import Cleaned, Round, RoundOptions
from compaction.storage.checkpoint_store import update_checkpoint
from compaction.storage.discover import LogLocation
from compaction.storage.expire import carry_out_expiry
from compaction.storage.filesystem import FileSystem, LocalFileSystem
from compaction.storage.overlay import OverlayFileSystem
from compaction.storage.prepare import LookAhead, locked, prepare
from compaction.storage.swap import discard_unfinished, remove_deleted, swap_in

_LOG = logging.getLogger(__name__)
#: a log of whose records a larger share has no key is refused: compaction would drop them
KEYLESS_SHARE = 0.01


class Workers(NamedTuple):
    """Who does the work: makes the passes for work of given sizes, and how many tasks run at once."""

    passes: Callable[[Sizes], Passes]
    cores: int


def compact(session_factory: Callable[[], SparkSession], request: CompactionRequest) -> RunReport:
    """Carry out ``request`` on Spark; the session is started only when there is something to clean.

    :raises UsageError: a log directory is locked, or the selectors match nothing
    """

    def start() -> Workers:
        sc = session_factory().sparkContext
        return Workers(lambda sizes: SparkPasses(sc, sizes), sc.defaultParallelism)

    return carry_out(start, request, look_ahead=look_ahead_with(session_factory))


def carry_out(
    start: Callable[[], Workers],
    request: CompactionRequest,
    sizes: Sizes | None = None,
    look_ahead: LookAhead | None = None,
) -> RunReport:
    """Carry out ``request`` by whatever ``start`` starts; see ``compact`` and, for ``sizes``, ``RoundOptions``.

    :param look_ahead: reads logs where they are many
    """
    started = time.monotonic()
    in_place = not request.dry_run and request.output_dir is None
    fs: FileSystem = LocalFileSystem() if in_place else OverlayFileSystem(LocalFileSystem())
    with locked(request.log_dirs, write=in_place):
        plan_for = partial(plan_policy, now_ms=request.as_of_ms, include_active=request.include_active)
        prepared = prepare(fs, request, plan_for, look_ahead)
        planned = {found.location.path: Planned(found.location, found.plan) for found in prepared if found.plan is not None}
        plan = plan_logs(request.as_of_ms, [each.plan.compaction for each in planned.values()])
        broker = smallest_broker(found.settings.broker for found in prepared if found.plan is not None)
        cleaned = _clean(start, fs, request, plan, RoundSettings(broker, sizes))
        reports = _finish_all(fs, request, plan, planned, cleaned)
    failures = [_failure(found.location, str(found.error)) for found in prepared if found.error is not None]
    seconds = time.monotonic() - started
    return RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, (*reports, *failures), seconds)


class Planned(NamedTuple):
    """One log and what its policy does to it."""

    location: LogLocation
    plan: PolicyPlan


class RoundSettings(NamedTuple):
    """What bounds the memory of a round; see ``RoundOptions``."""

    broker: BrokerConfig
    sizes: Sizes | None


def smallest_broker(brokers: Iterable[BrokerConfig]) -> BrokerConfig:
    """Of the brokers whose directories take part, the one with the least memory for offset maps: it changes no result."""
    return min(brokers, key=lambda broker: broker.dedupe_buffer_bytes, default=BrokerConfig())


def _clean(
    start: Callable[[], Workers], fs: FileSystem, request: CompactionRequest, plan: CompactionPlan, settings: RoundSettings
) -> list[Cleaned]:
    """One round over all logs that want it."""
    if not plan.to_clean:
        return []
    options = RoundOptions(
        now_ms=request.as_of_ms,
        dry_run=request.dry_run,
        broker=settings.broker,
        directory_of=lambda each: each.view.path,
        refuse=keyless_refusal(allow_keyless=request.allow_keyless),
        sizes=settings.sizes,
    )
    workers = start()
    return Round(workers.passes, workers.cores, fs, plan.to_clean, options).run()


def _finish_all(
    fs: FileSystem,
    request: CompactionRequest,
    plan: CompactionPlan,
    planned: Mapping[str, Planned],
    cleaned: Sequence[Cleaned],
) -> list[LogReport]:
    """Delete what has expired, swap in what was cleaned, mend the checkpoints of what was not; the reports of all."""
    reports = [_finish(fs, planned[each.plan.view.path], each, request) for each in cleaned]
    skipped = [planned[each.view.path] for each in plan.logs if each.verdict is Verdict.SKIP]
    return [*reports, *(_skip(fs, each, request) for each in skipped)]


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


def _finish(fs: FileSystem, log: Planned, each: Cleaned, request: CompactionRequest) -> LogReport:
    """Delete what has expired of a cleaned log, then swap its outputs in; its report. A log that failed stays as it was."""
    started = time.monotonic()
    plan, error = each.plan, each.error
    if not request.dry_run:
        try:
            if error is None:
                _expire(fs, log)
                swap_in(fs, log.location, each.groups, end_offset=plan.end_offset)
                if plan.config.file_delete_delay_ms == 0:
                    remove_deleted(fs, log.location.path)
            else:
                discard_unfinished(fs, log.location.path)
        except LogError as failed:
            error = str(failed)
    if error is not None:
        return _failure(log.location, error)
    return replace(cleaned_report(each, log.plan.expiry), seconds=time.monotonic() - started)


def cleaned_report(each: Cleaned, expiry: ExpiryPlan | None) -> LogReport:
    """The report of a log that was, or would be, cleaned."""
    plan, stats = each.plan, each.stats
    return replace(
        expired_report(plan.view, plan.reason, expiry),
        status=LogStatus.CLEANED,
        first_dirty_offset=plan.first_dirty_offset,
        end_offset=plan.end_offset,
        bytes_before=stats.bytes_read,
        bytes_after=stats.bytes_kept,
        records_before=stats.messages_read,
        records_after=stats.messages_kept,
        segments_before=len(plan.segments),
        segments_after=len(plan.groups),
        tombstones_removed=stats.tombstones_removed,
        invalid_records=each.invalid,
        aborted_records=stats.aborted_records,
        markers_removed=stats.markers_removed,
        keys=each.keys,
    )


def expired_report(view: LogView, reason: str, expiry: ExpiryPlan | None) -> LogReport:
    """The report of a log that is not compacted; what the delete policy takes is in it."""
    name = view.topic_partition
    report = LogReport(name.topic, name.partition, view.log_dir, LogStatus.SKIPPED, reason)
    if expiry is None or not expiry.removals:
        return report
    return replace(
        report,
        reason=f"{expiry.reason}; then {reason}",
        expired_segments=len(expiry.removals),
        expired_bytes=expiry.removed_bytes,
    )


def _skip(fs: FileSystem, log: Planned, request: CompactionRequest) -> LogReport:
    """Delete what has expired of a log that is not compacted, and mend its checkpoint; its report."""
    plan = log.plan.compaction
    if not request.dry_run:
        try:
            _expire(fs, log)
            if plan.checkpoint_reset:
                view = plan.view
                update_checkpoint(fs, view.log_dir, CLEANER_OFFSETS, {view.topic_partition: plan.first_dirty_offset})
        except LogError as failed:
            return _failure(log.location, failed)
    return expired_report(plan.view, plan.reason, log.plan.expiry)


def _expire(fs: FileSystem, log: Planned) -> None:
    if log.plan.expiry is not None:
        carry_out_expiry(fs, log.location, log.plan.expiry)


def _failure(location: LogLocation, error: str | CompactionError) -> LogReport:
    name = location.topic_partition
    return LogReport(name.topic, name.partition, location.log_dir, LogStatus.FAILED, str(error))
