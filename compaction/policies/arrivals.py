"""What arrived in a log, and what superseded it: all that a simulation of policies needs of the log's records.

A log is divided into *parts*, in the order of offsets, which arrive one after the other, and into *buckets*, which are one or
several parts. In a small log each batch is a part and a bucket; a large one has ``BUCKETS`` of equal size, and ``PARTS`` times
as many parts. A *cell* has the records of one bucket that were superseded by records of another one, or by none, with their
number and their uncompressed bytes. After a cleaning of the offsets below E, a record below E remains exactly if its successor
is at or above E: so the cells say, for any E, what remains of each bucket. Records without a key and aborted data have their
own bucket as the successor: the first cleaning removes them.

Tasks read slices once. A task pairs each record with the previous one of its key in these slices (``SlotTable.follow``), and
emits of each key the first and the last record, by shard of the hash; a shard pairs those of different tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.engine import Engine, Item, Job, Reading, exchange
from compaction.errors import LogError
from compaction.files.segment_file import Block
from compaction.formats.codecs import Codec, compress
from compaction.formats.record_batch import CODEC, CONTROL, MAGIC, TRANSACTIONAL
from compaction.kernels import records
from compaction.kernels.records import LOOKUPS_ONLY, MAP, SKIP, place_records
from compaction.kernels.slot_table import ENDS, SIZE_SHIFT, WORDS, SlotTable
from compaction.passes.build_map import spilled
from compaction.passes.decoder import Decoded
from compaction.passes.scan import Emitted, Emitting, in_portions, scan
from compaction.passes.tasks import MapSettings, Packed, Slice
from compaction.passes.throttle import Throttle
from compaction.rules.log_view import LogView
from compaction.rules.transactions import AbortedRanges
from compaction.run.sizing import max_records

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

#: buckets of a log with more records than ``EXACT_RECORDS``; a smaller one has a bucket for each batch, if one task reads it
BUCKETS = 256
EXACT_RECORDS = 1 << 16
#: parts of a bucket, and of all buckets of all large logs: with very many of these, buckets are not divided
PARTS = 32
_ALL_PARTS = 1 << 21
#: the successor of a record that none supersedes
NEVER = (1 << 30) - 1
#: flags of a cell: its records are tombstones; the records that superseded them are
TOMBSTONE, BY_TOMBSTONE = 1, 2

#: columns of a part. Sums: data batches, their records, the uncompressed bytes of these, the bytes of the batches; control
#: batches and their bytes. The lowest: offset, largest timestamp of a batch. The highest: offset, largest timestamp; if the
#: part is one batch, its producer, and whether it is transactional
(
    BATCHES, RECORDS, PLAIN, STORED, CONTROLS, CONTROL_BYTES, FIRST_OFFSET, FIRST_TIMESTAMP,
    LAST_OFFSET, LARGEST_TIMESTAMP, PRODUCER, IN_TXN, COLUMNS,
) = range(13)  # fmt: skip
_SUMS, _LOWEST, _HIGHEST = slice(BATCHES, FIRST_OFFSET), slice(FIRST_OFFSET, LAST_OFFSET), slice(LAST_OFFSET, COLUMNS)
#: what joins the rows of a number, by columns
_Joins = Sequence[tuple[slice, np.ufunc]]
_OF_PARTS: _Joins = ((_SUMS, np.add), (_LOWEST, np.minimum), (_HIGHEST, np.maximum))
_OF_CELLS: _Joins = ((slice(2), np.add),)
_LONG_MAX = 2**63 - 1
#: added to each place: the third word of an entry is never 0
_FIRST_PLACE = 1
_GOLDEN = 0.6180339887498949
_PORTION = 1 << 14
#: the place of the parts of a task
_RESULT = -1
#: bytes that a task reads, and the cells that it holds before it joins them
_TASK_BYTES = 256 << 20
_MOST_ROWS = 1 << 18
#: compressed batches that are sampled of those that are decompressed at a time; the shares of their records
_SAMPLED = 16
_SHARES = (0.05, 0.25, 0.5, 0.75, 1.0)


class Cells(NamedTuple):
    """Records by bucket and successor: ``keys`` int64[m], ascending, as ``cell_keys`` makes them; ``numbers`` int64[m, 2], the
    records and their bytes."""

    keys: Int64s
    numbers: Int64s

    @property
    def bucket(self) -> Int64s:
        return self.keys >> 32

    @property
    def successor(self) -> Int64s:
        """``NEVER`` for none."""
        return self.keys >> 2 & NEVER

    @property
    def tombstone(self) -> NDArray[np.bool_]:
        return (self.keys & TOMBSTONE).astype(np.bool_)

    @property
    def by_tombstone(self) -> NDArray[np.bool_]:
        return (self.keys & BY_TOMBSTONE).astype(np.bool_)

    @property
    def records(self) -> Int64s:
        return self.numbers[:, 0]

    @property
    def bytes(self) -> Int64s:
        return self.numbers[:, 1]


def cell_keys(bucket: Int64s, successor: Int64s, flags: Int64s | int) -> Int64s:
    return bucket << 32 | successor << 2 | flags


def sums_of(index: Int64s, values: Int64s | Floats, count: int) -> Floats:
    """float64[count]: the sums of the values of each index."""
    return np.bincount(index, weights=values, minlength=count).astype(np.float64)


class Arrivals(NamedTuple):
    """A log's ``parts``, int64[n, COLUMNS], and its cells; ``buckets``, int64[n], the bucket of each part, ascending from 0;
    ``exact``: each of them is one batch.

    ``compressed``: some records of compressed batches, compressed again, int64[k, 2]: their uncompressed bytes, the bytes of
    the result.
    """

    parts: Int64s
    buckets: Int64s
    cells: Cells
    exact: bool
    compressed: Int64s

    @property
    def starts(self) -> Int64s:
        """The first part of each bucket."""
        return np.searchsorted(self.buckets, np.arange(int(self.buckets[-1]) + 1 if len(self.buckets) else 0))


@dataclass(frozen=True)
class _Task:
    """The slices of a task of log number ``log``, of ``total_bytes``, with the bytes of the log before each of them.

    ``exact``: the log has a bucket for each batch; otherwise a bucket has ``parts``.
    """

    log: int
    slices: tuple[Slice, ...]
    bytes_before: tuple[int, ...]
    total_bytes: int
    shards: int
    aborted: AbortedRanges
    exact: bool
    parts: int = 1


class _Part(NamedTuple):
    """What a task has found: parts by number, and cells; or its error. Of a shard the cells of several tasks, and what was read
    for it."""

    reading: Reading
    cells: Cells
    parts: tuple[Int64s, Int64s] | None = None
    compressed: Int64s = np.empty((0, 2), np.int64)


def read_arrivals(
    engine: Engine, logs: Sequence[tuple[LogView, Sequence[Slice], AbortedRanges]], settings: MapSettings, shard_entries: int
) -> list[Arrivals | str]:
    """The arrivals of each log, or the error of a log that cannot be read.

    :param logs: each with all of its slices, in the order of offsets, and its aborted data
    :param shard_entries: most entries that a task joins at a time
    """
    tasks = [task for number, log in enumerate(logs) for task in _tasks(number, *log, shard_entries)]
    large = {task.log for task in tasks if not task.exact}
    parts_of_bucket = max(1, min(PARTS, _ALL_PARTS // (BUCKETS * max(1, len(large)))))
    tasks = [task if task.exact else replace(task, parts=parts_of_bucket) for task in tasks]
    task_bytes = [sum(part.size_bytes for part in task.slices) for task in tasks]
    job = Job.sized("arrivals", f"arrivals: read {len(tasks)} byte ranges", task_bytes)
    reducers = max(engine.cores, sum({task.log: task.shards for task in tasks}.values()))
    parts: list[list[_Part]] = [[] for _ in logs]
    for log, part in exchange(engine, job, tasks, partial(_emit, settings=settings), _join, reducers):
        parts[log].append(part)
    first = {task.log: task for task in reversed(tasks)}
    return [_whole(found, first.get(number)) for number, found in enumerate(parts)]


def _tasks(log: int, view: LogView, slices: Sequence[Slice], aborted: AbortedRanges, shard_entries: int) -> Iterator[_Task]:
    total_bytes = sum(part.size_bytes for part in slices)
    most_records = max_records(view.segments)
    shards, exact = max(1, -(-most_records // shard_entries)), most_records <= EXACT_RECORDS and total_bytes <= _TASK_BYTES
    before = list(accumulate((part.size_bytes for part in slices), initial=0))
    first = 0
    for end in range(1, len(slices) + 1):
        if end == len(slices) or before[end] - before[first] >= _TASK_BYTES:
            yield _Task(log, tuple(slices[first:end]), tuple(before[first:end]), total_bytes, shards, aborted, exact)
            first = end


def _whole(found: Sequence[_Part], task: _Task | None) -> Arrivals | str:
    """Of all that the tasks of a log have found, one of which is ``task``; a log without data has none."""
    read = sum((part.reading for part in found if part.parts is not None), Reading())
    noted = [part.reading.difference(read) if part.parts is None else part.reading.error for part in found]
    errors = [error for error in noted if error is not None]
    if errors:
        # tasks end in any order: of several errors always the same one is reported
        return min(errors)
    numbers, parts = _joined([part.parts for part in found if part.parts is not None], _OF_PARTS)
    cells = joined_cells([part.cells for part in found])
    # a batch can be larger than a bucket, so some buckets are empty
    present, buckets = np.unique(numbers // (1 if task is None else task.parts), return_inverse=True)
    bucket, successor = np.searchsorted(present, cells.bucket), np.searchsorted(present, cells.successor)
    successor[cells.successor == NEVER] = NEVER
    renumbered = cell_keys(bucket, successor, cells.keys & (TOMBSTONE | BY_TOMBSTONE))
    compressed = np.concatenate([np.empty((0, 2), np.int64), *(part.compressed for part in found)])
    exact = task is not None and task.exact
    return Arrivals(parts, buckets.astype(np.int64), Cells(renumbered, cells.numbers), exact, compressed)


def _joined(found: Sequence[tuple[Int64s, Int64s]], joins: _Joins) -> tuple[Int64s, Int64s]:
    """Of numbers with their rows: one row for each number, ascending."""
    width = joins[-1][0].stop
    numbers = np.concatenate([np.empty(0, np.int64), *(numbers for numbers, _ in found)])
    rows = np.concatenate([np.empty((0, width), np.int64), *(rows for _, rows in found)])
    ascending = np.argsort(numbers, kind="stable")
    distinct, starts = np.unique(numbers[ascending], return_index=True)
    joined = np.empty((len(distinct), width), np.int64)
    if len(distinct):
        for columns, join in joins:
            joined[:, columns] = join.reduceat(rows[ascending, columns], starts)
    return distinct, joined


def joined_cells(cells: Sequence[Cells]) -> Cells:
    return Cells(*_joined(cells, _OF_CELLS))


def _cells_of_pairs(pairs: Packed) -> Cells:
    """The cells of pairs of records, see ``SlotTable.follow``."""
    places, sizes = pairs[:, 0], pairs[:, 1].astype(np.int64)
    halves = places >> np.uint64(32), places & np.uint64(0xFFFFFFFF)
    bucket, successor = (half.astype(np.int64) - _FIRST_PLACE for half in halves)
    keys = cell_keys(bucket, successor, sizes & (TOMBSTONE | BY_TOMBSTONE))
    return joined_cells([Cells(keys, np.stack([np.ones(len(keys), np.int64), sizes >> SIZE_SHIFT], axis=1))])


def _emit(task: _Task, settings: MapSettings) -> Iterator[Item]:
    """The ends of keys by shard, each shard with the ``Reading`` of the task, and one ``_Part``."""
    sink, throttle, error, read = _Arrivals(task, settings), Throttle(settings.bytes_per_second), None, []
    try:
        for part, bytes_before in zip(task.slices, task.bytes_before, strict=True):
            sink.bytes_before = bytes_before - part.start
            read.append((yield from scan(part, [sink], settings.files, throttle)))
    except LogError as failure:
        error = str(failure)
    yield from sink.ends()
    reading = Reading.of(task.slices[0].path, (tuple(task.slices[0].id), read), error)
    yield from (((task.log, shard), reading) for shard in range(task.shards))
    yield (task.log, _RESULT), sink.result(reading)


class _Arrivals:
    """The parts of a task's slices, and the cells of the pairs in them."""

    def __init__(self, task: _Task, settings: MapSettings) -> None:
        self._task, self._secret = task, settings.secret.state()
        #: of the log, before the file of the current slice begins
        self.bytes_before = 0
        most_records = sum(part.end_offset - part.first_offset for part in task.slices)
        self._table = SlotTable(ENDS, settings.map_bytes, settings.load_factor, most_records)
        self._next = 0
        self._parts: list[tuple[Int64s, Int64s]] = []
        self._cells: list[Cells] = []
        self._compressed: list[tuple[int, int]] = []
        #: of each batch of the block: its action, its part and its bucket
        self._actions, self._numbers, self._buckets = np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
        self._enlarge(_PORTION)

    def _enlarge(self, count: int) -> None:
        self._entries, self._pairs = np.empty((count, WORDS[ENDS]), np.uint64), np.empty((count, 2), np.uint64)

    def begin(self, block: Block) -> NDArray[np.bool_]:
        rows, task = block.rows, self._task
        v2, attributes = rows["magic"] >= MAGIC, rows["attributes"]
        control = v2 & ((attributes & CONTROL) != 0)
        in_txn = v2 & ((attributes & TRANSACTIONAL) != 0)
        aborted = in_txn & task.aborted.contains(rows["producer_id"], rows["last_offset"])
        self._actions = np.select([control, aborted], [SKIP, LOOKUPS_ONLY], MAP).astype(np.uint8)
        if task.exact:
            self._numbers = self._next + np.arange(len(rows))
            self._next += len(rows)
        else:
            self._numbers = (self.bytes_before + rows["position"]) * (BUCKETS * task.parts) // task.total_bytes
        self._buckets = self._numbers // task.parts
        table = np.zeros((len(rows), COLUMNS), np.int64)
        data, size = ~control, rows["size"].astype(np.int64)
        for column, values in (
            (BATCHES, data), (RECORDS, rows["count"] * data), (STORED, size * data), (CONTROLS, control),
            (CONTROL_BYTES, size * control), (FIRST_OFFSET, rows["base_offset"]), (FIRST_TIMESTAMP, rows["max_timestamp"]),
            (LAST_OFFSET, rows["last_offset"]), (LARGEST_TIMESTAMP, rows["max_timestamp"]),
            (PRODUCER, np.where(v2, rows["producer_id"], -1)), (IN_TXN, in_txn),
        ):  # fmt: skip
            table[:, column] = values
        self._add(self._numbers, table)
        selected: NDArray[np.bool_] = ~control
        return selected

    def _add(self, numbers: Int64s, table: Int64s) -> None:
        self._parts.append(_joined([(numbers, table)], _OF_PARTS))
        if sum(len(numbers) for numbers, _ in self._parts) > _MOST_ROWS:
            self._parts = [_joined(self._parts, _OF_PARTS)]

    def take(self, decoded: Decoded) -> Iterator[Emitted]:
        rows, first = decoded.rows, decoded.first_row
        actions = self._actions[first : first + len(rows)]
        numbers, buckets = (column[first : first + len(rows)] for column in (self._numbers, self._buckets))
        plain, removed = np.zeros(len(rows), np.int64), np.zeros((len(rows), 2), np.int64)

        def read(first_row: int) -> tuple[int, int, Packed]:
            next_row, n, error = place_records(
                decoded.block.raw, decoded.scratch, rows, decoded.spans, actions, buckets + _FIRST_PLACE, first_row,
                self._entries, plain, removed, self._secret,
            )  # fmt: skip
            return next_row, error, self._entries[:n]

        for entries in in_portions(decoded, read, self._enlarge):
            yield from self._pair(entries)
        table = np.zeros((len(rows), COLUMNS), np.int64)
        table[:, _LOWEST], table[:, _HIGHEST], table[:, PLAIN] = _LONG_MAX, -1, plain
        read_rows = actions != SKIP
        self._add(numbers[read_rows], table[read_rows])
        packed = np.flatnonzero((decoded.spans[:, 2] > 0) & (rows["magic"] >= MAGIC) & (rows["count"] > 1))
        for index in packed[:: -(-len(packed) // _SAMPLED) or 1].tolist():
            self._compressed += _compressed_parts(decoded, index)
        gone = removed[:, 0] > 0
        self._keep(joined_cells([Cells(cell_keys(buckets[gone], buckets[gone], 0), removed[gone])]))

    def _pair(self, entries: Packed) -> Iterator[Emitted]:
        position = 0
        while True:
            position, pairs = self._table.follow(entries, position, self._pairs)
            self._keep(_cells_of_pairs(pairs))
            if position == len(entries):
                return
            yield from spilled(self._task.log, self._table.slots, self._task.shards)
            self._table.clear()

    def _keep(self, cells: Cells) -> None:
        self._cells.append(cells)
        if sum(len(each.keys) for each in self._cells) > _MOST_ROWS:
            self._cells = [joined_cells(self._cells)]

    def ends(self) -> Emitting[None]:
        """The first and the last record of each key."""
        yield from spilled(self._task.log, self._table.slots, self._task.shards)

    def result(self, reading: Reading) -> _Part:
        compressed = np.array(self._compressed, np.int64).reshape(-1, 2)
        return _Part(reading, joined_cells(self._cells), _joined(self._parts, _OF_PARTS), compressed)


def _compressed_parts(decoded: Decoded, index: int) -> Iterator[tuple[int, int]]:
    """Some records of a batch, compressed as the cleaner does; a row of ``Arrivals.compressed`` for each of ``_SHARES``."""
    row, (start, end, _) = decoded.rows[index], decoded.spans[index].tolist()
    fields = np.empty((int(row["count"]), records.COLUMNS), np.int64)
    located, _ = records.locate_fields(decoded.scratch[:end], start, len(fields), 0, 0, fields)
    ends = fields[:located, records.END]
    starts = np.concatenate([[start], ends[:-1]])
    # evenly spread, the same in every run
    order = np.arange(located) * _GOLDEN % 1.0
    codec = Codec(int(row["attributes"]) & CODEC)
    for share in _SHARES:
        kept = order <= max(share, order.min())
        data = b"".join(decoded.scratch[first:last].tobytes() for first, last in zip(starts[kept], ends[kept], strict=True))
        yield len(data), len(compress(codec, data))


def _join(items: Iterable[Item]) -> Iterator[tuple[int, _Part]]:
    """Pair the ends of keys of different tasks."""
    shards: dict[tuple[int, int], list[Packed]] = {}
    readings: dict[tuple[int, int], Reading] = {}
    for place, value in items:
        if isinstance(value, _Part):
            yield place[0], value
        elif isinstance(value, Reading):
            readings[place] = readings.get(place, Reading()) + value
        else:
            shards.setdefault(place, []).append(value)
    for place, reading in readings.items():
        yield place[0], _Part(reading, _paired(shards.pop(place, [])))


def _paired(arrays: list[Packed]) -> Cells:
    entries = np.concatenate([np.empty((0, WORDS[ENDS]), np.uint64), *arrays])
    arrays.clear()
    # by the first record, then by the last one: in the order of the log
    entries = entries[np.argsort(entries[:, 2])]
    table, pairs = SlotTable.of_keys(ENDS, len(entries)), np.empty((min(len(entries), _PORTION), 2), np.uint64)
    cells: list[Cells] = []
    for first in range(0, len(entries), _PORTION):
        cells.append(_cells_of_pairs(table.follow(entries[first : first + _PORTION], 0, pairs)[1]))
    for first in range(0, len(table.slots), _PORTION):
        slots = table.slots[first : first + _PORTION]
        newest = slots[slots[:, 2] != 0]
        pairs = np.empty((len(newest), 2), np.uint64)
        pairs[:, 0] = newest[:, 2] << np.uint64(32) | np.uint64(NEVER + _FIRST_PLACE)
        pairs[:, 1] = newest[:, 3] & ~np.uint64(BY_TOMBSTONE)
        cells.append(_cells_of_pairs(pairs))
    return joined_cells(cells)
