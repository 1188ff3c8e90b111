"""Pass 2 for several policies at once: every slice is read once, every policy's output is made of it and counted, not written.

A *case* is one way to rewrite a log with the map of a variant (see ``compaction.compare.count``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from compaction.compare.count import AGE_BOUNDS_MS, SharedSlice, Source, Tally
from compaction.errors import CorruptLogError, LogError, of_log
from compaction.fs.filesystem import ReadableFileSystem
from compaction.kernels.keys.key_counts import KeyCounts, new_table, put_until_full
from compaction.kernels.reading.records import RECORD_ERRORS
from compaction.kernels.reading.tables import COPY, ENTRY_WORDS
from compaction.kernels.rewriting.tally import tally
from compaction.logdir.blocks import Block, SegmentReader
from compaction.logdir.throttle import Throttle
from compaction.passes.build_map import LogScan
from compaction.passes.clean_into import Rewriter
from compaction.passes.decoder import Decoded, Decoder
from compaction.passes.tasks import CleanContext, CleanStats, MapContext, MapSettings, Packed, Slice

#: keys that occur more than 2^(i-1) and at most 2^i times are counted under i
REPETITIONS = 64


@dataclass(frozen=True)
class Measured:
    """What a case makes of a slice; ``gone`` counts the records that are not in the output."""

    case: int
    number: int
    stats: CleanStats
    gone: Tally
    error: str | None = None


@dataclass
class _Case:
    """One case while a slice is read."""

    number: int
    rewriter: Rewriter
    limits: NDArray[np.int64]
    gone: Tally = field(default_factory=Tally.empty)
    error: LogError | None = None


def measure_shared(
    slices: Iterable[SharedSlice],
    cases: Mapping[int, Sequence[tuple[int, CleanContext]]],
    marks: Mapping[tuple[int, int], Sequence[Packed]],
    sources: Mapping[int, Source],
) -> Iterator[Measured]:
    """What each case makes of each slice.

    :param cases: by variant, its cases by number
    :param marks: by variant and slice number, survivor marks from any number of shards, uint64[n] in no order
    """
    for each in slices:
        wanted = [
            _Case(number, rewriter, rewriter.limits(each.part))
            for variant in each.variants
            for number, log in cases.get(variant, ())
            for rewriter in [Rewriter(log, _sorted(marks.get((variant, each.number), ())))]
        ]
        if wanted:
            logs = [log for variant in each.variants for _, log in cases.get(variant, ())]
            throttle = Throttle(min(log.bytes_per_second for log in logs))
            _read(logs[0].files, each.part, wanted, sources[each.part.log], throttle)
        for case in wanted:
            error = None if case.error is None else str(case.error)
            yield Measured(case.number, each.number, case.rewriter.stats(), case.gone, error)


def _sorted(packed: Sequence[Packed]) -> NDArray[np.uint64]:
    return np.sort(np.concatenate([np.empty(0, np.uint64), *packed]))


def _read(files: ReadableFileSystem, part: Slice, cases: Sequence[_Case], source: Source, throttle: Throttle) -> None:
    """Read a slice once for all cases; what is wrong with the slice is every case's error."""
    position, frame = part.start, source.frame
    try:
        with SegmentReader(files, part.path, part.start, part.end) as reader:
            decoder = Decoder(part.path)
            for block in reader.blocks(check_crc=False):
                position = block.position
                throttle.count(len(block.raw))
                for rows in decoder.modern(block):
                    _block(rows, decoder, cases, frame, part.path)
    except Exception as error:
        for case in cases:
            case.error = case.error or of_log(error, part.path, position)


def _block(block: Block, decoder: Decoder, cases: Sequence[_Case], frame: NDArray[np.int64], path: str) -> None:
    decided = [(case, *case.rewriter.decide(block, case.limits)) for case in cases]
    wanted = np.any([actions != COPY for _, actions, _ in decided], axis=0)
    for decoded in decoder.decode(block, wanted):
        for case, actions, verdicts in decided:
            if case.error is None:
                try:
                    _measure(block, decoded, case, (actions, verdicts), frame, path)
                except Exception as error:
                    case.error = of_log(error, path, block.position)


def _measure(
    block: Block,
    decoded: Decoded,
    case: _Case,
    decided: tuple[NDArray[np.uint8], NDArray[np.uint8]],
    frame: NDArray[np.int64],
    path: str,
) -> None:
    """Make a case's output of decoded batches, and count what goes."""
    for _ in case.rewriter.rows(block, decoded, *decided, case.limits, path):
        pass
    rows, first = decoded.rows, decoded.first_row
    actions, verdicts = (each[first : first + len(rows)] for each in decided)
    marks = case.rewriter.marks_from(int(rows["base_offset"][0]))
    at, error = tally(
        block.raw, decoded.scratch, rows, decoded.spans, actions, verdicts, marks, case.limits, frame,
        np.array(AGE_BOUNDS_MS, np.int64), case.gone.positions, case.gone.ages,
    )  # fmt: skip
    if error:
        position = int(rows[at]["position"])
        raise CorruptLogError(RECORD_ERRORS[error], path=path, position=position, hint="restore this segment")


@dataclass(frozen=True)
class Repetition:
    """How often keys occur: int64[64] each, of keys and of their records, by power of two (see ``REPETITIONS``)."""

    keys: NDArray[np.int64]
    records: NDArray[np.int64]
    most: int

    def __add__(self, other: Repetition) -> Repetition:
        return Repetition(self.keys + other.keys, self.records + other.records, max(self.most, other.most))


def resolve_counts(packed: Sequence[Packed]) -> Repetition:
    """One shard's key counts put together."""
    parts = [part.reshape(-1, ENTRY_WORDS) for part in packed]
    expected = sum(map(len, parts))
    total = KeyCounts(expected * ENTRY_WORDS * 16, expected)
    for part in parts:
        total.add(part, once=False)
    counts = total.slots[:, 2]
    counts = counts[counts != 0].astype(np.int64)
    powers = np.ceil(np.log2(counts)).astype(np.int64)
    keys = np.bincount(powers, minlength=REPETITIONS)
    records = np.zeros(REPETITIONS, np.int64)
    np.add.at(records, powers, counts)
    return Repetition(keys.astype(np.int64), records, int(counts.max(initial=0)))


class _RoundScan(LogScan):
    """Counts the rounds of a map that takes so many keys."""

    def __init__(self, log: MapContext, settings: MapSettings, most_keys: int) -> None:
        super().__init__(log, settings, 0)
        self._most = most_keys
        self._table = new_table(most_keys)
        self._held = 0
        self.rounds = 1

    def _take(self, n: int, m: int) -> None:
        at = 0
        while at < n:
            at, self._held = put_until_full(self._table, self._entries[:n], at, self._held, self._most)
            if at < n:
                self._table[:, 2] = 0
                self._held = 0
                self.rounds += 1


def count_rounds(slices: Sequence[Slice], log: MapContext, settings: MapSettings, most_keys: int) -> int:
    """How often Kafka's cleaner would have to go over a log whose map takes ``most_keys`` at a time.

    :param slices: all of a variant's, in the order of offsets
    :raises LogError: a slice cannot be read
    """
    scan = _RoundScan(log, settings, most_keys)
    for part in slices:
        summary = scan.slice(part)
        if summary.error is not None:
            raise CorruptLogError(summary.error)
    return scan.rounds
