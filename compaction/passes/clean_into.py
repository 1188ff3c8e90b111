"""The second pass over one piece: keeps, drops or rewrites each batch and hands the output to a writer.

Mirrors ``Cleaner.cleanInto`` and ``MemoryRecords.filterTo`` (Kafka 4.3.0). A batch of which nothing goes is never copied in
memory; one of which everything goes is never read beyond its header.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CompactionError, CorruptLogError, UnsupportedLogError, of_log
from compaction.formats.primitives.malformed import FormatError
from compaction.fs.contents import FileDigest
from compaction.fs.filesystem import Chunk
from compaction.kernels.reading.batches import first_bad_crc, scan_batches
from compaction.kernels.reading.records import RECORD_ERRORS
from compaction.kernels.reading.tables import BUILT, DROP, IN_BLOCK, MARK_SHIFT, OUT_ROW, REWRITE, TO_COMPRESS
from compaction.kernels.rewriting.batch_retention import decide
from compaction.kernels.rewriting.rewrite import (
    BYTES_KEPT,
    COUNTERS,
    RECORD_GROWTH,
    REWRITE_ERRORS,
    TOMBSTONES_REMOVED,
    rewrite,
)
from compaction.kernels.rewriting.survivors import BAD_NAMES
from compaction.logdir.blocks import Block, SegmentReader
from compaction.logdir.throttle import Throttle
from compaction.output.segment_writer import PartWriter, SegmentWriter, new_suffix, part_paths
from compaction.passes.build_map import check_offsets
from compaction.passes.compress import seal_compressed
from compaction.passes.decoder import V2_MAGIC, Decoded, Decoder, check_count
from compaction.passes.header_names import repair_header_names
from compaction.passes.tasks import CleanContext, CleanStats, GroupOutput, OutputPart, Packed, PartResult, Slice

_OUT_BYTES = 4 << 20
_KEPT_COLUMNS = 6
_KEPT_ROWS = 1 << 12
_CHANGED = "something changed it meanwhile, or the disk gave other bytes: make sure that nothing else works here, run again"


class Writer(Protocol):
    """Takes the output of a piece."""

    def append(self, chunks: Sequence[Chunk], out_rows: NDArray[np.void]) -> None:
        """Batches, back to back, and one ``OUT_ROW`` each."""


class NullWriter:
    """A dry run's: counts, writes nothing."""

    def append(self, chunks: Sequence[Chunk], out_rows: NDArray[np.void]) -> None:
        """Nothing."""


def clean_part(piece: OutputPart, log: CleanContext, packed_marks: Sequence[Packed], *, dry_run: bool) -> PartResult:
    """Write one piece (or only count, in a dry run). What goes wrong with it is told in the result.

    :param packed_marks: the piece's marks, from any number of shards, each uint64
    """
    output = piece.output
    marks = np.concatenate([np.empty(0, np.uint64), *(np.frombuffer(part, np.uint64) for part in packed_marks)])
    marks.sort()
    work = Rewriter(log, marks)
    suffix = None if dry_run else new_suffix()
    try:
        written = _write(piece, log, work, suffix)
    except Exception as error:
        failure = of_log(error, *work.at)
        return PartResult(output.log, output.group, piece.number, CleanStats(), None, str(failure))
    return PartResult(output.log, output.group, piece.number, work.stats(), suffix, batches=work.batches, written=written)


def _write(piece: OutputPart, log: CleanContext, work: Rewriter, suffix: str | None) -> tuple[FileDigest, ...]:
    """Write the output of a piece: a verified segment, or a part of one, or nothing in a dry run."""
    output, files = piece.output, log.files
    if suffix is None:
        work.run(piece.slices, NullWriter())
        return ()
    if not piece.whole:
        part = part_paths(log.directory, output.base_offset, piece.number, suffix)
        with PartWriter(files, part, output.like) as writer:
            work.run(piece.slices, writer)
            return writer.close()
    stem = log.directory, output.base_offset, suffix
    with SegmentWriter(files, stem, index_interval_bytes=log.index_interval_bytes, like=output.like) as segment:
        work.run(piece.slices, segment)
        work.at = log.directory, None
        return segment.close(output.mtime_ms, output.aborted_txns)


class Rewriter:
    """The buffers and counters of one piece."""

    def __init__(self, log: CleanContext, marks: NDArray[np.uint64]) -> None:
        self._log = log
        self._marks = marks
        #: the file and the byte position that the work has come to
        self.at: tuple[str, int | None] = (log.directory, None)
        #: batches in the output so far
        self.batches = 0
        self._counters = np.zeros(COUNTERS, np.int64)
        self._out = np.empty(_OUT_BYTES, np.uint8)
        self._kept = np.empty((_KEPT_ROWS, _KEPT_COLUMNS), np.int64)
        self._throttle = Throttle(log.bytes_per_second)

    def stats(self) -> CleanStats:
        """What was read and kept so far."""
        return CleanStats(*self._counters.tolist())

    def run(self, slices: Sequence[Slice], writer: Writer) -> None:
        """All slices of the piece, in order."""
        for part in slices:
            decoder, limits, floor = Decoder(part.path), self.limits(part), part.first_offset
            with SegmentReader(self._log.files, part.path, part.start, part.end) as reader:
                for block in reader.blocks(check_crc=False):
                    self.at = (part.path, block.position)
                    self._throttle.count(len(block.raw))
                    _check_messages(block, part.path)
                    for rows in decoder.modern(block):
                        floor = check_offsets(rows, floor, part.path, part.end_offset)
                        for chunks, out_rows in self._block(rows, decoder, limits, part.path):
                            writer.append(chunks, out_rows)
                            self.batches += len(out_rows)
                            self._throttle.count(int(out_rows["size"].sum()))
                if part.fingerprint is not None and reader.fingerprint() != part.fingerprint:
                    what = "segment is not the one that the first pass read"
                    raise CorruptLogError(what, path=part.path, position=part.start, hint=_CHANGED)

    def limits(self, part: Slice) -> NDArray[np.int64]:
        """The ``limits`` of ``decide`` and ``rewrite`` for a slice."""
        log = self._log
        retain_legacy = part.segment_mtime_ms > log.legacy_delete_horizon_ms
        return np.array([log.first_dirty_offset, log.latest_offset, log.rules.now_ms, retain_legacy], np.int64)

    def marks_from(self, offset: int) -> NDArray[np.uint64]:
        """The marks at ``offset`` and above."""
        return self._marks[np.searchsorted(self._marks, np.uint64((offset + 1) << MARK_SHIFT)) :]

    def _block(
        self, block: Block, decoder: Decoder, limits: NDArray[np.int64], path: str
    ) -> Iterator[tuple[list[Chunk], NDArray[np.void]]]:
        actions, verdicts = self.decide(block, limits)
        _check_batches(block, actions, path)
        for decoded in decoder.decode(block, actions == REWRITE):
            yield from self.rows(block, decoded, actions, verdicts, limits, path)

    def decide(self, block: Block, limits: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """What becomes of each batch of a part that ``Decoder.modern`` gave: actions and verdicts, uint8."""
        rows = block.rows
        verdicts = self._log.rules.verdicts(rows)
        actions = np.empty(len(rows), np.uint8)
        marks = self.marks_from(int(rows["base_offset"][0]))
        self._counters[TOMBSTONES_REMOVED] += decide(rows, verdicts, marks, limits, actions)
        return actions, verdicts

    def rows(
        self,
        block: Block,
        decoded: Decoded,
        all_actions: NDArray[np.uint8],
        all_verdicts: NDArray[np.uint8],
        limits: NDArray[np.int64],
        path: str,
    ) -> Iterator[tuple[list[Chunk], NDArray[np.void]]]:
        """The output of decoded batches: chunks of bytes and an ``OUT_ROW`` a batch; each pair is valid until the next.

        :param all_actions: of all batches of ``block``, as ``decide`` gave them; ``all_verdicts`` likewise
        """
        rows, first = decoded.rows, decoded.first_row
        actions, verdicts = all_actions[first : first + len(rows)], all_verdicts[first : first + len(rows)]
        horizon = self._log.rules.now_ms + self._log.delete_retention_ms
        at = 0
        while at < len(rows):
            out_rows = np.empty(len(rows) - at, OUT_ROW)
            marks = self.marks_from(int(rows["base_offset"][at]))
            next_at, n, used, error = rewrite(
                block.raw, decoded.scratch, rows, decoded.spans, actions, verdicts, marks, limits, horizon, at,
                block.position, self._out, out_rows, self._kept, self._counters,
            )  # fmt: skip
            if error and error != BAD_NAMES:
                raise _failure(error, path, int(rows[next_at]["position"]))
            if n:
                yield self._output(block.raw, out_rows[:n])
            if error:
                mended = _mended(block, decoded, next_at, path)
                yield from self.rows(block, mended, all_actions, all_verdicts, limits, path)
                next_at += 1
            elif next_at == at:
                check_count(decoded, at, path)
                self._grow(decoded, at)
            at = next_at

    def _grow(self, decoded: Decoded, at: int) -> None:
        """Make the buffers large enough for one row."""
        count, (start, end) = int(decoded.rows[at]["count"]), decoded.spans[at, :2].tolist()
        self._out = np.empty(max(len(self._out), 61 + end - start + RECORD_GROWTH * count), np.uint8)
        self._kept = np.empty((max(len(self._kept), count), _KEPT_COLUMNS), np.int64)

    def _output(self, raw: NDArray[np.uint8], out_rows: NDArray[np.void]) -> tuple[list[Chunk], NDArray[np.void]]:
        """The bytes of ``out_rows`` as few chunks, in order; compression happens here."""
        source, start, size = out_rows["source"], out_rows["start"], out_rows["size"]
        end = start + size
        starts_run = np.ones(len(out_rows), np.bool_)
        starts_run[1:] = (source[1:] != source[:-1]) | (start[1:] != end[:-1]) | (source[1:] == TO_COMPRESS)
        first = np.flatnonzero(starts_run)
        last = np.append(first[1:], len(out_rows)) - 1
        buffers = {IN_BLOCK: memoryview(raw), BUILT: memoryview(self._out), TO_COMPRESS: memoryview(self._out)}
        chunks: list[Chunk] = []
        runs = zip(first.tolist(), source[first].tolist(), start[first].tolist(), end[last].tolist(), strict=True)
        for row, kind, run_start, run_end in runs:
            plain = buffers[kind][run_start:run_end]
            if kind == TO_COMPRESS:
                batch = seal_compressed(plain)
                size[row] = len(batch)
                chunks.append(batch)
            else:
                chunks.append(plain)
        self._counters[BYTES_KEPT] += int(size.sum())
        return chunks, out_rows


def _check_batches(block: Block, actions: NDArray[np.uint8], path: str) -> None:
    """Hold the batches of magic 2 that are kept or rewritten against their checksums, once more: what pass 1 read may not be
    what this pass reads, and a rewritten batch gets a checksum of its own.

    :raises CorruptLogError: one fails its CRC
    """
    rows = block.rows
    if rows["magic"][0] < V2_MAGIC:
        return
    bad = first_bad_crc(block.raw, block.position, rows, actions != DROP)
    if bad < len(rows):
        raise CorruptLogError("batch fails its CRC", path=path, position=int(rows["position"][bad]), hint=_CHANGED)


def _check_messages(block: Block, path: str) -> None:
    """The same for messages of magic 0 and 1, all of a block.

    :raises CorruptLogError: one fails its CRC
    """
    if (block.rows["magic"] < V2_MAGIC).any():
        found = scan_batches(block.raw, block.position, check_crc=True)
        if found.error is not None:
            raise CorruptLogError(found.error, path=path, position=found.error_position, hint=_CHANGED)


def _mended(block: Block, decoded: Decoded, at: int, path: str) -> Decoded:
    """One row of ``decoded`` by itself, its header names as Kafka would write them."""
    start, end, in_scratch = decoded.spans[at].tolist()
    rows = decoded.rows[at : at + 1]
    records = memoryview(decoded.scratch if in_scratch else block.raw)[start:end]
    try:
        names = repair_header_names(records, int(rows["count"][0]))
    except FormatError as error:
        raise CorruptLogError(error.what, path=path, position=int(rows["position"][0]), hint="restore this segment") from None
    mended = np.frombuffer(bytearray(names), np.uint8)
    return Decoded(decoded.first_row + at, rows, np.array([[0, len(mended), 1]], np.int64), mended)


def _failure(error: int, path: str, position: int) -> CompactionError:
    if error in REWRITE_ERRORS:
        return UnsupportedLogError(REWRITE_ERRORS[error], path=path, position=position, hint="Kafka's cleaner refuses it too")
    return CorruptLogError(RECORD_ERRORS[error], path=path, position=position, hint="restore this segment")


def join_parts(output: GroupOutput, log: CleanContext, parts: Sequence[PartResult]) -> PartResult:
    """Join the parts of one group, in order, to a complete segment. The swap's clean-up removes the parts."""
    files, stem = log.files, (log.directory, output.base_offset, new_suffix())
    try:
        with SegmentWriter(files, stem, index_interval_bytes=log.index_interval_bytes, like=output.like) as segment:
            for part in parts:
                paths = part_paths(log.directory, output.base_offset, part.number, part.suffix or "")
                segment.append_part(paths, part.written)
            written = segment.close(output.mtime_ms, output.aborted_txns)
    except Exception as error:
        failure = of_log(error, output.like)
        return PartResult(output.log, output.group, 0, CleanStats(), None, str(failure))
    return PartResult(output.log, output.group, 0, CleanStats(), stem[2], written=written)
