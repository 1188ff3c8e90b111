"""The method of an erasure: **find the matches**, then **clean** the segments that have some.

Each segment is a group: its output has its base offset, and other segments are not written. Nothing is shuffled: pass 1 returns
the offsets of matches to the driver, compressed, and pass 2 gets those of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from compaction.erasure.erasure_rules import ErasureRules, narrowed
from compaction.erasure.find_matches import Erasure, FoundKeys, SliceMatches, match_slices, matchers, unpacked
from compaction.errors import CorruptLogError
from compaction.names import LogLocation
from compaction.passes.clean_into import clean_parts
from compaction.passes.tasks import CleanContext, OutputPart, PartResult, SliceId
from compaction.run.cleaner import Cleaner
from compaction.run.log_cleaning import LogCleaning
from compaction.run.passes import CleanedParts, pass_2
from compaction.screen.amounts import counted
from compaction.task_runner import Job, TaskRunner, pack, size_of

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

    def _narrow(self, log: LogCleaning, matches: Sequence[SliceMatches]) -> None:
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

    def _reason(self, log: LogCleaning, records: Mapping[int, int]) -> str:
        end_offset = log.compaction.first_uncleanable_offset
        examined = counted(sum(segment.base_offset < end_offset for segment in log.compaction.segments), "segment")
        if not records:
            none, (_, left) = f"no record of these keys in {examined}", self.counts(log.location)
            remaining = f"{counted(left, 'record')} of these keys in the last segment, which needs --include-active"
            return f"last segment: {remaining}; {none} before it" if left else f"no match: {none}"
        effect = "become tombstones" if self.erasure.tombstones else "erased"
        total = counted(sum(records.values()), "record")
        return f"{total} of {counted(log.keys, 'key')} {effect}, in {len(records)} of {examined}"

    def resolve(self, cleaner: Cleaner, log: LogCleaning) -> None:
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
