"""Step **report** of ``run.compact``: the report of one log that was cleaned, skipped, failed or only shortened by deletion.

Notes tell which logs in directories that a broker uses changed while a dry run read them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace

from compaction.cleaning.log_to_clean import SkipCause, Verdict
from compaction.cleaning.log_view import LogView, Segment
from compaction.cleaning.plan import PolicyPlan
from compaction.cleaning.segment_retention import DeletionPlan
from compaction.config import TopicConfig
from compaction.errors import CompactionError, PolicyUnknownError
from compaction.logdir.read_log import has_changed
from compaction.logdir.settings import KafkaVersion
from compaction.names import LOG, LogLocation
from compaction.output.swap import SwapGroup
from compaction.report import CHANGED, IN_USE, LogReport, LogStatus, VersionUsed
from compaction.run.log_cleaning import LogCleaning
from compaction.storage.filesystem import storage_of
from compaction.storage.local import LocalFileSystem

_LOG = logging.getLogger(__name__)
#: the reason code of a log whose ``cleanup.policy`` is a guess
POLICY_UNKNOWN = "policy_unknown"


def cleaned_report(plan: PolicyPlan, log: LogCleaning) -> LogReport:
    """A log that was, or would be, cleaned.

    :param plan: of ``log``, or of another policy with the same result
    """
    compaction, stats = plan.compaction, log.stats
    replaced = (segment for segment in compaction.segments if segment.base_offset not in log.unchanged)
    planned = skipped_report(plan)
    return replace(
        planned,
        status=LogStatus.CLEANED,
        reason_code="",
        compacted=True,
        disk_bytes_after=compaction.view.size_bytes - (stats.bytes_read - stats.bytes_kept),
        deleted_bytes=_deleted_bytes(plan, replaced),
        first_dirty_offset=compaction.first_dirty_offset,
        end_offset=compaction.first_uncleanable_offset,
        bytes_before=stats.bytes_read,
        bytes_after=stats.bytes_kept,
        records_before=stats.messages_read,
        records_after=stats.messages_kept,
        removed_records=stats.removed,
        stored_records_before=stats.messages_kept + stats.removed,
        stored_records_after=stats.messages_kept,
        segments_before=len(compaction.segments),
        segments_after=len(compaction.groups),
        superseded_records=stats.superseded(log.invalid),
        tombstones_removed=stats.tombstones_removed,
        invalid_records=log.invalid,
        aborted_records=stats.aborted_records,
        markers_removed=stats.markers_removed,
        keys=log.keys,
    )


def skipped_report(plan: PolicyPlan) -> LogReport:
    """A log that is not compacted; includes segments deleted by retention."""
    compaction, deletion = plan.compaction, plan.deletion
    name, unknown = compaction.view.topic_partition, compaction.config.policy_guess is not None
    cause = "" if compaction.skip_cause is None else compaction.skip_cause.value
    report = LogReport(
        name.topic,
        name.partition,
        compaction.view.log_dir,
        LogStatus.SKIPPED,
        compaction.reason,
        policy_unknown=unknown,
        reason_code=POLICY_UNKNOWN if unknown else cause,
        disk_bytes_before=(compaction.view if deletion is None else deletion.view).size_bytes,
        disk_bytes_after=compaction.view.size_bytes,
        settings=compaction.config.configured,
    )
    if deletion is None or not deletion.removals:
        return report
    return replace(
        report,
        reason=f"{deletion.reason}; then {compaction.reason}",
        expired_segments=len(deletion.removals),
        expired_bytes=deletion.removed_bytes,
        deleted_bytes=_deleted_bytes(plan),
    )


def replaced_bytes(log: LogCleaning) -> int:
    """The size of the files of the segments that a log that did not fail has lost, with their indexes; 0 in a store."""
    if not storage_of(log.location.log_dir).renames:
        return 0
    cleaned = log.compaction.segments if log.compaction.verdict is Verdict.CLEAN else ()
    return _file_bytes((*_expired(log.plan), *(segment for segment in cleaned if segment.base_offset not in log.unchanged)))


def _deleted_bytes(plan: PolicyPlan, replaced: Iterable[Segment] = ()) -> int:
    """The bytes that remain in ``.deleted`` files."""
    return _bytes_left((*_expired(plan), *replaced), plan.compaction.config, plan.compaction.view)


def _expired(plan: PolicyPlan) -> Iterable[Segment]:
    return (removal.segment for removal in plan.removals)


def _bytes_left(segments: Iterable[Segment], config: TopicConfig, view: LogView) -> int:
    """The size of the files that segments leave; 0 if they are removed at once, and in a store, where logs are only copied."""
    removed = config.file_delete_delay_ms == 0 or not storage_of(view.log_dir).renames
    return 0 if removed else _file_bytes(segments)


def _file_bytes(segments: Iterable[Segment]) -> int:
    return sum(segment.size_bytes + segment.index_bytes + segment.time_index_bytes for segment in segments)


def replaced_source_bytes(log: LogCleaning) -> int:
    """The bytes that the swap of ``groups`` leaves in ``.deleted`` files."""
    bases = {base for group in log.groups for base in group.source_base_offsets}
    # expired segments are deleted by the first swap
    plan = PolicyPlan(log.compaction) if log.swapped else log.plan
    return _deleted_bytes(plan, (source for source in log.sources if source.base_offset in bases))


def failed_report(
    location: LogLocation,
    error: str | CompactionError | None,
    plan: PolicyPlan | None = None,
    swapped: Iterable[SwapGroup] = (),
) -> LogReport:
    """A log that failed and was not changed, but for the portions of it that were swapped in.

    :param plan: if it failed after it was planned
    """
    name, unknown = location.topic_partition, isinstance(error, PolicyUnknownError)
    report = LogReport(
        name.topic,
        name.partition,
        location.log_dir,
        LogStatus.FAILED,
        str(error),
        policy_unknown=unknown,
        reason_code=POLICY_UNKNOWN if unknown else "error",
    )
    if plan is None:
        return report
    planned = skipped_report(plan)
    size_bytes, segments = planned.disk_bytes_before, {s.base_offset: s.size_bytes for s in plan.compaction.segments}
    freed_bytes = sum(
        sum(segments[base] for base in group.source_base_offsets)
        - sum(file.size for file in group.files if file.kind == LOG)
        for group in swapped
    )  # fmt: skip
    return replace(
        report, disk_bytes_before=size_bytes, disk_bytes_after=size_bytes - freed_bytes, settings=planned.settings
    )


def deferred_report(log: LogCleaning) -> LogReport:
    """A log that the budget leaves to the next run: neither cleaned nor shortened by the delete policy, but for the portions
    of it that were swapped in."""
    report = failed_report(log.location, log.deferred, log.plan, log.swapped)
    return replace(report, status=LogStatus.SKIPPED, reason_code=SkipCause.DEFERRED.value)


def deletion_report(plan: DeletionPlan) -> LogReport:
    """A log in a run of the delete policy: bytes and segments of the complete log, records are not counted."""
    name = plan.view.topic_partition
    code = plan.reason.partition(":")[0]
    report = LogReport(
        name.topic,
        name.partition,
        plan.view.log_dir,
        LogStatus.SKIPPED,
        plan.reason,
        reason_code=code if code.isalpha() else "retention",
        disk_bytes_before=plan.view.size_bytes,
        disk_bytes_after=plan.after.size_bytes,
        settings=plan.config.configured,
    )
    if plan.config.policy_guess is not None:
        return failed_report(LogLocation(name, plan.view.log_dir, plan.view.path), PolicyUnknownError(plan.reason))
    if not plan.removals:
        return report
    return replace(
        report,
        status=LogStatus.CLEANED,
        reason_code="",
        first_dirty_offset=plan.view.log_start_offset,
        end_offset=plan.new_log_start_offset,
        bytes_before=plan.view.size_bytes,
        bytes_after=plan.after.size_bytes,
        segments_before=len(plan.view.segments),
        segments_after=len(plan.after.segments),
        expired_segments=len(plan.removals),
        expired_bytes=plan.removed_bytes,
        deleted_bytes=_bytes_left((removal.segment for removal in plan.removals), plan.config, plan.view),
    )


def note_logs_in_use(reports: Iterable[LogReport], in_use: Collection[str], views: Iterable[LogView]) -> list[LogReport]:
    """The reports, with a note on each log in the directories ``in_use``."""
    by_name = {(*view.topic_partition, view.log_dir): view for view in views if view.log_dir in in_use}

    def noted(report: LogReport) -> LogReport:
        view = by_name.get((report.topic, report.partition, report.log_dir))
        if view is None:
            return report
        note = CHANGED if has_changed(LocalFileSystem(), view) else IN_USE
        return replace(report, reason=f"{report.reason} ({note})")

    return [noted(report) for report in reports] if in_use else list(reports)


def warn_of_changes(in_use: Collection[str], views: Iterable[LogView]) -> None:
    """Logs a warning for each log in the directories ``in_use`` that changed since it was read."""
    for path, view in {view.path: view for view in views if view.log_dir in in_use}.items():
        if has_changed(LocalFileSystem(), view):
            _LOG.warning("%s: %s", path, CHANGED)


def versions_used(logs: Iterable[KafkaVersion]) -> tuple[VersionUsed, ...]:
    """The Kafka versions whose rules applied to the logs, each with its source."""
    counts = Counter(logs)
    for kafka in counts:
        _LOG.info("%s: %s", kafka, kafka.rules)
    return tuple(VersionUsed(kafka.version, kafka.source, count, kafka.rules.described()) for kafka, count in counts.items())
