"""The second pass over one output part: copies, drops or rewrites each batch, and writes the result.

Mirrors ``Cleaner.cleanInto`` and ``MemoryRecords.filterTo``. A batch that loses no record is not copied in
memory; a batch that loses all records is not decompressed.

Detects an output that equals its only source: it need not be written.

Kafka rewrites such a segment with the same bytes and modification time. If little of a log is dirty, these are most of the
clean segments. The indexes must also equal those that cleaning would write. Each batch is read, and its CRC verified, as for
a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from compaction.config.entries import to_long
from compaction.errors import CompactionError, LogError, UnsupportedLogError, as_log_error
from compaction.files.contents import FileDigest
from compaction.files.durable import DurableSteps, run_alone, run_in_step
from compaction.files.filesystem import Chunk, join
from compaction.files.segment_file import Block
from compaction.formats.codecs import Codec, compress
from compaction.formats.java_text import java_text
from compaction.formats.primitives import FormatError
from compaction.formats.record_batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    LENGTH_AT,
    LOG_OVERHEAD_BYTES,
    Header,
    Record,
    RecordBase,
    decode_records,
    encode_records,
)
from compaction.kernels.retention import BAD_NAMES, Limits, decide
from compaction.kernels.rewrite import (
    BYTES_KEPT,
    COUNTERS,
    RECORD_GROWTH,
    REWRITE_ERRORS,
    TOMBSTONES_REMOVED,
    rewrite,
)
from compaction.kernels.tables import BUILT, IN_BLOCK, OFFSET_SHIFT, OUT_ROW, REWRITE, TO_COMPRESS, WRAPPER
from compaction.names import INDEX, LOG, TIMEINDEX, TXNINDEX, segment_file
from compaction.output.segment_writer import PartWriter, SegmentIndexes, SegmentWriter, new_suffix, part_paths
from compaction.passes.decoder import (
    Decoded,
    check_count,
    check_crcs,
    check_record_sizes,
    corrupt_batch,
    corrupt_record,
    read_by_kafka,
)
from compaction.passes.merge import Survivors, accepted_survivors
from compaction.passes.scan import Emitted, finish, scan
from compaction.passes.tasks import CleanContext, CleanStats, GroupOutput, OutputPart, Packed, PartResult, Slice
from compaction.passes.throttle import Throttle

#: smaller segments are written without a comparison, which would take as long
_MIN_BYTES = 1 << 20
_OUT_BYTES = 4 << 20
_KEPT_COLUMNS = 6
_KEPT_ROWS = 1 << 12
#: record fields relative to it are those of the batch
_BASE = RecordBase(offset=0, timestamp=0)


class DiffersError(LogError):
    """The output is not the source. An error of the log, so that a scan raises it as it is; no user sees it."""

    def __init__(self) -> None:
        super().__init__("output differs from its source")


class SourceComparison:
    """Compares the output of a part with the segment that it reads.

    :param source: the path of that segment
    """

    def __init__(self, part: OutputPart, log: CleanContext, source: str) -> None:
        self._part, self._log, self._source = part, log, source
        self._indexes = SegmentIndexes(part.output.base_offset, log.index_interval_bytes, source)
        self._size = 0

    def append(self, chunks: Sequence[Chunk], out_rows: NDArray[np.void]) -> None:
        """The part's next output.

        :raises DiffersError: a batch was rewritten, or one before the last of these dropped
        """
        start, size = out_rows["start"], out_rows["size"]
        if (out_rows["source"] != IN_BLOCK).any() or (start[1:] != start[:-1] + size[:-1]).any():
            raise DiffersError
        self._indexes.append(out_rows)
        self._size += int(size.sum())

    def finish(self) -> None:
        """:raises DiffersError: a batch was dropped, or cleaning would write other indexes"""
        if self._size != self._part.size_bytes:
            raise DiffersError
        expected = dict(self._indexes.files(self._part.output.aborted_txns))
        for kind in (INDEX, TIMEINDEX, TXNINDEX):
            path = join(self._log.directory, segment_file(self._part.output.base_offset, kind))
            content = self._log.files.read_bytes(path) if self._log.files.stat(path) is not None else None
            if content != expected.get(kind):
                raise DiffersError


#: a group's output, its log's context and the results of its parts
Unjoined = tuple[GroupOutput, CleanContext, list[PartResult]]


#: appends chunks of consecutive batches, with one ``OUT_ROW`` per batch, to an output file
Append = Callable[[Sequence[Chunk], NDArray[np.void]], object]


class Decided(NamedTuple):
    """The actions and verdicts (uint8[r]) of a run of batches, and the ``limits`` of their slice."""

    actions: NDArray[np.uint8]
    verdicts: NDArray[np.uint8]
    limits: Limits


def clean_parts(
    parts: Sequence[tuple[OutputPart, Sequence[Survivors]]], logs: Mapping[int, CleanContext], *, dry_run: bool
) -> list[PartResult]:
    """Write some output parts in step, or only count in a dry run.

    :param parts: with their survivor entries; see ``clean_part``
    """
    contexts = [logs[part.output.log] for part, _ in parts]
    works = [clean_part(part, log, packed, dry_run=dry_run) for (part, packed), log in zip(parts, contexts, strict=True)]
    return run_in_step(contexts[0].files, [log.directory for log in contexts], works)


def clean_part(part: OutputPart, log: CleanContext, packed: Sequence[Survivors], *, dry_run: bool) -> DurableSteps[PartResult]:
    """Writes one output part, or only counts in a dry run. An error is returned in the result.

    :param packed: the part's survivor entries from any number of shards, each uint64, or why a shard was refused
    """
    output = part.output
    survivors = accepted_survivors(packed)
    if isinstance(survivors, LogError):
        return PartResult(output.log, output.group, part.number, error=str(survivors))
    rewriter = Rewriter(log, survivors)
    suffix = None if dry_run else new_suffix()
    try:
        if _is_unchanged(part, log, rewriter):
            return _result(part, rewriter, None, (), unchanged=True)
        written = yield from _write(part, log, rewriter, suffix)
    except Exception as error:
        failure = as_log_error(error, *rewriter.location)
        return PartResult(output.log, output.group, part.number, error=str(failure))
    return _result(part, rewriter, suffix, written)


def _result(
    part: OutputPart, rewriter: Rewriter, suffix: str | None, written: tuple[FileDigest, ...], *, unchanged: bool = False
) -> PartResult:
    return PartResult(
        part.output.log, part.output.group, part.number, rewriter.stats(), suffix,
        batches=rewriter.batches, written=written, unchanged=unchanged, seconds=rewriter.seconds,
    )  # fmt: skip


def _is_unchanged(part: OutputPart, log: CleanContext, rewriter: Rewriter) -> bool:
    """Whether the output equals the one segment that the part reads as a whole, and would replace under the same name."""
    source = join(log.directory, segment_file(part.output.base_offset, LOG))
    if not part.complete or part.size_bytes < _MIN_BYTES or any(slice_.path != source for slice_ in part.slices):
        return False
    status = log.files.stat(source)
    if status is None or status.size != part.size_bytes:
        return False
    comparison = SourceComparison(part, log, source)
    try:
        rewriter.run(part.slices, comparison.append)
        comparison.finish()
    except DiffersError:
        rewriter.restart()
        return False
    return True


def _write(part: OutputPart, log: CleanContext, rewriter: Rewriter, suffix: str | None) -> DurableSteps[tuple[FileDigest, ...]]:
    """Writes a verified segment, or a part of one, or nothing in a dry run (without ``suffix``)."""
    output, files = part.output, log.files
    if suffix is None:
        rewriter.run(part.slices, None)
        return ()
    if not part.complete:
        paths = part_paths(log.directory, output.base_offset, part.number, suffix)
        with PartWriter(files, paths, output.like) as writer:
            rewriter.run(part.slices, writer.append)
            return writer.close()
    stem = log.directory, output.base_offset, suffix
    with SegmentWriter(files, stem, index_interval_bytes=log.index_interval_bytes, like=output.like) as segment:
        rewriter.run(part.slices, segment.append)
        rewriter.release()
        rewriter.location = log.directory, None
        written = yield from segment.close(output.mtime_ms, output.aborted_txns)
        return written


class Rewriter:
    """Cleans the batches of one output part: a sink of its slices, one after the other, with reused buffers.

    :param packed: arrays of survivor entries, uint64 in any order
    """

    #: of the current slice and block
    _limits: Limits
    decided: Decided

    def __init__(self, log: CleanContext, packed: Sequence[Packed]) -> None:
        self._log = log
        self._survivors = np.concatenate([np.empty(0, np.uint64), *(np.frombuffer(array, np.uint64) for array in packed)])
        self._survivors.sort()
        #: file and byte position of the current block, for error messages
        self.location: tuple[str, int | None] = (log.directory, None)
        #: batches in the output so far
        self.batches = 0
        #: time that ``run`` took
        self.seconds = 0.0
        self._counters = np.zeros(COUNTERS, np.int64)
        self._out = np.empty(_OUT_BYTES, np.uint8)
        self._kept = np.empty((_KEPT_ROWS, _KEPT_COLUMNS), np.int64)
        self._throttle = Throttle(log.bytes_per_second)
        self._append: Append | None = None

    def restart(self) -> None:
        """Discard the counts of the batches read so far."""
        self.location, self.batches = (self._log.directory, None), 0
        self._counters[:] = 0

    def release(self) -> None:
        """Free the buffers: the part is read, and its files are flushed together with those of others."""
        self._survivors, self._out = np.empty(0, np.uint64), np.empty(0, np.uint8)
        self._kept = np.empty((0, _KEPT_COLUMNS), np.int64)

    def stats(self) -> CleanStats:
        """Counts of the records read and kept so far."""
        return CleanStats(*self._counters.tolist())

    def run(self, slices: Sequence[Slice], append: Append | None) -> None:
        """Clean all slices of the part, in order; only count without ``append``."""
        started_s = self._throttle.now_s()
        self._append = append
        for slice_ in slices:
            self.start(slice_)
            finish(scan(slice_, [self], self._log.files, self._throttle, check_crc=False))
        self.seconds += self._throttle.now_s() - started_s

    def begin(self, block: Block) -> NDArray[np.bool_]:
        self.location = (block.path, block.position)
        selected = self.decide(block)
        check_crcs(block, self.decided.actions)
        return selected

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        self.check_sizes(decoded)
        for chunks, out_rows in self.rewrite(decoded):
            if self._append is not None:
                self._append(chunks, out_rows)
            self.batches += len(out_rows)
            self._throttle.count(int(out_rows["size"].sum()))
        return ()

    def start(self, slice_: Slice) -> None:
        """Begins a slice."""
        log = self._log
        self._limits = Limits(
            first_dirty_offset=log.first_dirty_offset,
            latest_offset=log.latest_offset,
            now_ms=log.rules.now_ms,
            retain_by_mtime=slice_.segment_mtime_ms > log.legacy_delete_horizon_ms,
            mtime_only=log.rules.kafka.mtime_only,
            keep_magic=log.rules.kafka.keeps_magic,
            erases=log.rules.erases,
            erases_values=log.rules.erases_values,
        )

    def survivors_from(self, offset: int) -> NDArray[np.uint64]:
        return self._survivors[np.searchsorted(self._survivors, np.uint64((offset + 1) << OFFSET_SHIFT)) :]

    def decide(self, block: Block) -> NDArray[np.bool_]:
        """Decides about each batch of a run from ``Decoder.as_v2``. Returns bool[r], those to decode."""
        rows, limits = block.rows, self._limits
        verdicts = self._log.rules.verdicts(rows, retain_by_mtime=limits.retain_by_mtime)
        actions = np.empty(len(rows), np.uint8)
        survivors = self.survivors_from(int(rows["base_offset"][0]))
        self._counters[TOMBSTONES_REMOVED] += decide(rows, verdicts, survivors, limits, actions)
        self.decided = Decided(actions, verdicts, limits)
        selected: NDArray[np.bool_] = actions == REWRITE
        if self._log.max_record_bytes is not None:
            selected |= read_by_kafka(rows, verdicts)
        return selected

    def check_sizes(self, decoded: Decoded) -> None:
        """Checks decoded batches against the limit of a record's size, if there is one."""
        if self._log.max_record_bytes is not None:
            check_record_sizes(decoded, self.decided.verdicts, self._log.max_record_bytes)

    def rewrite(self, decoded: Decoded) -> Iterator[tuple[list[Chunk], NDArray[np.void]]]:
        """The output of decoded batches: chunks of bytes and one ``OUT_ROW`` per batch; each pair is valid until the next."""
        block, rows, first = decoded.block, decoded.rows, decoded.first_row
        actions, verdicts = (values[first : first + len(rows)] for values in self.decided[:2])
        horizon = to_long(self._log.rules.now_ms + self._log.delete_retention_ms)
        row = 0
        while row < len(rows):
            out_rows = np.empty(len(rows) - row, OUT_ROW)
            survivors = self.survivors_from(int(rows["base_offset"][row]))
            next_row, n, used, error = rewrite(
                block.raw, decoded.scratch, rows, decoded.spans, actions, verdicts, survivors, self._limits, horizon, row,
                block.position, self._out, out_rows, self._kept, self._counters,
            )  # fmt: skip
            if error and error != BAD_NAMES:
                raise _failure(error, rows[next_row], block.path)
            if n and out_rows["source"][n - 1] == WRAPPER:
                yield from self._rewritten(decoded, out_rows[:n], next_row - 1)
            elif n:
                yield self._output(block.raw, out_rows[:n])
            if error:
                yield from self.rewrite(_repaired(decoded, next_row))
                next_row += 1
            elif next_row == row:
                check_count(decoded, row)
                self._grow(decoded, row)
            row = next_row

    def _rewritten(
        self, decoded: Decoded, out_rows: NDArray[np.void], row: int
    ) -> Iterator[tuple[list[Chunk], NDArray[np.void]]]:
        """The output that ends with the wrapper of magic 0 or 1 in row ``row``, which the kernel has described."""
        if len(out_rows) > 1:
            yield self._output(decoded.block.raw, out_rows[:-1])
        last = out_rows[-1:]
        wrapper = decoded.wrappers[row].filtered(decoded.rows["base_offset"][row] + self._kept[: int(last["start"][0]), 4])
        last["size"] = len(wrapper)
        self._counters[BYTES_KEPT] += len(wrapper)
        yield [wrapper], last

    def _grow(self, decoded: Decoded, row: int) -> None:
        """Enlarge the buffers for one batch."""
        count, (start, end) = int(decoded.rows[row]["count"]), decoded.spans[row, :2].tolist()
        self._out = np.empty(max(len(self._out), HEADER_SIZE + end - start + RECORD_GROWTH * count), np.uint8)
        self._kept = np.empty((max(len(self._kept), count), _KEPT_COLUMNS), np.int64)

    def _output(self, raw: NDArray[np.uint8], out_rows: NDArray[np.void]) -> tuple[list[Chunk], NDArray[np.void]]:
        """The bytes of ``out_rows`` in as few chunks as possible, in order; compresses batches."""
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


def _repaired(decoded: Decoded, row: int) -> Decoded:
    """One row of ``decoded``, with header names as Kafka would write them."""
    start, end, in_scratch = decoded.spans[row].tolist()
    rows = decoded.rows[row : row + 1]
    records = memoryview(decoded.scratch if in_scratch else decoded.block.raw)[start:end]
    try:
        names = repair_header_names(records, int(rows["count"][0]))
    except FormatError as error:
        raise corrupt_batch(error.message, rows[0], decoded.block.path) from None
    repaired = np.frombuffer(bytearray(names), np.uint8)
    spans = np.array([[0, len(repaired), 1]], np.int64)
    return Decoded(decoded.block, decoded.first_row + row, rows, spans, repaired)


def _failure(error: int, row: np.void, path: str) -> CompactionError:
    if error in REWRITE_ERRORS:
        message, hint = REWRITE_ERRORS[error], "Kafka's cleaner refuses it too"
        return UnsupportedLogError(message, path=path, position=int(row["position"]), hint=hint)
    return corrupt_record(error, row, path)


def join_parts(group: Unjoined) -> PartResult:
    """Join the parts of one group, in order, into a complete segment. The swap removes the parts' files."""
    output, log, parts = group
    files, stem = log.files, (log.directory, output.base_offset, new_suffix())
    try:
        with SegmentWriter(files, stem, index_interval_bytes=log.index_interval_bytes, like=output.like) as segment:
            for part in parts:
                paths = part_paths(log.directory, output.base_offset, part.number, part.suffix or "")
                segment.append_part(paths, part.written)
            written = run_alone(files, segment.close(output.mtime_ms, output.aborted_txns))
    except Exception as error:
        return PartResult(output.log, output.group, 0, error=str(as_log_error(error, output.like)))
    return PartResult(output.log, output.group, 0, suffix=stem[2], written=written)


def seal_compressed(plain: memoryview) -> bytes:
    """The batch ``plain``, as the rewrite kernel has built it, with its records compressed by the codec in its header."""
    codec = Codec.of(plain[ATTRIBUTES_AT + 1])
    payload = compress(codec, plain[HEADER_SIZE:])
    batch = bytearray(plain[:HEADER_SIZE])
    batch[LENGTH_AT : LENGTH_AT + 4] = (HEADER_SIZE + len(payload) - LOG_OVERHEAD_BYTES).to_bytes(4, "big")
    crc = google_crc32c.extend(google_crc32c.value(bytes(batch[ATTRIBUTES_AT:])), payload)
    batch[CRC_AT : CRC_AT + 4] = crc.to_bytes(4, "big")
    return bytes(batch) + payload


def repair_header_names(records: memoryview, count: int) -> bytes:
    """The ``count`` records of a v2 batch, uncompressed, with header names as Kafka would write them: it decodes names to text,
    so it rewrites a batch with U+FFFD in place of malformed UTF-8. Batches that are copied unchanged keep their bytes.

    Mirrors ``DefaultRecord.readHeaders`` and ``writeTo``. As in Java's decoder, each maximal malformed run
    becomes one U+FFFD. Python's decoder agrees, except that Java replaces a surrogate, complete or without its last byte, as
    one run.
    """
    return encode_records((_with_repaired_names(record) for record in decode_records(records, count, _BASE)), _BASE)


def _with_repaired_names(record: Record) -> Record:
    headers = (Header(java_text(name.encode("utf-8", "surrogateescape")), value) for name, value in record.headers)
    return record._replace(headers=tuple(headers))
