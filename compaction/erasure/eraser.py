"""The steps of an erasure over many logs: **find the matches**, then **clean into groups** the segments that have some.

Each segment is a group of its own: its output has its base offset, and other segments are not written. Nothing is shuffled:
pass 1 returns the offsets of matches to the driver, compressed, and pass 2 gets those of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from compaction.engine.cleaner import Cleaner, CleanerOptions, map_settings
from compaction.engine.log_cleaning import LogCleaning
from compaction.engine.protocol import CleanedParts, Passes, PlainPasses
from compaction.engine.sizing import Sizes
from compaction.erasure.erasure_rules import ErasureRules, narrowed
from compaction.erasure.find_matches import Erasure, FoundKeys, Matcher, SliceMatches, match_slices, matchers, unpacked
from compaction.errors import CorruptLogError
from compaction.fs.filesystem import FileSystem
from compaction.names import LogLocation
from compaction.passes.clean_into import clean_parts
from compaction.passes.tasks import CleanContext, MapSettings, OutputPart, PartResult, Slice, SliceId
from compaction.screen.amounts import counted
from compaction.task_runner import Job, pack, size_of

#: before the modification time of any segment
_NO_HORIZON_MS = -(2**62)


class ErasurePasses(PlainPasses):
    """The passes of an erasure.

    :param passes: runs the tasks
    """

    def __init__(self, passes: Passes, sizes: Sizes) -> None:
        super().__init__(passes, sizes)
        #: of each slice with matches, the compressed survivor entries
        self.matches: dict[SliceId, list[bytes]] = {}
        #: of each log, the number of distinct keys that were found
        self.keys: dict[int, int] = {}

    def find_matches(self, slices: Sequence[Slice], settings: MapSettings, matcher: Matcher) -> list[SliceMatches]:
        """Pass 1 for one shard of the keys: the matches of each slice, in order."""
        tasks = pack(slices, size_of, self._sizes.slice_bytes)
        job = Job.reading("pass 1", f"pass 1: look for keys in {len(slices)} slices", tasks)
        found = self._passes.run(job, tasks, partial(match_slices, settings=settings, matcher=matcher))
        return [each for matches in found for each in matches]

    def clean_into_groups(
        self, logs: Mapping[int, CleanContext], parts: Sequence[OutputPart], *, dry_run: bool
    ) -> CleanedParts[PartResult]:
        """Pass 2."""
        matched = [(part, self._matches_in(part)) for part in parts]
        tasks = pack(matched, lambda task: task[0].size_bytes, self._sizes.slice_bytes)
        description = f"pass 2: {'measure' if dry_run else 'write'} {len(parts)} output parts"
        job = Job.reading("pass 2", description, [[part for part, _ in task] for task in tasks], writes=not dry_run)
        found = self._passes.run(job, tasks, partial(_clean_parts, logs=dict(logs), dry_run=dry_run))
        return CleanedParts([result for results in found for result in results], self.keys)

    def _matches_in(self, part: OutputPart) -> list[bytes]:
        return [packed for each in part.slices for packed in self.matches.get(each.id, ())]


def _clean_parts(
    parts: Sequence[tuple[OutputPart, list[bytes]]], logs: Mapping[int, CleanContext], *, dry_run: bool
) -> list[PartResult]:
    return clean_parts([(part, [unpacked(packed)]) for part, packed in parts], logs, dry_run=dry_run)


class Eraser(Cleaner):
    """Erases from ``logs``; call the steps of a cleaner in order. The first one narrows the plans to segments with matches.

    :param passes: runs the tasks; the other parameters are those of ``Cleaner``
    """

    _passes: ErasurePasses

    def __init__(
        self, logs: Sequence[LogCleaning], fs: FileSystem, passes: Passes, options: CleanerOptions, erasure: Erasure
    ) -> None:
        super().__init__(logs, fs, partial(ErasurePasses, passes), passes.cores, options)
        self._erasure = erasure
        #: the keys that were found in each log
        self.keys: dict[LogLocation, FoundKeys] = {}
        #: the number of erased records of each log
        self.records: dict[LogLocation, int] = {}
        #: the keys that were found where nothing is erased, in the last segment of each log
        self.left: dict[LogLocation, FoundKeys] = {}

    def build_offset_map(self) -> None:
        """Pass 1: finds the matches, checks all batches, and narrows the plans."""
        self._each(self._slice, self._logs)
        slices = [part for log in self._unfailed() for part in log.slices]
        settings = replace(map_settings(self._options.broker, self._task_rate), files=self._options.files)
        found: dict[int, list[SliceMatches]] = {log.number: [] for log in self._unfailed()}
        for number, matcher in enumerate(matchers(self._erasure, settings)):
            matches = self._passes.find_matches(slices, settings, matcher) if slices else []
            if not number:
                self._take(self._unfailed(), [each.summary for each in matches])
            for each in matches:
                found[each.summary.log].append(each)
        self._each(lambda log: self._narrow(log, found[log.number]), self._unfailed())

    def found(self) -> tuple[FoundKeys, FoundKeys]:
        """The keys that are erased, and all that some record has."""
        erased = FoundKeys.joined(self.keys.values())
        return erased, FoundKeys.joined([erased, *self.left.values()])

    def counts(self, log: LogLocation) -> tuple[int, int]:
        """The records of a log that are erased, and those that remain in its last segment."""
        left = self.left.get(log)
        return self.records.get(log, 0), 0 if left is None else int(left.records.sum())

    def _narrow(self, log: LogCleaning, found: Sequence[SliceMatches]) -> None:
        """Keep the segments with matches that may be erased from.

        :raises CorruptLogError: reads of a segment, one for each shard, differ
        """
        slices = {each.id: each for each in log.slices}
        bases = [segment.base_offset for segment in log.compaction.view.segments]
        records: dict[int, int] = {}
        reached, left = [], []
        for each in found:
            part = slices[each.summary.slice_id or SliceId(-1, -1, -1)]
            if each.error is not None or each.summary.fingerprint != part.fingerprint:
                what = each.error or "repeated reads of the segment differ"
                raise CorruptLogError(what, path=part.path, position=part.start, hint="nothing was changed: check the disk")
            base = bases[part.segment_index]
            if base >= log.compaction.first_uncleanable_offset:
                left.append(each.keys)
                continue
            reached.append(each.keys)
            if each.records:
                records[base] = records.get(base, 0) + each.records
                self._passes.matches.setdefault(part.id, []).append(each.packed)
        self.keys[log.location] = FoundKeys.joined(reached)
        self.left[log.location] = FoundKeys.joined(left)
        self.records[log.location] = sum(records.values())
        log.keys = self._passes.keys[log.number] = len(self.keys[log.location].hashes)
        plan = narrowed(log.compaction, frozenset(records), self._reason(log, records))
        log.plan = replace(log.plan, compaction=plan)
        log.slices = [each for each in log.slices if bases[each.segment_index] in records]

    def _reason(self, log: LogCleaning, records: Mapping[int, int]) -> str:
        end_offset = log.compaction.first_uncleanable_offset
        examined = counted(sum(each.base_offset < end_offset for each in log.compaction.segments), "segment")
        if not records:
            return f"no match: no record of these keys in {examined}"
        done = "become tombstones" if self._erasure.tombstones else "erased"
        total = counted(sum(records.values()), "record")
        return f"{total} of {counted(log.keys, 'key')} {done}, in {len(records)} of {examined}"

    def _resolve(self, log: LogCleaning) -> None:
        plan, view = log.compaction, log.compaction.view
        log.txn_index = tuple(group.segments[0].aborted_txns for group in plan.groups)
        log.context = CleanContext(
            # as if all of the log were clean: a record survives unless it is listed
            first_dirty_offset=view.log_end_offset,
            latest_offset=view.log_end_offset - 1,
            delete_retention_ms=0,
            legacy_delete_horizon_ms=_NO_HORIZON_MS,
            index_interval_bytes=plan.config.index_interval_bytes,
            rules=ErasureRules.of(plan, tombstones=self._erasure.tombstones),
            directory=log.directory,
            bytes_per_second=self._task_rate,
            files=self._options.files,
        )
