"""One log on its way through a run, from its plan to its report. Each step of a run sets some of the fields of ``Log``:

| step | sets |
| --- | --- |
| prepare | ``location``, ``settings``, ``view``, ``planned``, ``directory`` |
| build the offset map | ``slices``, ``aborted``, ``messages``, ``keyless``, ``txn_rows``, ``keyless_rows`` |
| resolve transactions | ``txn_index``, ``invalid``, ``context`` |
| clean into groups | ``parts``, ``stats``, ``keys``, ``groups``, ``unchanged`` |
| swap, or publish | ``report`` |

A step that fails sets ``error``; later steps skip the log, and none of its outputs is swapped in.

The report of a log says whether it was cleaned, skipped, failed or only shortened by deletion. Notes tell which logs in
directories that a broker uses changed while a dry run read them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CompactionError, PolicyUnknownError
from compaction.files.filesystem import storage_of
from compaction.files.local import LocalFileSystem
from compaction.log.read_log import has_changed
from compaction.log.settings import KafkaVersion, Settings
from compaction.names import LOG, LogLocation
from compaction.output.swap import SwapGroup
from compaction.passes.tasks import CleanContext, CleanStats, OutputPart, Slice
from compaction.report import CHANGED, IN_USE, LogReport, LogStatus, VersionUsed
from compaction.rules.log_to_clean import SkipCause, Verdict
from compaction.rules.log_view import AbortedTxn, LogView, Segment
from compaction.rules.plan import LogPlan, PolicyPlan
from compaction.rules.segment_retention import DeletionPlan, Removal
from compaction.rules.transactions import KEYLESS_ROW, TXN_ROW, AbortedRanges

_LOG = logging.getLogger(__name__)
#: the reason code of a log whose ``cleanup.policy`` is a guess
POLICY_UNKNOWN = "policy_unknown"
_NO_TXNS, _NONE_KEYLESS = np.empty(0, TXN_ROW), np.empty(0, KEYLESS_ROW)


@dataclass(eq=False, slots=True)
class Log:
    """See the module's table.

    :ivar view: the log as it was read, ``None`` after an error
    :ivar planned: its plan, ``None`` after an error
    :ivar cause: the error that it failed with before it had a plan
    :ivar directory: where tasks write the outputs
    :ivar number: identifies the log in slices, tasks and shuffles of the run
    :ivar messages, keyless: numbers of its records, and of those without a key
    :ivar txn_rows, keyless_rows: tables of ``TXN_ROW`` and ``KEYLESS_ROW``, in the order of offsets
    :ivar txn_index: aborted transactions of each group's output
    :ivar invalid: number of records dropped because they have no key
    :ivar expired_records: number of records of the segments that the delete policy deletes; ``None`` if not counted
    :ivar seconds: time of the tasks that read and wrote the log, summed over the tasks
    :ivar groups: outputs to be swapped in; in a dry run they have no files
    :ivar swapped: outputs that are in place, of a log that is cleaned in portions
    :ivar unchanged: base offsets of the segments that stay, since their output would be the same
    :ivar deferred: why it is left to the next run
    :ivar error: one line
    :ivar report: once its result is in place
    """

    location: LogLocation
    settings: Settings | None = None
    view: LogView | None = None
    planned: PolicyPlan | None = None
    cause: CompactionError | None = None
    directory: str = ""
    number: int = 0
    slices: Sequence[Slice] = ()
    aborted: AbortedRanges | None = None
    messages: int = 0
    keyless: int = 0
    txn_rows: NDArray[np.void] = field(default_factory=lambda: _NO_TXNS)
    keyless_rows: NDArray[np.void] = field(default_factory=lambda: _NONE_KEYLESS)
    txn_index: tuple[tuple[AbortedTxn, ...], ...] = ()
    context: CleanContext | None = None
    parts: Sequence[OutputPart] = ()
    stats: CleanStats = CleanStats()
    keys: int = 0
    invalid: int = 0
    expired_records: int | None = None
    seconds: float = 0.0
    groups: tuple[SwapGroup, ...] = ()
    swapped: tuple[SwapGroup, ...] = ()
    unchanged: frozenset[int] = frozenset()
    deferred: str | None = None
    error: str | None = None
    report: LogReport | None = None

    @property
    def plan(self) -> PolicyPlan:
        """The plan of a log that has one."""
        if self.planned is None:
            raise TypeError(f"{self.location} has no plan")
        return self.planned

    @property
    def is_planned(self) -> bool:
        return self.planned is not None

    @property
    def compaction(self) -> LogPlan:
        return self.plan.compaction

    @property
    def before(self) -> LogView:
        """The log before the run, as it was planned."""
        return self.plan.compaction.view if self.plan.deletion is None else self.plan.deletion.view

    @property
    def cleans(self) -> bool:
        """Whether the passes clean it."""
        return self.compaction.verdict is Verdict.CLEAN and self.deferred is None

    @property
    def is_done(self) -> bool:
        """Whether it has neither failed nor was deferred."""
        return self.error is None and self.deferred is None

    @property
    def sources(self) -> list[Segment]:
        """The segments to be cleaned that are not replaced yet."""
        replaced = {base for group in self.swapped for base in group.source_base_offsets}
        return [segment for segment in self.compaction.segments if segment.base_offset not in replaced]

    def fail(self, error: CompactionError) -> Log:
        """The log after an error that leaves it without a plan."""
        self.error, self.cause, self.planned = str(error), error, None
        return self

    def release(self) -> None:
        """Releases what only the passes need."""
        self.slices, self.parts, self.txn_index, self.aborted, self.context = (), (), (), None, None
        self.txn_rows, self.keyless_rows = _NO_TXNS, _NONE_KEYLESS


def cleaned_report(plan: PolicyPlan, log: Log) -> LogReport:
    """A log that was, or would be, cleaned.

    :param plan: of ``log``, or of another policy with the same result
    """
    compaction, stats = plan.compaction, log.stats
    replaced = (segment for segment in compaction.segments if segment.base_offset not in log.unchanged)
    return replace(
        skipped_report(plan),
        status=LogStatus.CLEANED,
        reason_code="",
        compacted=True,
        disk_bytes_after=compaction.view.size_bytes - (stats.bytes_read - stats.bytes_kept),
        deleted_bytes=_deleted_bytes(compaction, plan.removals, replaced),
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
    view, unknown = compaction.view, compaction.config.policy_guess is not None
    cause = "" if compaction.skip_cause is None else compaction.skip_cause.value
    report = LogReport(
        *view.topic_partition,
        view.log_dir,
        LogStatus.SKIPPED,
        compaction.reason,
        policy_unknown=unknown,
        reason_code=POLICY_UNKNOWN if unknown else cause,
        disk_bytes_before=(view if deletion is None else deletion.view).size_bytes,
        disk_bytes_after=view.size_bytes,
        settings=compaction.config.configured,
    )
    if deletion is None or not deletion.removals:
        return report
    return replace(
        report,
        reason=f"{deletion.reason}; then {compaction.reason}",
        expired_segments=len(deletion.removals),
        expired_bytes=deletion.removed_bytes,
        deleted_bytes=_deleted_bytes(compaction, deletion.removals),
    )


def replaced_bytes(log: Log) -> int:
    """The size of the files of the segments that a log that did not fail has lost, with their indexes; 0 in a store."""
    if not storage_of(log.location.log_dir).renames:
        return 0
    cleaned = log.compaction.segments if log.compaction.verdict is Verdict.CLEAN else ()
    replaced = (segment.files_bytes for segment in cleaned if segment.base_offset not in log.unchanged)
    return sum(removal.segment.files_bytes for removal in log.plan.removals) + sum(replaced)


def _deleted_bytes(plan: LogPlan | DeletionPlan, removals: Iterable[Removal], replaced: Iterable[Segment] = ()) -> int:
    """The bytes that remain in ``.deleted`` files: none if they are removed at once, and in a store, which gets only copies."""
    if plan.config.file_delete_delay_ms == 0 or not storage_of(plan.view.log_dir).renames:
        return 0
    return sum(segment.files_bytes for segment in (*(removal.segment for removal in removals), *replaced))


def replaced_source_bytes(log: Log) -> int:
    """The bytes that the swap of ``groups`` leaves in ``.deleted`` files."""
    bases = {base for group in log.groups for base in group.source_base_offsets}
    # expired segments are deleted by the first swap
    removals = () if log.swapped else log.plan.removals
    return _deleted_bytes(log.compaction, removals, (source for source in log.sources if source.base_offset in bases))


def failed_report(
    location: LogLocation,
    error: str | CompactionError | None,
    plan: PolicyPlan | None = None,
    swapped: Iterable[SwapGroup] = (),
) -> LogReport:
    """A log that failed and was not changed, but for the portions of it that were swapped in.

    :param plan: if it failed after it was planned
    """
    unknown = isinstance(error, PolicyUnknownError)
    report = LogReport(
        *location.topic_partition,
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
    return replace(report, disk_bytes_before=size_bytes, disk_bytes_after=size_bytes - freed_bytes, settings=planned.settings)


def deferred_report(log: Log) -> LogReport:
    """A log that the budget leaves to the next run: neither cleaned nor shortened by the delete policy, but for the portions
    of it that were swapped in."""
    report = failed_report(log.location, log.deferred, log.plan, log.swapped)
    return replace(report, status=LogStatus.SKIPPED, reason_code=SkipCause.DEFERRED.value)


def deletion_report(plan: DeletionPlan) -> LogReport:
    """A log in a run of the delete policy: bytes and segments of the complete log, records are not counted."""
    name, code = plan.view.topic_partition, plan.reason.partition(":")[0]
    if plan.config.policy_guess is not None:
        return failed_report(LogLocation(name, plan.view.log_dir, plan.view.path), PolicyUnknownError(plan.reason))
    report = LogReport(
        *name,
        plan.view.log_dir,
        LogStatus.SKIPPED,
        plan.reason,
        reason_code=code if code.isalpha() else "retention",
        disk_bytes_before=plan.view.size_bytes,
        disk_bytes_after=plan.after.size_bytes,
        settings=plan.config.configured,
    )
    if not plan.removals:
        return report
    return replace(
        report,
        status=LogStatus.CLEANED,
        reason_code="",
        first_dirty_offset=plan.view.log_start_offset,
        end_offset=plan.after.log_start_offset,
        bytes_before=plan.view.size_bytes,
        bytes_after=plan.after.size_bytes,
        segments_before=len(plan.view.segments),
        segments_after=len(plan.after.segments),
        expired_segments=len(plan.removals),
        expired_bytes=plan.removed_bytes,
        deleted_bytes=_deleted_bytes(plan, plan.removals),
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
