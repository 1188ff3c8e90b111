"""Where the bytes of a log's ``.log`` files are, exactly: the sum of the components is the size of the files, and so is that of
the stored bytes of all states.

Keys, values, headers and the overhead of records (lengths, offsets, timestamps; the fields of messages of magic 0 and 1) are
measured uncompressed; the component ``compression`` is what compression adds, so it is negative if it saves. The overhead of
batches is their headers, and wrappers of magic 0 and 1. Control batches are a component of their own, with all their bytes.

The *stored bytes* of a record are its part of its batch in the file, header included, in proportion to its uncompressed size;
the parts of a batch's records are rounded so that their sum is the size of the batch. Those of a header are its part of the
batch in the same proportion.

The state of a record follows Kafka's cleaner: a record with a key is superseded if its key has a higher offset. Control
records, aborted data, and records from the last stable offset on, supersede none. A newest record is live, or a tombstone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.counting.key_totals import NOT_NEWEST, Int64s, KeyGroups, Sums
from compaction.formats.codecs import Codec
from compaction.formats.message_set import LEAST_BYTES_V0, LEAST_BYTES_V1
from compaction.formats.record_batch import CODEC, CONTROL, HEADER_SIZE, MAGIC, TRANSACTIONAL
from compaction.rules.transactions import AbortedRanges
from compaction.source.read_columns import Records

Bools = NDArray[np.bool_]

COMPONENTS = (
    "keys", "values", "headers", "record_overhead", "batch_overhead", "compression", "control_batches", "after_last_batch",
)  # fmt: skip
KEYS, VALUES, HEADERS, RECORD_OVERHEAD, BATCH_OVERHEAD, COMPRESSION, CONTROL_BATCHES, AFTER_LAST_BATCH = range(len(COMPONENTS))
STATES = (
    "live", "tombstone", "superseded", "no_key", "aborted", "below_log_start", "control", "empty_batches", "after_last_batch",
)  # fmt: skip
LIVE, TOMBSTONE, SUPERSEDED, NO_KEY, ABORTED, BELOW_START, CONTROL_RECORD, EMPTY_BATCHES, AFTER_BATCHES = range(len(STATES))
#: records younger than these times, ms; older ones; those with a later timestamp than now, and without one
_AGE_LIMITS_MS = np.array([3_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000, 365 * 86_400_000])
AGES = (
    "under 1 hour", "under 1 day", "under 7 days", "under 30 days", "under 1 year", "1 year or more", "in the future",
    "no timestamp",
)  # fmt: skip
FUTURE, NO_AGE = len(AGES) - 2, len(AGES) - 1
#: no value; values smaller than these sizes, and larger ones
_SIZE_LIMITS = np.array([100, 1000, 10_000, 100_000, 1_000_000])
SIZES = ("no value", "under 100 B", "under 1 kB", "under 10 kB", "under 100 kB", "under 1 MB", "1 MB or more")
#: columns of a cell: records, the bytes of their keys and values, uncompressed, and their stored bytes
RECORDS, BYTES, STORED, CELL = range(4)
CODECS = tuple(codec.name.lower() for codec in Codec)
#: bits of the bytes and the stored bytes in the second half of ``newest``: a batch has at most 2^28, compressed or not
_SIZE_BITS = 30


@dataclass(frozen=True)
class StoredLog:
    """The facts about a log that decide the state of its records; how its keys are grouped, if they are."""

    aborted: AbortedRanges
    log_start_offset: int
    last_stable_offset: int
    now_ms: int
    group_by: KeyGroups | None = None


class Measured(NamedTuple):
    """The records of ``Usage.add_records``: the bytes of keys and values, and the stored bytes, int64[n]; ``data`` bool[n]: not
    in a control batch; ``committed`` bool[n]: those that a consumer with ``read_committed`` reads; the halves of ``newest``,
    int64[n] each; the bytes and the stored bytes of headers, int64[h] each."""

    sizes: Int64s
    stored: Int64s
    data: Bools
    committed: Bools
    newest: tuple[Int64s, Int64s]
    headers: tuple[Int64s, Int64s]


def _zeros(*shape: int) -> Int64s:
    return np.zeros(shape, np.int64)


@dataclass
class Usage:
    """The bytes of some records: ``components`` int64[c]; by state and age, and by size of value, cells of ``CELL`` numbers; by
    codec, the uncompressed and the stored bytes of records, without headers of batches."""

    components: Int64s = field(default_factory=lambda: _zeros(len(COMPONENTS)))
    states: Int64s = field(default_factory=lambda: _zeros(len(STATES), len(AGES), CELL))
    values: Int64s = field(default_factory=lambda: _zeros(len(SIZES), CELL))
    codecs: Int64s = field(default_factory=lambda: _zeros(len(CODECS), 2))
    _batch_bytes: int = 0

    @property
    def file_bytes(self) -> int:
        return int(self.components.sum())

    def __add__(self, other: Usage) -> Usage:
        sums = self.components + other.components, self.states + other.states, self.values + other.values
        return Usage(*sums, self.codecs + other.codecs)

    def add_records(self, records: Records, log: StoredLog) -> Measured:
        """Add the records of complete batches. Records with a key that may supersede others are added as superseded:
        ``add_newest`` corrects that for those that are the newest of their keys."""
        rows, columns = records.rows, records.columns
        counts = records.counts.astype(np.int64)
        batch = np.repeat(np.arange(len(rows)), counts)
        key_sizes, value_sizes = np.diff(columns.keys.offsets).astype(np.int64), np.maximum(columns.value_size, 0)
        sizes = key_sizes + value_sizes
        old = rows["magic"] < MAGIC
        message_bytes = np.where(rows["magic"] == 1, LEAST_BYTES_V1, LEAST_BYTES_V0)
        plain = np.where(old[batch], message_bytes[batch] + sizes, columns.record_size)
        batch_bytes, starts = rows["size"].astype(np.int64), np.cumsum(counts) - counts
        sums = np.concatenate([[0], np.cumsum(plain)])
        batch_plain = sums[starts + counts] - sums[starts]
        stored = _parts(plain, batch, starts, batch_bytes, batch_plain)
        control = ~old & ((rows["attributes"] & CONTROL) != 0)
        data = ~control[batch]
        self._add_batches(rows, batch_plain, message_bytes, (counts > 0) & ~control)
        self._batch_bytes += int(batch_bytes[counts > 0].sum())
        self.components[CONTROL_BATCHES] += batch_bytes[control & (counts > 0)].sum()
        headers = np.diff(columns.header_keys.offsets).astype(np.int64) + np.diff(columns.header_values.offsets)
        of_record = np.repeat(np.arange(len(plain)), np.diff(columns.header_starts))
        header_stored = _parts(headers, batch[of_record], columns.header_starts[starts], batch_bytes, batch_plain)
        for component, part in ((KEYS, key_sizes[data]), (VALUES, value_sizes[data]), (HEADERS, headers[data[of_record]])):
            self.components[component] += (total := part.sum())
            self.components[RECORD_OVERHEAD] -= total
        cells = np.stack([np.ones(len(sizes), np.int64), sizes, stored])
        size_class = np.where(columns.value_size < 0, 0, 1 + np.searchsorted(_SIZE_LIMITS, columns.value_size, "right"))
        _add_cells(self.values, size_class[data], cells[:, data])
        state, age = _states(records, log, batch, control), _ages(columns.timestamp_ms, log.now_ms)
        _add_cells(self.states.reshape(-1, CELL), state * len(AGES) + age, cells)
        newest = np.where(state == SUPERSEDED, columns.offset << 1 | (columns.value_size < 0), NOT_NEWEST)
        newest_parts = newest, age << 2 * _SIZE_BITS | sizes << _SIZE_BITS | stored
        committed = ~np.isin(state, (CONTROL_RECORD, BELOW_START, ABORTED)) & (columns.offset < log.last_stable_offset)
        return Measured(sizes, stored, data, committed, newest_parts, (headers, header_stored))

    def _add_batches(self, rows: NDArray[np.void], plain: Int64s, message_bytes: Int64s, data: Bools) -> None:
        codec = (rows["attributes"] & CODEC).astype(np.int64)
        wrappers = np.where(codec > 0, message_bytes, 0)
        overhead = np.where(rows["magic"] < MAGIC, wrappers, HEADER_SIZE)[data]
        kept, plain, codec = rows["size"][data] - overhead, plain[data], codec[data]
        self.components[BATCH_OVERHEAD] += overhead.sum()
        self.components[RECORD_OVERHEAD] += plain.sum()
        self.components[COMPRESSION] += kept.sum() - plain.sum()
        _add_cells(self.codecs, codec, np.stack([plain, kept]))

    def finish_range(self, range_bytes: int) -> None:
        """Add the batches without records of a byte range, whose other batches have been added."""
        empty_bytes, self._batch_bytes = range_bytes - self._batch_bytes, 0
        self.components[BATCH_OVERHEAD] += empty_bytes
        self.states[EMPTY_BATCHES, NO_AGE, STORED] += empty_bytes

    def add_after_last_batch(self, size_bytes: int) -> None:
        self.components[AFTER_LAST_BATCH] += size_bytes
        self.states[AFTER_BATCHES, NO_AGE, STORED] += size_bytes

    def add_newest(self, newest: Int64s) -> None:
        """Records by ``newest_cells``: they are not superseded."""
        self.states[[LIVE, TOMBSTONE]] += newest
        self.states[SUPERSEDED] -= newest.sum(axis=0)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of a log or topic."""
        states = [
            {"state": STATES[state], "age": AGES[age] if state < EMPTY_BATCHES else None, **_named(cell)}
            for state, ages in enumerate(self.states) for age, cell in enumerate(ages) if cell.any()
        ]  # fmt: skip
        return {
            "file_bytes": self.file_bytes,
            "components": dict(zip(COMPONENTS, self.components.tolist(), strict=True)),
            "states": states,
            "value_sizes": [{"value": SIZES[size], **_named(cell)} for size, cell in enumerate(self.values) if cell.any()],
            "codecs": [
                {"codec": CODECS[codec], "uncompressed_bytes": plain, "stored_bytes": stored}
                for codec, (plain, stored) in enumerate(self.codecs.tolist()) if plain
            ],
        }  # fmt: skip


def _named(cell: Int64s) -> dict[str, int]:
    return Sums(*cell.tolist())._asdict()


def newest_cells(newest: Int64s) -> Int64s:
    """Cells by tombstone and age, int64[2, ages, ``CELL``], of the newest records of keys: ``KeyTotals.newest``."""
    low, high = newest[newest[:, 1] != NOT_NEWEST].T
    mask = (1 << _SIZE_BITS) - 1
    cells = _zeros(2 * len(AGES), CELL)
    numbers = np.stack([np.ones(len(low), np.int64), low >> _SIZE_BITS & mask, low & mask])
    _add_cells(cells, (high & 1) * len(AGES) + (low >> 2 * _SIZE_BITS), numbers)
    return cells.reshape(2, len(AGES), CELL)


def _parts(amounts: Int64s, batch: Int64s, starts: Int64s, stored: Int64s, plain: Int64s) -> Int64s:
    """The stored bytes of each of some amounts of uncompressed bytes, int64[n], that are in batches ``batch``, int64[n].

    :param starts: the first amount of each batch
    :param stored: the bytes of each batch, of which ``plain`` are uncompressed
    """
    sums = np.concatenate([[0], np.cumsum(amounts)])
    upto = sums[1:] - sums[starts][batch]
    # the products are below 2^63: a batch has at most 2^28 bytes, compressed or not
    before, after = ((end * stored[batch]) // plain[batch] for end in (upto - amounts, upto))
    parts: Int64s = after - before
    return parts


def _add_cells(cells: Int64s, index: Int64s, numbers: Int64s) -> None:
    """Add ``numbers`` (int64[k, n]) to the rows ``index`` (int64[n]) of ``cells`` (int64[m, k])."""
    order = np.argsort(index, kind="stable")
    used, starts = np.unique(index[order], return_index=True)
    if len(used):
        cells[used] += np.add.reduceat(numbers[:, order], starts, axis=1).T


def _ages(timestamps_ms: Int64s, now_ms: int) -> Int64s:
    ages = np.searchsorted(_AGE_LIMITS_MS, now_ms - np.maximum(timestamps_ms, 0), "right")
    return np.select([timestamps_ms < 0, timestamps_ms > now_ms], [NO_AGE, FUTURE], ages)


def _states(records: Records, log: StoredLog, batch: Int64s, control: Bools) -> Int64s:
    """The state of each record; of those that may be the newest of their keys ``SUPERSEDED``."""
    rows, columns = records.rows, records.columns
    keyless = np.diff(columns.keys.offsets) == 0
    keyless &= np.unpackbits(columns.keys.valid, count=len(keyless), bitorder="little") == 0
    data = (rows["magic"] >= MAGIC) & ((rows["attributes"] & TRANSACTIONAL) != 0)
    aborted = data & log.aborted.contains(rows["producer_id"], rows["last_offset"])
    unstable = columns.offset >= log.last_stable_offset
    conditions = [control[batch], columns.offset < log.log_start_offset, aborted[batch], keyless]
    newest = np.where(columns.value_size < 0, TOMBSTONE, LIVE)
    states = [CONTROL_RECORD, BELOW_START, ABORTED, NO_KEY]
    return np.select([*conditions, unstable], [*states, newest], SUPERSEDED).astype(np.int64)
