"""``erase``: one run that erases keys.

The replaced segments do not remain: ``.deleted`` files are removed as soon as their log is swapped, and leftovers of earlier
runs when the log is prepared, also if it has no match.

Internal topics are refused unless the call names them: their keys are groups and transactions, whose state would be lost. The
metadata log is never touched.

The method of an erasure: **find the matches**, then **clean** the segments that have some.

Each segment is a group: its output has its base offset, and other segments are not written. Nothing is shuffled: pass 1 returns
the offsets of matches to the driver, compressed, and pass 2 gets those of its parts.

The rules by which records and batches survive; this is the normative statement:

Rule: a record is erased iff its key is selected (``compaction.formats.keys``), anywhere in the erased segments:
clean or dirty, committed, aborted or of an open transaction, below the log start or at the log end. No other rule of record
retention applies: superseded records, tombstones, aborted data, markers and records without a key are retained, and no batch
gets or loses a delete horizon.

1. *Untouched segments.* A segment without such a record is not written.
2. *Untouched batches.* A batch without such a record is copied byte for byte, also one of magic 0 or 1, or without records.
3. *Other batches.* A batch that loses some records is written as Kafka's cleaner writes it: offsets, producer, sequence, codec
   and timestamps are retained. One of magic 0 or 1 becomes v2, or keeps its magic up to Kafka 3.9. Header names that are not
   UTF-8 are retained, too; Kafka's cleaner replaces them.
4. *Emptied batches.* A batch that loses all records becomes an empty batch (header only, count 0) if it is the last one of an
   active producer, the first one of an open transaction, or if the erased segments end with it; otherwise it is dropped. So the
   producers' sequences, the last stable offset and the log end remain. One of magic 0 or 1 becomes a v2 batch then.
5. *Transaction indexes* keep their entries, as the markers remain.
6. With ``tombstones`` no record is dropped: each loses its value and its headers, which may hold parts of the value. It keeps
   key, offset and timestamp. Batches of magic 0 and 1 become v2. A record without value and headers is unchanged.
7. The *cleaner checkpoint* is not moved: dirty records stay dirty, and later rounds clean them.

Rule 4 is that of ``Cleaner.cleanInto`` and ``MemoryRecords.filterTo``, except for open transactions, which Kafka's cleaner does
not reach, and for the end of the segments, which it retains since 3.9.2 (KAFKA-17076).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from compaction.certifier.certificate import Remains, Status, error_line
from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.erasure_certificate import certify_erasure, document, failed_log, status_of
from compaction.certifier.find_pairs import VerifyRequest, of_logs
from compaction.config.request import CompactionRequest
from compaction.config.resolver import TopicConfig
from compaction.engine import Engine, Job, pack, size_of
from compaction.erasure.erasure_report import erased_report, erasure_document, left_files, missing_document, notes_of
from compaction.erasure.find_matches import Erasure, FoundKeys, SliceMatches, match_slices, matchers, unpacked
from compaction.errors import CompactionError, CorruptLogError, as_log_error
from compaction.files.durable import DurableSteps, names_in, run_alone
from compaction.files.filesystem import DiskFileSystem
from compaction.files.text_files import PRIVATE, remove_text, write_text
from compaction.formats.keys import KeyPlaces
from compaction.kernels import tables
from compaction.log.settings import Settings
from compaction.names import LogLocation, TopicPartition
from compaction.output.finished import layout, record_request, uncertified
from compaction.output.segment_files import remove_deleted
from compaction.output.swap import has_replaced_segments
from compaction.passes.clean_into import clean_parts
from compaction.passes.merge import CleanedParts
from compaction.passes.tasks import CleanContext, OutputPart, PartResult, SliceId
from compaction.report import ErasureDocument, LogReport, LogStatus, RunReport
from compaction.rules.kafka_rules import KafkaRules, OldFormat, Retention
from compaction.rules.log_to_clean import SkipCause, Verdict
from compaction.rules.log_view import LogView
from compaction.rules.plan import Group, LogPlan, PolicyPlan
from compaction.rules.record_retention import ActiveProducers, RoundRules
from compaction.rules.transactions import AbortedRanges, Int64s, Rows
from compaction.run.cleaner import Cleaner
from compaction.run.destination import Destination
from compaction.run.log import Log, failed_report
from compaction.run.offset_maps import pass_2
from compaction.run.run import Command, Run
from compaction.run.sizing import Sizes
from compaction.screen.amounts import counted
from compaction.screen.steps import step

_INTERNAL = "__"
NOT_MADE = "none"
_COPY_AWAY = "copy them away before the next run or a broker's start, which remove them"
_REMAINING = f"; the replaced segments remain as .deleted files: {_COPY_AWAY}"
#: before the modification time of any segment
_NO_HORIZON_MS = -(2**62)
#: no batch gets a delete horizon
_NO_TIME_MS = -1


@dataclass(frozen=True)
class ErasureRequest:
    """``base`` selects the logs, ``erasure`` the records to erase. ``internal``: the internal topics that the call names.
    ``certificate``: the file for the certificate of all logs, made in place before the sources are removed. ``places``: the
    files and lines of the keys of ``erasure``. ``accepts_remaining``: records of the keys where the run does not erase are no
    failure of it."""

    base: CompactionRequest
    erasure: Erasure
    internal: frozenset[str] = frozenset()
    certificate: str | None = None
    places: KeyPlaces | None = None
    accepts_remaining: bool = False


def erase_keys(
    start: Callable[[], Engine],
    request: ErasureRequest,
    files: DiskFileSystem | None = None,
    sizes: Sizes | None = None,
    on_wave: Callable[[RunReport], None] = lambda report: None,
) -> RunReport:
    """Erases keys; see ``Run``."""
    base = request.base if request.certificate is None else replace(uncertified(request.base), retain_replaced=True)
    recorded = replace(base, only_known_files=True)
    command = _KeyErasure(request, start)
    report = Run(command, start, recorded, files, sizes, on_wave).run()
    return replace(report, erasure=command.document(report.logs))


class _KeyErasure(Command):
    """The command, and the method of each wave: pass 1 narrows the plans to segments with matches."""

    doing = "looking for keys in"
    #: of the wave
    _cleaner: Cleaner

    def __init__(self, request: ErasureRequest, start: Callable[[], Engine]) -> None:
        self._request, self._base, self._erasure, self._start = request, request.base, request.erasure, start
        #: of each log the erased keys, and those in its last segment, from which nothing is erased
        self._found: dict[LogLocation, tuple[FoundKeys, FoundKeys]] = {}
        #: of the wave: compressed survivor entries by slice, if it has matches, and the number of distinct keys by log
        self._matches: dict[SliceId, list[bytes]] = {}
        self._key_counts: dict[int, int] = {}
        #: logs in which an earlier run or a broker has replaced segments, which are removed when the log is prepared
        self._replaced: frozenset[LogLocation] = frozenset()
        self._resumed: list[LogLocation] = []
        self._certifier: _Certifier | None = None

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

    def method(self, cleaner: Cleaner) -> _KeyErasure:
        self._cleaner, self._matches, self._key_counts = cleaner, {}, {}
        return self

    def scan(self, cleaner: Cleaner) -> None:
        """Pass 1: finds the matches, checks all batches, and narrows the plans."""
        slices = [part for log in cleaner.unfailed for part in log.slices]
        settings = cleaner.limits.map_settings(cleaner.runner.cores)
        matches_of: dict[int, list[SliceMatches]] = {log.number: [] for log in cleaner.unfailed}
        tasks = pack(slices, size_of, cleaner.sizes.slice_bytes)
        job = Job.reading("pass 1", f"pass 1: look for keys in {len(slices)} slices", tasks)
        for number, matcher in enumerate(matchers(self._erasure, settings) if slices else ()):
            results = cleaner.runner.run(job, tasks, partial(match_slices, settings=settings, matcher=matcher))
            matches = [slice_matches for of_task in results for slice_matches in of_task]
            if not number:
                cleaner.add_up(cleaner.unfailed, [slice_matches.summary for slice_matches in matches])
            for slice_matches in matches:
                matches_of[slice_matches.summary.log].append(slice_matches)
        cleaner.each(lambda log: self._narrow(log, matches_of[log.number]))

    def _narrow(self, log: Log, matches: Sequence[SliceMatches]) -> None:
        """Narrows the plan to the segments with matches below the end offset.

        :raises CorruptLogError: reads of a segment, one for each shard, differ
        """
        slices = {part.id: part for part in log.slices}
        bases = [segment.base_offset for segment in log.compaction.view.segments]
        matched, erased, remaining = set(), [], []
        for slice_matches in matches:
            part = slices[slice_matches.summary.slice_id or SliceId(-1, -1, -1)]
            error = slice_matches.summary.error
            if error is not None or slice_matches.summary.fingerprint != part.fingerprint:
                message = error or "repeated reads of the segment differ"
                raise CorruptLogError(message, path=part.path, position=part.start, hint="nothing was changed: check the disk")
            base = bases[part.segment_index]
            if base >= log.compaction.first_uncleanable_offset:
                remaining.append(slice_matches.keys)
                continue
            erased.append(slice_matches.keys)
            if slice_matches.keys.total:
                matched.add(base)
                self._matches.setdefault(part.id, []).append(slice_matches.packed)
        keys, left = self._found[log.location] = FoundKeys.joined(erased), FoundKeys.joined(remaining)
        log.keys = self._key_counts[log.number] = len(keys.hashes)
        plan = narrowed(log.compaction, frozenset(matched), self._reason(log, len(matched), keys.total, left.total))
        log.planned = replace(log.plan, compaction=plan)
        log.slices = [part for part in log.slices if bases[part.segment_index] in matched]

    def _reason(self, log: Log, segments: int, records: int, left: int) -> str:
        end_offset = log.compaction.first_uncleanable_offset
        examined = counted(sum(segment.base_offset < end_offset for segment in log.compaction.segments), "segment")
        if not records:
            none = f"no record of these keys in {examined}"
            remaining = f"{counted(left, 'record')} of these keys in the last segment, which needs --include-active"
            return f"last segment: {remaining}; {none} before it" if left else f"no match: {none}"
        effect = "become tombstones" if self._erasure.tombstones else "erased"
        return f"{counted(records, 'record')} of {counted(log.keys, 'key')} {effect}, in {segments} of {examined}"

    def resolve(self, cleaner: Cleaner, log: Log) -> None:
        """Treats the whole log as clean: a record survives unless it is listed."""
        plan, view = log.compaction, log.compaction.view
        log.txn_index = tuple(group.segments[0].aborted_txns for group in plan.groups)
        log.context = CleanContext(
            first_dirty_offset=view.log_end_offset, latest_offset=view.log_end_offset - 1, delete_retention_ms=0,
            legacy_delete_horizon_ms=_NO_HORIZON_MS, index_interval_bytes=plan.config.index_interval_bytes,
            rules=ErasureRules.of(plan, tombstones=self._erasure.tombstones),
            directory=log.directory, bytes_per_second=cleaner.task_rate, files=cleaner.limits.files,
        )  # fmt: skip

    def clean(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart], *, writes: bool) -> CleanedParts[PartResult]:
        matched = [(part, [packed for slice_ in part.slices for packed in self._matches.get(slice_.id, ())]) for part in parts]
        tasks = pack(matched, lambda task: task[0].size_bytes, self._cleaner.sizes.slice_bytes)
        job = pass_2(parts, [[part for part, _ in task] for task in tasks], writes=writes)
        results = self._cleaner.runner.run(job, tasks, partial(_clean_parts, logs=dict(logs), dry_run=not writes))
        return CleanedParts([result for of_task in results for result in of_task], self._key_counts)

    def swapped(self, output: Destination, log: Log) -> DurableSteps[None]:
        if self._in_place and self._request.certificate is None:
            yield from _remove_sources(output, log)

    def report(self, log: Log) -> LogReport:
        none = FoundKeys.joined(())
        erased, remaining = self._found.get(log.location, (none, none))
        return erased_report(log, erased.total, remaining.total)

    def conclude(
        self, output: Destination | None, logs: Sequence[Log], unplanned: Mapping[LogLocation, str], reports: list[LogReport]
    ) -> list[LogReport]:
        self._resumed = [log.location for log in logs if log.location in self._replaced]
        path = self._request.certificate
        if path is None or self._base.dry_run:
            return reports
        self._certifier = _Certifier(self._start, self._request, path, output, self._replaced)
        self._certifier.certify(logs, unplanned)
        return [
            report if log.error is None else failed_report(log.location, log.error, log.plan)
            for log, report in zip(logs, reports, strict=True)
        ]

    def document(self, reports: Sequence[LogReport]) -> ErasureDocument:
        request, certifier, files = self._request, self._certifier, left_files(self._base)
        erased = FoundKeys.joined(erased for erased, _ in self._found.values())
        keys = FoundKeys.joined([erased, *(remaining for _, remaining in self._found.values())])
        notes = [*notes_of(self._base, reports, files), *(() if certifier is None else certifier.notes)]
        document = erasure_document(request.erasure, erased, self._resumed, notes)
        document |= missing_document(request.erasure, keys, request.places)
        document["left_files"] = files
        searched = {str(log.topic_partition) for log in self._found}
        unread = [log for log in reports if log.name not in searched]
        document["logs_not_searched"] = sum(log.disk_bytes_before > 0 or log.status is LogStatus.FAILED for log in unread)
        document["remaining_records"] = sum(log.remaining_records for log in reports)
        document["remaining_accepted"] = request.accepts_remaining
        if certifier is not None:
            document["certificate"] = {"path": certifier.path, "status": certifier.status}
        return document


class _Certifier:
    """Certifies the result of a request and writes the certificate to the file ``path``. In place, with its ``output``, the
    result is certified before the replaced segments are removed. The certificate must still hold when the run has ended: it is
    written again if a replaced segment cannot be removed.

    :param replaced: logs in which the run removed segments that a broker had replaced, or an earlier run, possibly killed
        before its certificate
    :ivar status: that of the certificate
    :ivar notes: the places where records of the keys remain
    """

    def __init__(
        self, start: Callable[[], Engine], request: ErasureRequest, path: str, output: Destination | None,
        replaced: frozenset[LogLocation],
    ) -> None:  # fmt: skip
        self._start, self._base, self._erasure = start, request.base, request.erasure
        self._erased = ErasedKeys(request.erasure.criteria, request.erasure.tombstones)
        self.path, self._output, self._replaced = path, output, replaced
        self.status, self.notes = NOT_MADE, list[str]()
        #: what the certificate has: the objects of logs, and files elsewhere
        self._objects: dict[LogLocation, Mapping[str, object]] = {}
        self._elsewhere: list[Remains] = []

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
        if self._output is not None:
            self._remove_sources(self._output, done)

    def _make(self, done: Sequence[Log], failed: Mapping[LogLocation, str]) -> None:
        """Makes the certificate. If it holds, a copy is recorded as the call's finished output."""
        base = self._base
        # from now on the file is not that of an earlier run, even if this run fails
        remove_text(self.path)
        for request, logs in self._requests(done, failed):
            certified = certify_erasure(self._start, request, self._erased)
            for result, fields in zip(certified.report.logs, certified.logs, strict=True):
                log = logs[result.topic_partition]
                self._objects[log.location] = {**fields, "resumed": log.location in self._replaced}
                if result.status not in (Status.HOLDS, Status.INCOMPLETE):
                    log.error = f"certificate: {error_line(result)}"
                if result.remaining:
                    self.notes.append(f"{result.name}: {result.left_text}")
            self._elsewhere.extend(certified.report.elsewhere)
            self.notes += (str(file) for file in certified.report.elsewhere if file.records)
        self._write(failed)
        if self.status == Status.HOLDS.value and base.output_dir is not None and base.call is not None:
            record_request(base.output_dir, base.call)

    def _write(self, failed: Mapping[LogLocation, str]) -> None:
        """Writes the certificate with the logs that failed since."""
        self._objects.update({log: failed_log(log.topic_partition, error) for log, error in failed.items()})
        objects = list(self._objects.values())
        text = document(self._base, self._erased, self._erasure.salt, objects, self._elsewhere)
        write_text(self.path, text, PRIVATE)
        self.status = status_of(objects, self._elsewhere).value

    def _requests(
        self, done: Sequence[Log], failed: Mapping[LogLocation, str]
    ) -> Iterator[tuple[VerifyRequest, Mapping[TopicPartition, Log]]]:
        """One request per log directory, with its logs."""
        base = self._base
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
            run_alone(output.disk, _remove_sources(output, log))
        failed = {log.location: log.error for log in certified if log.error is not None}
        if failed:
            self._write(failed)


def _remove_sources(output: Destination, log: Log) -> DurableSteps[None]:
    try:
        remove_deleted(output.disk, log.location.path)
        yield names_in(log.location.path)
    except Exception as error:
        log.error = str(as_log_error(error, log.location.path))


def _clean_parts(
    parts: Sequence[tuple[OutputPart, list[bytes]]], logs: Mapping[int, CleanContext], *, dry_run: bool
) -> list[PartResult]:
    return clean_parts([(part, [unpacked(packed)]) for part, packed in parts], logs, dry_run=dry_run)


@dataclass(frozen=True, eq=False)
class ErasureRules(RoundRules):
    """The rules of one log; ``open_txns`` are the first offsets of its open transactions."""

    open_txns: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of(cls, plan: LogPlan, *, tombstones: bool) -> ErasureRules:
        no_offsets, producers = np.empty(0, np.int64), plan.view.producers
        kafka = replace(plan.rules, tombstone_retention=Retention.DELETE_HORIZON)
        first_offsets = [producer.current_txn_first_offset for producer in producers if producer.current_txn_first_offset >= 0]
        return cls(
            AbortedRanges(no_offsets, no_offsets, no_offsets),
            no_offsets,
            ActiveProducers.of(producers),
            plan.first_uncleanable_offset,
            _NO_TIME_MS,
            replace(kafka, old_format=OldFormat.BECOMES_V2) if tombstones else kafka,
            erases=True,
            erases_values=tombstones,
            open_txns=np.array(first_offsets, np.int64),
        )

    def verdicts(self, rows: Rows, *, retain_by_mtime: bool = True) -> NDArray[np.uint8]:
        """As in a round of cleaning; the first batch of an open transaction is retained, too."""
        verdicts = super().verdicts(rows, retain_by_mtime=retain_by_mtime)
        verdicts[(rows["magic"] >= 2) & np.isin(rows["base_offset"], self.open_txns)] |= tables.RETAIN_EMPTY
        return verdicts


def plan_erasure(view: LogView, config: TopicConfig, rules: KafkaRules, *, include_active: bool) -> LogPlan:
    """The plan to examine a log: all segments, each as a group. Nothing is erased at or after the first uncleanable offset:
    without ``include_active``, that of the last segment."""
    examined = tuple(segment for segment in view.segments if segment.size_bytes > 0)
    end_offset = view.log_end_offset
    if view.segments and not include_active:
        # the batch before the active segment may end below its base
        end_offset = max((segment.next_offset for segment in view.segments[:-1]), default=view.segments[-1].base_offset)
    return LogPlan(
        view=view, config=config, verdict=Verdict.CLEAN, reason="", rules=rules, compacts=False,
        first_dirty_offset=view.segments[0].base_offset if view.segments else 0, first_uncleanable_offset=end_offset,
        groups=tuple(Group((segment,)) for segment in examined),
    )  # fmt: skip


def narrowed(plan: LogPlan, bases: frozenset[int], reason: str) -> LogPlan:
    """The plan for the segments with these base offsets, which have records to be erased; without any the log is skipped."""
    groups = tuple(group for group in plan.groups if group.base_offset in bases)
    return replace(plan, groups=groups, verdict=Verdict.CLEAN if groups else Verdict.SKIP, reason=reason)
