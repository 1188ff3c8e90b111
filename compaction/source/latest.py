"""The newest record of each key of a log, by two passes as in a cleaning: pass 1 maps key hashes to offsets, pass 2 reads the
survivors.

A record belongs to the view if it is in the bounds of the read, has a key, and is neither aborted nor a control record; of
these the one with the highest offset is the newest of its key. Pass 1 also counts the records of each key. A table that exceeds
its memory is spooled by shard of the hash, and survivors are spooled by slice: memory is bounded for any number of keys.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.errors import CorruptLogError, LogError
from compaction.files.filesystem import storage_errors
from compaction.kernels.keys import HashSecret
from compaction.kernels.slot_table import NEWEST, WORDS, SlotTable
from compaction.kernels.tables import OFFSET_SHIFT, TOMBSTONE
from compaction.passes.decoder import Decoded
from compaction.passes.scan import Emitted, Entries, finish, scan
from compaction.passes.tasks import MapContext, Packed, Slice
from compaction.passes.throttle import UNLIMITED, Throttle
from compaction.source.read_columns import ReadSpec, Records, read_columns

#: memory of a task's table, and of each spool
TABLE_BYTES = 256 << 20
_SLOT_BYTES, _WORD_BYTES = 48, 8
_MAX_SHARDS = 4096
_SURVIVOR_WORDS = 2


class SliceRange(NamedTuple):
    """The batches in bytes ``[start, end)`` of a file, all with offsets in ``[first_offset, end_offset)``; ``segment`` is the
    segment's base offset."""

    path: str
    start: int
    end: int
    segment: int
    first_offset: int
    end_offset: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def read_latest(
    slices: Sequence[SliceRange], spec: ReadSpec, *, tombstones: bool
) -> Iterator[tuple[SliceRange, Records, NDArray[np.bool_], NDArray[np.int64]]]:
    """The newest record of each key of one log, in the order of offsets: records of some batches, those of them that are the
    newest of their keys (bool[n]), and by record the number of older ones (int64[n], undefined for others).

    :param slices: all of the log's that the bounds of ``spec`` select, in order, at least one
    :param tombstones: whether to read those without a value, too
    :raises CorruptLogError: a batch or record is malformed
    """
    with closing(PartSpool(_SURVIVOR_WORDS, len(slices), TABLE_BYTES)) as survivors:
        _find_survivors(slices, spec, survivors, tombstones=tombstones)
        for number, byte_range in enumerate(slices):
            rows = survivors.read(number)
            if not len(rows):
                continue
            order = np.argsort(rows[:, 0])
            offsets, counts = rows[order, 0].astype(np.int64), rows[order, 1].astype(np.int64)
            # pass 1 has verified the checksums; this read may return other bytes, so they are verified again
            for records in read_columns(byte_range.path, byte_range.start, byte_range.end, replace(spec, survivors=offsets)):
                index = np.minimum(np.searchsorted(offsets, records.columns.offset), len(offsets) - 1)
                newest = offsets[index] == records.columns.offset
                yield byte_range, records, newest, counts[index] - 1


def _find_survivors(slices: Sequence[SliceRange], spec: ReadSpec, survivors: PartSpool, *, tombstones: bool) -> None:
    """Pass 1: adds offsets and numbers of records of the newest records, by slice."""
    first = max(spec.bounds.first_offset, slices[0].first_offset)
    span = max(1, min(spec.bounds.last_offset + 1, slices[-1].end_offset) - first)
    bounds = np.array([byte_range.first_offset for byte_range in slices[1:]], np.int64)
    throttle = Throttle(UNLIMITED)
    with closing(_NewestSink(spec, first, span)) as sink:
        for number, byte_range in enumerate(slices):
            offset_range = byte_range.first_offset, byte_range.end_offset
            slice_ = Slice(0, number, byte_range.path, *offset_range, byte_range.start, byte_range.end, 0)
            try:
                finish(scan(slice_, [sink], spec.files, throttle))
            except LogError as error:
                raise CorruptLogError(str(error)) from error
        for slots in sink.result():
            if not tombstones:
                slots = slots[(slots[:, 2] & np.uint64(TOMBSTONE)) == 0]
            offsets = (slots[:, 2] >> np.uint64(OFFSET_SHIFT)).astype(np.int64) - 1
            rows = np.stack([offsets.astype(np.uint64), slots[:, 3]], axis=1)
            survivors.add(rows, np.searchsorted(bounds, offsets, "right").astype(np.int64))


class _NewestSink:
    """The newest records of one log, of which at most ``span`` records from ``first_offset`` on are in the view."""

    def __init__(self, spec: ReadSpec, first_offset: int, span: int) -> None:
        # lookups are of records before the bounds, and of aborted data: they are not in the view
        self._source = Entries(MapContext(first_offset, 1, spec.aborted), HashSecret.random())
        self.begin = self._source.begin
        keys = TABLE_BYTES // _SLOT_BYTES
        self._table = SlotTable.of_keys(NEWEST, min(span, keys))
        self._shards = int(min(_MAX_SHARDS, -(-span // keys)))
        self._spool = PartSpool(WORDS[NEWEST], self._shards, 0)
        self._spilled_any = False
        # an offset word is (offset + 1) << OFFSET_SHIFT with flags
        self._end_word = np.uint64((first_offset + span + 1) << OFFSET_SHIFT)

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        for entries, _ in self._source.of(decoded):
            entries = entries[entries[:, 2] < self._end_word]
            next_entry = self._table.put(entries)
            while next_entry < len(entries):
                self._spill()
                next_entry = self._table.put(entries, next_entry)
        return ()

    def _spill(self) -> None:
        slots = self._table.occupied()
        self._table.clear()
        self._spilled_any = True
        self._spool.add(slots, (slots[:, 1] % np.uint64(self._shards)).astype(np.int64))

    def result(self) -> Iterator[Packed]:
        """The slots of all keys, shard by shard."""
        if not self._spilled_any:
            yield self._table.occupied()
            return
        self._spill()
        for shard in range(self._shards):
            slots = self._spool.read(shard)
            table = SlotTable.of_keys(NEWEST, len(slots))
            table.put(slots, of_records=False)
            yield table.occupied()

    def close(self) -> None:
        self._spool.close()


class PartSpool:
    """Rows of ``words`` uint64 in ``parts`` parts, in a temporary file if they need too much memory.

    :param memory_bytes: rows are kept in memory up to this size
    """

    def __init__(self, words: int, parts: int, memory_bytes: int) -> None:
        self._words, self._parts = words, parts
        self._file = tempfile.SpooledTemporaryFile(max_size=memory_bytes)
        #: of each addition, the row of the file at which it starts, and the first rows of the parts in it
        self._additions: list[tuple[int, NDArray[np.int64]]] = []
        self._rows = 0

    def add(self, rows: NDArray[np.uint64], part_of: NDArray[np.int64]) -> None:
        """Add rows, uint64[n, words], with the part of each, int64[n].

        :raises StorageError: the temporary directory is full
        """
        order = np.argsort(part_of, kind="stable")
        starts = np.searchsorted(part_of[order], np.arange(self._parts + 1))
        with storage_errors(tempfile.gettempdir(), "hold intermediate results"):
            self._file.seek(self._rows * self._words * _WORD_BYTES)
            self._file.write(np.ascontiguousarray(rows[order]).tobytes())
        self._additions.append((self._rows, starts))
        self._rows += len(rows)

    def read(self, part: int) -> NDArray[np.uint64]:
        """The rows of a part, uint64[n, words], in the order in which they were added."""
        blocks = [np.empty((0, self._words), np.uint64)]
        for first, starts in self._additions:
            start, end = int(starts[part]), int(starts[part + 1])
            if start < end:
                self._file.seek((first + start) * self._words * _WORD_BYTES)
                data = self._file.read((end - start) * self._words * _WORD_BYTES)
                blocks.append(np.frombuffer(data, np.uint64).reshape(-1, self._words))
        return np.concatenate(blocks)

    def close(self) -> None:
        """Deletes the temporary file."""
        self._file.close()
