"""Pass 2 for several policies at once: reads every slice once, cleans it for each policy, and counts without writing.

A *case* is one way to clean a log with the map of a variant (see ``compaction.compare.count``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.compare.count import Source, Tally
from compaction.errors import LogError, as_log_error
from compaction.kernels.retention import LogRange
from compaction.kernels.slot_table import COUNTS, SlotTable
from compaction.kernels.tables import COPY
from compaction.logdir.throttle import Throttle
from compaction.passes.clean_into import Decided, Rewriter
from compaction.passes.decoder import Decoded
from compaction.passes.merge import PartsToClean, Survivors, accepted_entries, accepted_survivors
from compaction.passes.scan import Emitted, Entries, finish, scan
from compaction.passes.tasks import CleanContext, CleanStats, Key, MapContext, MapSettings, Slice, SliceId
from compaction.storage.segment_file import Block
from compaction.task_runner import Reading

#: keys that occur more than 2^(i-1) and at most 2^i times are counted under i
REPETITIONS = 64


@dataclass(frozen=True)
class Measured:
    """The result of cleaning one slice in one case; ``dropped`` counts the records that are not in the output."""

    case: int
    slice_id: SliceId
    stats: CleanStats
    dropped: Tally
    error: str | None = None


class _CaseSink:
    """Cleans the batches of a slice for one case, and counts the records that it drops. An error of a record fails this case
    only."""

    def __init__(
        self, number: int, rewriter: Rewriter, slice_: Slice, frame: LogRange, error: LogError | None
    ) -> None:
        self.number, self._rewriter, self._frame = number, rewriter, frame
        self._limits = rewriter.limits(slice_)
        self._decided: Decided | None = None
        self.dropped = Tally.empty()
        self.error = error

    def begin(self, block: Block) -> NDArray[np.bool_]:
        decided = self._decided = self._rewriter.decide(block, self._limits)
        batches: NDArray[np.bool_] = (decided.actions != COPY) | self._rewriter.selected(block, decided)
        return batches

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        if self.error is None and self._decided is not None:
            try:
                self._rewriter.check_sizes(decoded, self._decided)
                for _ in self._rewriter.rewrite(decoded, self._decided):
                    pass
                survivors = self._rewriter.survivors_from(int(decoded.rows["base_offset"][0]))
                self.dropped.add(decoded, self._decided, survivors, self._frame)
            except Exception as error:
                self.error = as_log_error(error, decoded.block.path, decoded.block.position)
        return ()

    def result(self, slice_id: SliceId) -> Measured:
        error = None if self.error is None else str(self.error)
        return Measured(self.number, slice_id, self._rewriter.stats(), self.dropped, error)


class MeasureContext(NamedTuple):
    """The data that all tasks of pass 2 share: numbered cases by variant, sources by number."""

    cases: Mapping[int, Sequence[tuple[int, CleanContext]]]
    sources: Mapping[int, Source]


def measure_shared(slices: PartsToClean, context: MeasureContext) -> list[Measured]:
    """Measure some slices; see ``_measure_slice``."""
    return [measured for slice_, survivors in slices for measured in _measure_slice(slice_, survivors, context)]


def _measure_slice(slice_: Slice, survivors: Mapping[int, Sequence[Survivors]], context: MeasureContext) -> list[Measured]:
    """Measure a slice in each case.

    :param survivors: by variant, survivor entries from any number of shards, uint64[n] in no order
    """
    logs = [(variant, number, log) for variant in slice_.maps for number, log in context.cases.get(variant, ())]
    frame = context.sources[slice_.log].frame
    cases = []
    for variant, number, log in logs:
        packed = accepted_survivors(survivors.get(variant, ()))
        refused = packed if isinstance(packed, LogError) else None
        cases.append(_CaseSink(number, Rewriter(log, () if isinstance(packed, LogError) else packed), slice_, frame, refused))
    throttle = Throttle(min(log.bytes_per_second for _, _, log in logs))
    try:
        finish(scan(slice_, cases, logs[0][2].files, throttle, check_crc=False))
    except LogError as error:
        for case in cases:
            case.error = case.error or error
    return [case.result(slice_.id) for case in cases]


@dataclass(frozen=True)
class Repetition:
    """Numbers of keys and of their records, int64[64] each, by records per key in powers of two (see ``REPETITIONS``)."""

    keys: NDArray[np.int64]
    records: NDArray[np.int64]
    most: int

    def __add__(self, other: Repetition) -> Repetition:
        return Repetition(self.keys + other.keys, self.records + other.records, max(self.most, other.most))


def resolve_counts(
    key: Key, values: Iterable[Any], accepted: Mapping[int, Reading]
) -> list[tuple[int, Repetition | LogError]]:
    """Merge one shard's key counts, or why it was refused; nothing for shards of other maps.

    :param accepted: what was read for each map
    """
    number, _ = key
    if number >= 0:
        return []
    try:
        packed = accepted_entries(values, accepted[number])
    except LogError as error:
        return [(number, error)]
    expected = sum(map(len, packed))
    total = SlotTable.of_keys(COUNTS, expected)
    for packed_counts in packed:
        total.put(packed_counts, of_records=False)
    counts = total.slots[:, 2]
    counts = counts[counts != 0].astype(np.int64)
    powers = np.ceil(np.log2(counts)).astype(np.int64)
    keys = np.bincount(powers, minlength=REPETITIONS)
    records = np.zeros(REPETITIONS, np.int64)
    np.add.at(records, powers, counts)
    return [(number, Repetition(keys.astype(np.int64), records, int(counts.max(initial=0))))]


class _RoundSink:
    """Counts the rounds that a map of ``most_keys`` keys takes."""

    def __init__(self, log: MapContext, settings: MapSettings, most_keys: int) -> None:
        self._source = Entries(log, settings.secret)
        self.begin = self._source.begin
        self._table = SlotTable.of_keys(COUNTS, most_keys)
        self.rounds = 1

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        for entries, _ in self._source.of(decoded):
            position = self._table.put(entries)
            while position < len(entries):
                self._table.clear()
                self.rounds += 1
                position = self._table.put(entries, position)
        return ()


def count_rounds(work: tuple[Sequence[Slice], MapContext], settings: MapSettings, most_keys: int) -> int:
    """The number of rounds that Kafka's cleaner needs for a log if its map holds ``most_keys``.

    :param work: all slices of a variant, in the order of offsets
    :raises LogError: a slice cannot be read
    """
    slices, log = work
    sink, throttle = _RoundSink(log, settings, most_keys), Throttle(settings.bytes_per_second)
    for slice_ in slices:
        finish(scan(slice_, [sink], settings.files, throttle))
    return sink.rounds
