"""Writes the files of an output segment: its batches, then its indexes, all flushed to the disk.

Mirrors ``LogSegment.append``, ``onBecomeInactiveSegment`` and ``flush``.

File names end in a suffix that no other attempt uses (``.clean.<token>``); only the driver renames them. If several tasks write
one segment, each writes an output part: its batches (``.part``) and their ``OUT_ROW`` table (``.rows``). One task joins the
parts. The writer records the size and the content hash of every file. In an object store a file appears when it is closed; the
store sets mode, owner and mtime.

Written and copied segments are compared with the bytes that the device returns, before anything depends on them. A thread reads
behind the writer, a block at a time, which leaves little to read at the end. Small outputs are read when they are complete. A
segment's log is checked against its size and hash, and against its own checksums and offsets: these also find a fault in the
memory from which the hash was computed. An output that differs fails its log; the sources are unchanged.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType

import numpy as np
import xxhash
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, StorageError, UnsupportedLogError
from compaction.files.contents import (
    READ_BYTES,
    FileDigest,
    borrow_buffer,
    find_mismatch,
    read_back_error,
    read_device_blocks,
    read_range,
    return_buffer,
    verify_file,
)
from compaction.files.durable import DurableSteps, content_of
from compaction.files.filesystem import (
    Chunk,
    DiskFileSystem,
    FileRange,
    FileSystem,
    Output,
    ReadableFileSystem,
    join,
    storage_of,
)
from compaction.files.segment_file import SegmentFile
from compaction.formats.indexes import (
    MAX_RELATIVE_OFFSET,
    OFFSET_INDEX,
    OFFSET_ROW,
    TIME_INDEX,
    TIME_ROW,
    TXN_ROW,
    write_txn_index,
)
from compaction.kernels.batches import LARGEST_SIZE, scan_batches
from compaction.kernels.rewrite import LAST_TIME_ENTRY, MAX_TIMESTAMP, MAX_TIMESTAMP_OFFSET, POSITION, index_entries, new_state
from compaction.kernels.tables import BATCH_ROW, OUT_ROW
from compaction.names import CLEAN, INDEX, LOG, TIMEINDEX, TXNINDEX, segment_file
from compaction.rules.log_view import AbortedTxn

_ROWS = 1 << 14
_ROWS_AT_ONCE = 1 << 16
_BATCH_END_BYTES = 128 << 10
#: the kinds of a part's files
PART, ROWS = ".part", ".rows"
#: The reader's distance behind the writer, and the least size (twice this) that is read in parallel. It must exceed the
#: writer's two buffers (``compaction.files.local.LocalOutput``): bytes still in these are not in the file yet.
_FOLLOW_BYTES = 8 << 20


class SegmentCheck:
    """Checks a log file block by block: checksums, offsets, and the hashes of its parts.

    :param path: for errors
    :param parts: of a joined file; the caller may append a part until its first byte is fed
    """

    def __init__(self, path: str, parts: Sequence[FileDigest] = ()) -> None:
        self._path, self._parts = path, parts
        self._hash, self._part, self._part_bytes, self._number = xxhash.xxh3_128(), xxhash.xxh3_128(), 0, 0
        self._rest = np.empty(0, np.uint8)
        self._rows = np.empty(_ROWS, BATCH_ROW)
        self._last_offset = -1
        self.size, self.batches = 0, 0

    def feed(self, data: NDArray[np.uint8]) -> None:
        """Check the next bytes, uint8[n].

        :raises StorageError: they differ from what was written
        """
        self._hash.update(data)
        if self._parts:
            self._feed_parts(data)
        start, rest = self.size, len(self._rest)
        self.size += len(data)
        if rest:
            # most batches end within this many bytes: the rest need not be copied
            taken = self._scan(np.concatenate([self._rest, data[:_BATCH_END_BYTES]]), start - rest)
            data = data[taken - rest :] if taken > rest else np.concatenate([self._rest, data])
        taken = self._scan(data, self.size - len(data))
        self._rest = data[taken:].copy()

    def _scan(self, data: NDArray[np.uint8], position: int) -> int:
        """Check the complete batches of ``data``, which starts at a byte position of the file; returns their bytes."""
        taken = 0
        while taken < len(data):
            scan = scan_batches(data[taken:], position + taken, check_crc=True, rows=self._rows)
            if len(scan.rows):
                self._check_offsets(scan.rows)
            if scan.error is not None:
                raise read_back_error(self._path, f"{scan.error} at byte {scan.error_position}")
            taken += scan.consumed
            if not len(scan.rows):
                break
        return taken

    def _check_offsets(self, rows: NDArray[np.void]) -> None:
        floors = np.concatenate([[self._last_offset], rows["last_offset"][:-1]])
        if (rows["base_offset"] <= floors).any() or (rows["last_offset"] < rows["base_offset"]).any():
            raise read_back_error(self._path, "offsets run backwards")
        self._last_offset = int(rows["last_offset"][-1])
        self.batches += len(rows)

    def _feed_parts(self, data: NDArray[np.uint8]) -> None:
        position = 0
        while position < len(data) and self._number < len(self._parts):
            remaining = self._parts[self._number].size - self._part_bytes
            taken = data[position : position + remaining]
            self._part.update(taken)
            self._part_bytes, position = self._part_bytes + len(taken), position + len(taken)
            self._end_parts()

    def _end_parts(self) -> None:
        while self._number < len(self._parts) and self._part_bytes == self._parts[self._number].size:
            if self._part.hexdigest() != self._parts[self._number].digest:
                raise read_back_error(self._path, "other bytes than were written")
            self._part, self._part_bytes, self._number = xxhash.xxh3_128(), 0, self._number + 1

    def end(self, size: int, batches: int, digest: str | None) -> FileDigest:
        """Check the file as a whole; returns its size and hash.

        :param digest: of the whole file, ``None`` for a joined one
        :raises StorageError: it differs from what was written
        """
        self._end_parts()
        if self.size != size or len(self._rest) or self._number < len(self._parts):
            raise read_back_error(self._path, f"{self.size} bytes, {size} were written")
        if self.batches != batches:
            raise read_back_error(self._path, f"{self.batches} batches, {batches} were written")
        hashed = self._hash.hexdigest()
        if digest is not None and digest != hashed:
            raise read_back_error(self._path, "other bytes than were written")
        return FileDigest(LOG, size, hashed)


def copy_verified(source: ReadableFileSystem, target: FileSystem, extent: FileRange, path: str, valid_bytes: int = 0) -> str:
    """Copy a byte range into a new file, durable on return, and compare what the device returns with the source; its hash.

    :param valid_bytes: the first bytes of the range that are batches, whose checksums must match
    :raises CorruptLogError: a batch is damaged
    :raises StorageError: one of the file systems refused, or returns other bytes than before
    """
    target.copy(extent.path, path, extent.start, extent.size)
    target.fsync(path)
    content = xxhash.xxh3_128()
    if valid_bytes:
        with SegmentFile(source, extent.path).reader(extent.start, extent.start + valid_bytes) as reader:
            for block in reader.blocks(check_crc=True):
                content.update(block.raw)
    for data in read_range(source, FileRange(extent.path, extent.start + valid_bytes, extent.size - valid_bytes)):
        content.update(data)
    verify_file(target, path, FileDigest("", extent.size, content.hexdigest()))
    return content.hexdigest()


def copy_recorded(target: FileSystem, source: FileRange, path: str, digest: str) -> None:
    """Copy a file of an earlier output into a new file, durable on return. If its bytes are moved, the device must return the
    recorded content.

    :param digest: its recorded content hash
    :raises CorruptLogError: it has other content
    :raises StorageError: one of the file systems refused
    """
    if target.copy_inside(source.path, path):
        return
    target.copy(source.path, path)
    target.fsync(path)
    problem = find_mismatch(target, path, FileDigest("", source.size, digest))
    if problem is not None:
        hint = "check the disk; the source is unchanged"
        raise CorruptLogError(f"copy of this file is not what its run recorded: {problem}", path=source.path, hint=hint)


class ReadBack:
    """The check of one log file while it is written.

    :param parts: of a joined file; the writer appends to this list before it appends the bytes to the file
    """

    def __init__(self, files: ReadableFileSystem, path: str, parts: Sequence[FileDigest]) -> None:
        self._files, self._path = files, path
        self._check = SegmentCheck(path, parts)
        self._turn = threading.Condition()
        self._ready_bytes = 0
        self._ended = False
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def advance(self, written_bytes: int) -> None:
        """The writer has passed ``written_bytes`` bytes to the file system."""
        if self._thread is None:
            if written_bytes < 2 * _FOLLOW_BYTES or storage_of(self._path).appears_whole:
                return
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()
        with self._turn:
            self._ready_bytes = max(0, written_bytes - _FOLLOW_BYTES) // READ_BYTES * READ_BYTES
            self._turn.notify()

    def end(self, size: int, batches: int, digest: str | None) -> FileDigest:
        """Check the rest of the file, which is complete and synced. See ``SegmentCheck.end``.

        :raises StorageError: the device returns other bytes than were written, or cannot be read
        """
        if self._thread is None:
            for block in read_device_blocks(self._files, self._path):
                self._check.feed(block)
        else:
            self._stop(size)
            if self._error is not None:
                raise self._error
        return self._check.end(size, batches, digest)

    def abandon(self) -> None:
        """Stop: the file will not be completed."""
        if self._thread is not None:
            self._error = self._error or RuntimeError("abandoned")
            self._stop(0)

    def _stop(self, size: int) -> None:
        with self._turn:
            self._ready_bytes, self._ended = size, True
            self._turn.notify()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        try:
            source = self._files.open(self._path, 0, 2**63 - 1, uncached=True)
            buffer, position = borrow_buffer(), 0
            try:
                while self._wait_for(position) and (n := source.pread(memoryview(buffer), position)):
                    self._check.feed(np.asarray(buffer[:n]))
                    position += n
            finally:
                return_buffer(buffer)
                source.close()
        except Exception as error:
            self._error = self._error or error

    def _wait_for(self, position: int) -> bool:
        """Wait until the file can be read at ``position``; false after an error."""
        with self._turn:
            self._turn.wait_for(lambda: self._ended or position < self._ready_bytes)
            return self._error is None and (position < self._ready_bytes or self._ended)


def new_suffix() -> str:
    return f"{CLEAN}.{uuid.uuid4().hex}"


def part_paths(directory: str, base_offset: int, number: int, suffix: str) -> tuple[str, str]:
    """The files of an output part: its batches and their rows."""
    stem = join(directory, segment_file(base_offset, LOG, f"{suffix}.{number}"))
    return stem + PART, stem + ROWS


class HashedOutput:
    """A file being written, with the size and hash of its content.

    :raises StorageError: the file system refuses
    """

    def __init__(self, files: DiskFileSystem, path: str, like: str, *, write_behind: bool = False) -> None:
        self.output: Output = files.create(path, like, write_behind=write_behind)
        self.size, self._hash = 0, xxhash.xxh3_128()

    def write(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self.size += len(chunk)
            self._hash.update(chunk)
        self.output.write(chunks)

    def written(self, kind: str) -> FileDigest:
        """Size and hash of the bytes written so far."""
        return FileDigest(kind, self.size, self._hash.hexdigest())


class PartWriter:
    """Writes one part of an output segment. Its files are not synced: they are temporary."""

    def __init__(self, files: DiskFileSystem, part: tuple[str, str], like: str) -> None:
        self._batches = HashedOutput(files, part[0], like)
        try:
            self._rows = HashedOutput(files, part[1], like)
        except StorageError:
            self._batches.output.remove()
            raise

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file in (self._batches.output, self._rows.output):
            if error is None:
                file.abandon()
            else:
                file.remove()

    def append(self, chunks: Sequence[Chunk], out_rows: NDArray[np.void]) -> None:
        self._batches.write(chunks)
        self._rows.write([out_rows.tobytes()])

    def close(self) -> tuple[FileDigest, ...]:
        """Close the files; returns their sizes and hashes, batches first."""
        self._batches.output.close(sync=False)
        self._rows.output.close(sync=False)
        return self._batches.written(PART), self._rows.written(ROWS)


class IndexBuilder:
    """Collects the offset and time index entries of one segment from its batches, in order and without gaps."""

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self._base_offset, self._interval_bytes = base_offset, interval_bytes
        self._state = new_state(base_offset)
        self._offsets = [np.empty(0, OFFSET_ROW)]
        self._times = [np.empty(0, TIME_ROW)]

    def add(self, rows: NDArray[np.void]) -> int:
        """Add the next batches, ``OUT_ROW[n]`` or ``BATCH_ROW[n]``; returns the size of all so far."""
        out_rows = rows
        if rows.dtype != OUT_ROW:
            out_rows = np.zeros(len(rows), OUT_ROW)
            for name in ("last_offset", "max_timestamp", "size"):
                out_rows[name] = rows[name]
        offsets, times = np.empty(len(rows), OFFSET_ROW), np.empty(len(rows), TIME_ROW)
        n, m = index_entries(out_rows, self._interval_bytes, self._state, offsets, times)
        self._offsets.append(offsets[:n].copy())
        self._times.append(times[:m].copy())
        return int(self._state[POSITION])

    def finish(self) -> tuple[bytes, bytes]:
        """The bytes of the offset index and of the time index."""
        if self._state[MAX_TIMESTAMP] > self._state[LAST_TIME_ENTRY]:
            last = np.array([(self._state[MAX_TIMESTAMP], self._state[MAX_TIMESTAMP_OFFSET])], TIME_ROW)
            self._times.append(last)
        offsets, times = np.concatenate(self._offsets), np.concatenate(self._times)
        return OFFSET_INDEX.write(offsets, self._base_offset), TIME_INDEX.write(times, self._base_offset)


class SegmentIndexes:
    """The indexes of one output segment, built from its batches.

    :param like: a source segment's log file, for errors
    """

    def __init__(self, base_offset: int, index_interval_bytes: int, like: str) -> None:
        self._base_offset, self._like = base_offset, like
        self._builder = IndexBuilder(base_offset, index_interval_bytes)
        self.batches = 0

    def append(self, out_rows: NDArray[np.void]) -> None:
        """The segment's next batches, ``OUT_ROW[n]``.

        :raises CorruptLogError: an offset is too far from the base offset
        :raises UnsupportedLogError: the segment would be larger than a broker opens (``FileRecords.append``)
        """
        self.batches += len(out_rows)
        highest = int(out_rows["last_offset"].max(initial=self._base_offset))
        if highest - self._base_offset > MAX_RELATIVE_OFFSET:
            message = f"batch ends at offset {highest}, too far for an index with base offset {self._base_offset}"
            raise CorruptLogError(message, path=self._like, hint="restore this segment")
        size = self._builder.add(out_rows)
        if size > LARGEST_SIZE:
            # Kafka's cleaner gives up on this log, too, until KAFKA-20036, which divides its output
            message = f"cleaned segment {self._base_offset} would have {size} bytes, more than a broker opens ({LARGEST_SIZE})"
            raise UnsupportedLogError(message, path=self._like, hint="clean it with a smaller segment.bytes")

    def files(self, aborted_txns: Sequence[AbortedTxn]) -> Iterator[tuple[str, bytes]]:
        """Kind and content of each index; a transaction index only if there are aborted transactions."""
        yield from zip((INDEX, TIMEINDEX), self._builder.finish(), strict=True)
        if aborted_txns:
            yield TXNINDEX, write_txn_index(np.array([tuple(txn) for txn in aborted_txns], TXN_ROW))


class SegmentWriter:
    """Writes one output segment.

    :param stem: directory, base offset and suffix of the files
    :param like: a source segment's log file, whose mode and owner the files take
    :raises StorageError: the file system refuses
    """

    def __init__(self, files: DiskFileSystem, stem: tuple[str, int, str], *, index_interval_bytes: int, like: str) -> None:
        self._fs = files
        self._directory, self._base_offset, self._suffix = stem
        self._like = like
        self._log = HashedOutput(files, self._path(LOG), like, write_behind=True)
        self._files = {LOG: self._log}
        self._parts: list[FileDigest] = []
        self._read_back = ReadBack(files, self._path(LOG), self._parts)
        self._indexes = SegmentIndexes(self._base_offset, index_interval_bytes, like)

    def _path(self, kind: str) -> str:
        return join(self._directory, segment_file(self._base_offset, kind, self._suffix))

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._read_back.abandon()
        for file in self._files.values():
            if error is None:
                file.output.abandon()
            else:
                file.output.remove()

    def append(self, chunks: Sequence[Chunk], out_rows: NDArray[np.void]) -> None:
        self._log.write(chunks)
        self._indexes.append(out_rows)
        self._read_back.advance(self._log.size)

    def append_part(self, paths: tuple[str, str], written: tuple[FileDigest, ...]) -> None:
        """Append the batches of a part; they are compared with ``written`` when the segment is verified.

        :raises StorageError: the part's rows differ from those that were written
        """
        batches, rows = written
        self._parts.append(batches)
        for data in read_range(self._fs, FileRange(paths[0], 0, batches.size)):
            self._log.output.write([data])
        table = xxhash.xxh3_128()
        for data in read_range(self._fs, FileRange(paths[1], 0, rows.size), _ROWS_AT_ONCE * OUT_ROW.itemsize):
            table.update(data)
            if len(data) % OUT_ROW.itemsize == 0:
                self._indexes.append(np.frombuffer(data, OUT_ROW))
        if table.hexdigest() != rows.digest:
            raise read_back_error(paths[1], "other bytes than were written")
        self._read_back.advance(sum(part.size for part in self._parts))

    def close(self, mtime_ms: int, aborted_txns: Sequence[AbortedTxn]) -> DurableSteps[tuple[FileDigest, ...]]:
        """Writes the indexes, flushes all files with this mtime and reads them back; returns their sizes and hashes, log first.

        :raises StorageError: the file system refused, or the device returns other bytes than were written
        """
        for kind, data in self._indexes.files(aborted_txns):
            self._files[kind] = HashedOutput(self._fs, self._path(kind), self._like)
            self._files[kind].write([data])
        for file in self._files.values():
            file.output.start_writeback()
        for file in self._files.values():
            file.output.close(sync=False, mtime_ns=mtime_ms * 1_000_000)
        yield content_of(*map(self._path, self._files))
        # as the file system stores them, possibly rounded; a store has none
        has_times = storage_of(self._directory).attributes
        stats = {kind: self._fs.stat(self._path(kind)) if has_times else None for kind in self._files}
        times = {kind: 0 if stat is None else stat.mtime_ns for kind, stat in stats.items()}
        size = sum(part.size for part in self._parts) or self._log.size
        log = self._read_back.end(size, self._indexes.batches, None if self._parts else self._log.written(LOG).digest)
        others = [file.written(kind) for kind, file in self._files.items() if kind != LOG]
        for written in others:
            verify_file(self._fs, self._path(written.kind), written)
        return tuple(written._replace(mtime_ns=times[written.kind]) for written in (log, *others))
