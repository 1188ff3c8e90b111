"""The compaction job: prepare, clean in one round, swap, report. One log's failure never stops another."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from compaction.cleaning.plan import CompactionPlan, LogPlan, plan_logs
from compaction.cleaning.verdicts import Verdict
from compaction.errors import CompactionError, LogError
from compaction.names import CLEANER_OFFSETS
from compaction.report import LogReport, LogStatus, RunReport
from compaction.request import CompactionRequest
from compaction.spark.partition import Sizes
from compaction.spark.passes import Passes
from compaction.spark.pipeline import SparkPasses
from compaction.spark.round import Cleaned, Round, RoundOptions
from compaction.storage.checkpoint_store import update_checkpoint
from compaction.storage.discover import LogLocation
from compaction.storage.filesystem import FileSystem, LocalFileSystem
from compaction.storage.overlay import OverlayFileSystem
from compaction.storage.prepare import Prepared, locked, prepare
from compaction.storage.swap import discard_unfinished, remove_deleted, swap_in

_LOG = logging.getLogger(__name__)
#: a log of whose records a larger share has no key is refused: compaction would drop them
KEYLESS_SHARE = 0.01


class Workers(NamedTuple):
    """Who does the work: makes the passes for tasks that read about so many bytes, and how many tasks run at once."""

    passes: Callable[[int], Passes]
    cores: int


def compact(session_factory: Callable[[], SparkSession], request: CompactionRequest) -> RunReport:
    """Carry out ``request`` on Spark; the session is started only when there is something to clean.

    :raises UsageError: a log directory is locked, or the selectors match nothing
    """

    def start() -> Workers:
        sc = session_factory().sparkContext
        return Workers(lambda size: SparkPasses(sc, size), sc.defaultParallelism)

    return carry_out(start, request)


def carry_out(start: Callable[[], Workers], request: CompactionRequest, sizes: Sizes | None = None) -> RunReport:
    """Carry out ``request`` by whatever ``start`` starts; see ``compact`` and, for ``sizes``, ``RoundOptions``."""
    started = time.monotonic()
    in_place = not request.dry_run and request.output_dir is None
    fs: FileSystem = LocalFileSystem() if in_place else OverlayFileSystem(LocalFileSystem())
    with locked(request.log_dirs, write=in_place):
        prepared = prepare(fs, request)
        plan = plan_logs(request.as_of_ms, [found.plan for found in prepared if found.plan is not None])
        cleaned = _clean(start, fs, request, plan, sizes)
        reports = _finish_all(fs, request, plan, prepared, cleaned)
    failures = [_failure(found.location, str(found.error)) for found in prepared if found.error is not None]
    seconds = time.monotonic() - started
    return RunReport(uuid.uuid4().hex, request.as_of_ms, request.dry_run, tuple([*reports, *failures]), seconds)


def _clean(
    start: Callable[[], Workers], fs: FileSystem, request: CompactionRequest, plan: CompactionPlan, sizes: Sizes | None
) -> list[Cleaned]:
    """One round over all logs that want it."""
    if not plan.to_clean:
        return []
    options = RoundOptions(
        now_ms=request.as_of_ms,
        dry_run=request.dry_run,
        broker=request.resolver.broker(),
        directory_of=lambda each: each.view.path,
        refuse=_refusal(allow_keyless=request.allow_keyless),
        sizes=sizes,
    )
    workers = start()
    return Round(workers.passes, workers.cores, fs, plan.to_clean, options).run()


def _finish_all(
    fs: FileSystem,
    request: CompactionRequest,
    plan: CompactionPlan,
    prepared: Sequence[Prepared],
    cleaned: Sequence[Cleaned],
) -> list[LogReport]:
    """Swap in what was cleaned, and mend the checkpoints of what was not; the reports of all."""
    location_of = {found.location.path: found.location for found in prepared}
    reports = [_finish(fs, location_of[each.plan.view.path], each, request) for each in cleaned]
    for each in plan.logs:
        if each.verdict is Verdict.SKIP:
            reports.append(_skipped(each))
            if each.checkpoint_reset and not request.dry_run:
                view = each.view
                update_checkpoint(fs, view.log_dir, CLEANER_OFFSETS, {view.topic_partition: each.first_dirty_offset})
    return reports


def _refusal(*, allow_keyless: bool) -> Callable[[LogPlan, int, int], str | None]:
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


def _finish(fs: FileSystem, location: LogLocation, each: Cleaned, request: CompactionRequest) -> LogReport:
    """Swap a cleaned log in; its report."""
    started = time.monotonic()
    plan, error = each.plan, each.error
    if not request.dry_run:
        try:
            if error is None:
                swap_in(fs, location, each.groups, end_offset=plan.end_offset)
                if plan.config.file_delete_delay_ms == 0:
                    remove_deleted(fs, location.path)
            else:
                discard_unfinished(fs, location.path)
        except LogError as failed:
            error = str(failed)
    if error is not None:
        return _failure(location, error)
    stats = each.stats
    name = plan.view.topic_partition
    return LogReport(
        name.topic,
        name.partition,
        plan.view.log_dir,
        LogStatus.CLEANED,
        plan.reason,
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
        seconds=time.monotonic() - started,
    )


def _skipped(plan: LogPlan) -> LogReport:
    name = plan.view.topic_partition
    return LogReport(name.topic, name.partition, plan.view.log_dir, LogStatus.SKIPPED, plan.reason)


def _failure(location: LogLocation, error: str | CompactionError) -> LogReport:
    name = location.topic_partition
    return LogReport(name.topic, name.partition, location.log_dir, LogStatus.FAILED, str(error))
