"""Pass 2 for several policies at once: reads every slice once, cleans it for each policy, and counts without writing.

A *case* is one way to clean a log with the map of a variant (see ``compaction.compare.count``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.compare.count import Source, Tally
from compaction.engine.protocol import PartsToClean
from compaction.errors import CorruptLogError, LogError, of_log
from compaction.fs.filesystem import ReadableFileSystem
from compaction.kernels.keys.key_counts import KeyCounts, new_table, put_until_full
from compaction.kernels.reading.tables import COPY, ENTRY_WORDS
from compaction.kernels.rewriting.batch_retention import Limits
from compaction.kernels.rewriting.tally import Frame
from compaction.logdir.blocks import Block, SegmentReader
from compaction.logdir.throttle import Throttle
from compaction.passes.build_map import SliceScan
from compaction.passes.clean_into import Rewriter
from compaction.passes.decoder import Decoder
from compaction.passes.log_scan import Emitted, LogScan
from compaction.passes.tasks import CleanContext, CleanStats, Key, MapContext, MapSettings, Packed, Slice, SliceId

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


@dataclass
class _Case:
    """One case while a slice is read."""

    number: int
    rewriter: Rewriter
    limits: Limits
    dropped: Tally = field(default_factory=Tally.empty)
    error: LogError | None = None


class MeasureContext(NamedTuple):
    """What pass 2 knows: by variant, its numbered cases; the sources."""

    cases: Mapping[int, Sequence[tuple[int, CleanContext]]]
    sources: Mapping[int, Source]


def measure_shared(slices: PartsToClean, known: MeasureContext) -> list[Measured]:
    """Measure some slices; see ``_measure_slice``."""
    return [measured for slice_, survivors in slices for measured in _measure_slice(slice_, survivors, known)]


def _measure_slice(slice_: Slice, survivors: Mapping[int, Sequence[Packed]], known: MeasureContext) -> list[Measured]:
    """Measure a slice in each case.

    :param survivors: by variant, survivor entries from any number of shards, uint64[n] in no order
    """
    logs = [(variant, number, log) for variant in slice_.maps for number, log in known.cases.get(variant, ())]
    cases = []
    for variant, number, log in logs:
        rewriter = Rewriter(log, survivors.get(variant, ()))
        cases.append(_Case(number, rewriter, rewriter.limits(slice_)))
    throttle = Throttle(min(log.bytes_per_second for _, _, log in logs))
    _read(logs[0][2].files, slice_, cases, known.sources[slice_.log], throttle)
    return [
        Measured(case.number, slice_.id, case.rewriter.stats(), case.dropped, None if case.error is None else str(case.error))
        for case in cases
    ]


def _read(files: ReadableFileSystem, slice_: Slice, cases: Sequence[_Case], source: Source, throttle: Throttle) -> None:
    """Read a slice once for all cases; an error of the slice is one of each case."""
    position, frame = slice_.start, source.frame
    try:
        with SegmentReader(files, slice_.path, slice_.start, slice_.end) as reader:
            decoder = Decoder(slice_.path)
            for block in reader.blocks(check_crc=False):
                position = block.position
                throttle.count(len(block.raw))
                for batches in decoder.as_v2(block):
                    _measure(batches, decoder, cases, frame)
    except Exception as error:
        for case in cases:
            case.error = case.error or of_log(error, slice_.path, position)


def _measure(block: Block, decoder: Decoder, cases: Sequence[_Case], frame: Frame) -> None:
    """Clean batches for each case, and count the records that it drops."""
    decisions = [(case, case.rewriter.decide(block, case.limits)) for case in cases]
    wanted = np.any(
        [(decided.actions != COPY) | case.rewriter.wanted(block, decided) for case, decided in decisions], axis=0
    )
    for decoded in decoder.decode(block, wanted):
        for case, decided in decisions:
            if case.error is None:
                try:
                    case.rewriter.check_sizes(decoded, decided, decoder.path)
                    for _ in case.rewriter.rewrite(block, decoded, decided, decoder.path):
                        pass
                    survivors = case.rewriter.survivors_from(int(decoded.rows["base_offset"][0]))
                    case.dropped.add(block, decoded, decided, survivors, frame, decoder.path)
                except Exception as error:
                    case.error = of_log(error, decoder.path, block.position)


@dataclass(frozen=True)
class Repetition:
    """How often keys occur: numbers of keys and of their records, int64[64] each, by power of two (see ``REPETITIONS``)."""

    keys: NDArray[np.int64]
    records: NDArray[np.int64]
    most: int

    def __add__(self, other: Repetition) -> Repetition:
        return Repetition(self.keys + other.keys, self.records + other.records, max(self.most, other.most))


def resolve_counts(key: Key, packed: Sequence[Packed]) -> list[tuple[int, Repetition]]:
    """Merge one shard's key counts; nothing for shards of other maps."""
    number, _ = key
    if number >= 0:
        return []
    arrays = [each.reshape(-1, ENTRY_WORDS) for each in packed]
    expected = sum(map(len, arrays))
    total = KeyCounts(expected * ENTRY_WORDS * 16, expected)
    for each in arrays:
        total.add(each, once=False)
    counts = total.slots[:, 2]
    counts = counts[counts != 0].astype(np.int64)
    powers = np.ceil(np.log2(counts)).astype(np.int64)
    keys = np.bincount(powers, minlength=REPETITIONS)
    records = np.zeros(REPETITIONS, np.int64)
    np.add.at(records, powers, counts)
    return [(number, Repetition(keys.astype(np.int64), records, int(counts.max(initial=0))))]


class _RoundScan(LogScan):
    """Counts the rounds that a map of ``most_keys`` keys takes."""

    def __init__(self, log: MapContext, settings: MapSettings, most_keys: int) -> None:
        super().__init__(log, settings, 0)
        self._most = most_keys
        self._table = new_table(most_keys)
        self._held = 0
        self.rounds = 1

    def _take(self, n: int, m: int) -> Iterable[Emitted]:
        at = 0
        while at < n:
            at, self._held = put_until_full(self._table, self._entries[:n], at, self._held, self._most)
            if at < n:
                self._table[:, 2] = 0
                self._held = 0
                self.rounds += 1
        return ()


def count_rounds(work: tuple[Sequence[Slice], MapContext], settings: MapSettings, most_keys: int) -> int:
    """How many rounds Kafka's cleaner needs for a log if its map holds ``most_keys``.

    :param work: all slices of a variant, in the order of offsets
    :raises LogError: a slice cannot be read
    """
    slices, log = work
    scan = _RoundScan(log, settings, most_keys)
    reader = SliceScan({0: scan}, settings)
    for each in slices:
        summary = reader.scan(replace(each, maps=(0,)))
        if summary.error is not None:
            raise CorruptLogError(summary.error)
    return scan.rounds
