"""``erase``: one run that erases keys, with ``Eraser`` as its method.

The replaced segments do not remain: ``.deleted`` files are removed as soon as their log is swapped, and leftovers of earlier
runs when the log is prepared, also if it has no match.

Internal topics are refused unless the call names them: their keys are groups and transactions, whose state would be lost. The
metadata log is never touched.

The method of an erasure: **find the matches**, then **clean** the segments that have some.

Each segment is a group: its output has its base offset, and other segments are not written. Nothing is shuffled: pass 1 returns
the offsets of matches to the driver, compressed, and pass 2 gets those of its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from compaction.cleaning.log_view import LogView
from compaction.cleaning.plan import PolicyPlan
from compaction.cleaning.skip_reasons import SkipCause
from compaction.config.request import CompactionRequest
from compaction.erasure.certify_result import Certified, Certifier, Certify, ErasedLog, remove_sources
from compaction.erasure.erasure_report import erased_report, erasure_document, left_files, missing_document, notes_of
from compaction.erasure.erasure_rules import ErasureRules, narrowed, plan_erasure
from compaction.erasure.find_matches import Erasure, FoundKeys, SliceMatches, match_slices, matchers, unpacked
from compaction.errors import CorruptLogError
from compaction.formats.key_list import KeyPlaces
from compaction.logdir.settings.log_settings import Settings
from compaction.names import LogLocation
from compaction.output.finished import uncertified
from compaction.output.swap import has_replaced_segments
from compaction.passes.clean_into import clean_parts
from compaction.passes.tasks import CleanContext, OutputPart, PartResult, SliceId
from compaction.report import LogReport
from compaction.run.cleaner import Cleaner
from compaction.run.destination import Destination
from compaction.run.log import Log
from compaction.run.passes import CleanedParts, Passes, pass_2
from compaction.run.run import REAL, Command, Environment, Run
from compaction.run_report import RunReport
from compaction.screen.amounts import counted
from compaction.storage.durable import DurableSteps
from compaction.storage.filesystem import DiskFileSystem
from compaction.task_runner import Job, TaskRunner, pack, size_of

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
    environment: Environment = REAL,
    on_wave: Callable[[RunReport], None] = lambda report: None,
) -> RunReport:
    """Erases keys; see ``Run``."""
    base = request.base if request.certify is None else replace(uncertified(request.base), retain_replaced=True)
    recorded = replace(base, only_known_files=True)
    command = _KeyErasure(request)
    report = Run(command, start, recorded, environment, on_wave).run()
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

    def swapped(self, output: Destination, log: Log) -> DurableSteps[None]:
        if self._in_place and self._request.certify is None:
            yield from remove_sources(output, log)

    def report(self, log: Log) -> LogReport:
        # no other wave has the log
        counts = [eraser.counts(log.location) for eraser in self._erasers]
        return erased_report(log, sum(erased for erased, _ in counts), sum(remaining for _, remaining in counts))

    def conclude(
        self,
        output: Destination | None,
        logs: Sequence[Log],
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


#: before the modification time of any segment
_NO_HORIZON_MS = -(2**62)


@dataclass(eq=False)
class Eraser:
    """Erases from logs; pass 1 narrows their plans to segments with matches.

    :ivar keys: the erased keys of each log
    :ivar records: the number of erased records of each log
    :ivar remaining: the keys in the last segment of each log, from which nothing is erased
    """

    erasure: Erasure
    runner: TaskRunner
    slice_bytes: int
    dry_run: bool
    keys: dict[LogLocation, FoundKeys] = field(default_factory=dict)
    records: dict[LogLocation, int] = field(default_factory=dict)
    remaining: dict[LogLocation, FoundKeys] = field(default_factory=dict)
    #: compressed survivor entries by slice, if it has matches
    _matches: dict[SliceId, list[bytes]] = field(default_factory=dict)
    #: the number of distinct keys by log
    _key_counts: dict[int, int] = field(default_factory=dict)

    def scan(self, cleaner: Cleaner) -> None:
        """Pass 1: finds the matches, checks all batches, and narrows the plans."""
        slices = [part for log in cleaner.unfailed for part in log.slices]
        settings = cleaner.map_settings
        matches_of: dict[int, list[SliceMatches]] = {log.number: [] for log in cleaner.unfailed}
        tasks = pack(slices, size_of, self.slice_bytes)
        job = Job.reading("pass 1", f"pass 1: look for keys in {len(slices)} slices", tasks)
        for number, matcher in enumerate(matchers(self.erasure, settings) if slices else ()):
            results = self.runner.run(job, tasks, partial(match_slices, settings=settings, matcher=matcher))
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
        records: dict[int, int] = {}
        erased, remaining = [], []
        for slice_matches in matches:
            part = slices[slice_matches.summary.slice_id or SliceId(-1, -1, -1)]
            if slice_matches.error is not None or slice_matches.summary.fingerprint != part.fingerprint:
                message = slice_matches.error or "repeated reads of the segment differ"
                raise CorruptLogError(message, path=part.path, position=part.start, hint="nothing was changed: check the disk")
            base = bases[part.segment_index]
            if base >= log.compaction.first_uncleanable_offset:
                remaining.append(slice_matches.keys)
                continue
            erased.append(slice_matches.keys)
            if slice_matches.records:
                records[base] = records.get(base, 0) + slice_matches.records
                self._matches.setdefault(part.id, []).append(slice_matches.packed)
        self.keys[log.location] = FoundKeys.joined(erased)
        self.remaining[log.location] = FoundKeys.joined(remaining)
        self.records[log.location] = sum(records.values())
        log.keys = self._key_counts[log.number] = len(self.keys[log.location].hashes)
        plan = narrowed(log.compaction, frozenset(records), self._reason(log, records))
        log.plan = replace(log.plan, compaction=plan)
        log.slices = [part for part in log.slices if bases[part.segment_index] in records]

    def _reason(self, log: Log, records: Mapping[int, int]) -> str:
        end_offset = log.compaction.first_uncleanable_offset
        examined = counted(sum(segment.base_offset < end_offset for segment in log.compaction.segments), "segment")
        if not records:
            none, (_, left) = f"no record of these keys in {examined}", self.counts(log.location)
            remaining = f"{counted(left, 'record')} of these keys in the last segment, which needs --include-active"
            return f"last segment: {remaining}; {none} before it" if left else f"no match: {none}"
        effect = "become tombstones" if self.erasure.tombstones else "erased"
        total = counted(sum(records.values()), "record")
        return f"{total} of {counted(log.keys, 'key')} {effect}, in {len(records)} of {examined}"

    def resolve(self, cleaner: Cleaner, log: Log) -> None:
        """Treats the whole log as clean: a record survives unless it is listed."""
        plan, view = log.compaction, log.compaction.view
        log.txn_index = tuple(group.segments[0].aborted_txns for group in plan.groups)
        log.context = CleanContext(
            first_dirty_offset=view.log_end_offset,
            latest_offset=view.log_end_offset - 1,
            delete_retention_ms=0,
            legacy_delete_horizon_ms=_NO_HORIZON_MS,
            index_interval_bytes=plan.config.index_interval_bytes,
            rules=ErasureRules.of(plan, tombstones=self.erasure.tombstones),
            directory=log.directory,
            bytes_per_second=cleaner.task_rate,
            files=cleaner.limits.files,
        )

    def measure(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart]) -> CleanedParts[PartResult]:
        """Pass 2 without writing."""
        return self._clean(logs, parts, writes=False)

    def clean(self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart]) -> CleanedParts[PartResult]:
        """Pass 2."""
        return self._clean(logs, parts, writes=not self.dry_run)

    def _clean(
        self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart], *, writes: bool
    ) -> CleanedParts[PartResult]:
        matched = [(part, [packed for slice_ in part.slices for packed in self._matches.get(slice_.id, ())]) for part in parts]
        tasks = pack(matched, lambda task: task[0].size_bytes, self.slice_bytes)
        job = pass_2(parts, [[part for part, _ in task] for task in tasks], writes=writes)
        results = self.runner.run(job, tasks, partial(_clean_parts, logs=dict(logs), dry_run=not writes))
        return CleanedParts([result for of_task in results for result in of_task], self._key_counts)

    def all_keys(self) -> tuple[FoundKeys, FoundKeys]:
        erased = FoundKeys.joined(self.keys.values())
        return erased, FoundKeys.joined([erased, *self.remaining.values()])

    def counts(self, log: LogLocation) -> tuple[int, int]:
        """The records of a log that are erased, and those that remain in its last segment."""
        remaining = self.remaining.get(log)
        return self.records.get(log, 0), 0 if remaining is None else int(remaining.records.sum())


def _clean_parts(
    parts: Sequence[tuple[OutputPart, list[bytes]]], logs: Mapping[int, CleanContext], *, dry_run: bool
) -> list[PartResult]:
    return clean_parts([(part, [unpacked(packed)]) for part, packed in parts], logs, dry_run=dry_run)
