"""The first pass of an erasure: checks every batch of some slices, and finds the records with selected keys.

Keys do not leave a task: it returns offsets, and salted hashes of matching keys. A large set of keys is divided into shards of
at most the size of a task's map, and the logs are read once for each shard.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from compaction.files.segment_file import Block
from compaction.formats.keys import KeyCriteria, KeyPattern, salted_digest, shards
from compaction.formats.record_batch import CONTROL, MAGIC
from compaction.kernels.keys import BYTES_PER_KEY, UNHASHED, KeySet, copy_keys, unmatch_tombstones
from compaction.kernels.records import LOOKUPS_ONLY, SKIP, scan_records
from compaction.kernels.tables import DROPPED, OFFSET_SHIFT
from compaction.passes.decoder import Decoded
from compaction.passes.scan import Emitted, RecordCounts, finish, in_portions, scan_records_of
from compaction.passes.tasks import MapSettings, Packed, Slice, SliceSummary
from compaction.passes.throttle import Throttle

_LOCATED = 1 << 14
#: matching keys are counted when they take this much memory
_FOUND_BYTES = 32 << 20
#: a salted hash as bytes, which take half of its hexadecimal form: the driver holds one for each slice that has the key.
#: numpy compares all bytes, but omits trailing zeros of a returned value
HASHED = np.dtype("S32")
_NO_KEYS = pa.array([], pa.binary())


@dataclass(frozen=True)
class Erasure:
    """The records to erase: ``tombstones`` retains each of them without its value. The ``salt`` is drawn for each run."""

    criteria: KeyCriteria
    salt: bytes
    tombstones: bool = False


@dataclass(frozen=True, eq=False)
class Matcher:
    """One shard of the keys, for tasks; the first shard also has the patterns."""

    keys: KeySet = field(repr=False)
    patterns: tuple[KeyPattern, ...]
    salt: bytes
    tombstones: bool

    def match(self, located: NDArray[np.uint64], settings: MapSettings) -> NDArray[np.bool_]:
        """bool[n]: whether to erase each of ``located`` (uint64[n, 3])."""
        matched = np.zeros(len(located), np.bool_)
        if self.patterns:
            matched |= KeyCriteria(_NO_KEYS, self.patterns).matching(keys_at(located, ~matched))
        self.keys.match(located, settings.secret, matched)
        if self.tombstones:
            unmatch_tombstones(located, matched)
        return matched


def matchers(erasure: Erasure, settings: MapSettings) -> list[Matcher]:
    """A matcher for each shard of the keys. No record matches two of them."""
    criteria = erasure.criteria
    keys = criteria.keys
    if criteria.patterns and len(keys):
        keys = keys.filter(pa.array(~KeyCriteria(_NO_KEYS, criteria.patterns).matching(keys)))
    shard_matchers = []
    for number, shard in enumerate(shards(keys, settings.map_bytes, BYTES_PER_KEY)):
        _, offsets, data = shard.buffers() if len(shard) else (None, None, None)
        starts = np.frombuffer(offsets, np.int32, len(shard) + 1, shard.offset * 4) if offsets else np.zeros(1, np.int32)
        blob = np.frombuffer(data or b"", np.uint8)[starts[0] : starts[-1]]
        key_set = KeySet.of((starts - starts[0]).astype(np.int64), blob.copy(), settings.secret)
        shard_matchers.append(Matcher(key_set, () if number else criteria.patterns, erasure.salt, erasure.tombstones))
    return shard_matchers


def keys_at(located: NDArray[np.uint64], chosen: NDArray[np.bool_]) -> pa.Array:
    sizes = located[chosen, 1]
    offsets, blob = np.zeros(len(sizes) + 1, np.int32), np.empty(int(sizes.sum()), np.uint8)
    copy_keys(located, chosen, offsets, blob)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(blob)])


class FoundKeys(NamedTuple):
    """Salted hashes of distinct keys (``HASHED[n]``, ascending), and the number of records of each, int64[n]."""

    hashes: NDArray[np.bytes_]
    records: NDArray[np.int64]

    @property
    def total(self) -> int:
        return int(self.records.sum())

    @classmethod
    def joined(cls, parts: Iterable[FoundKeys]) -> FoundKeys:
        summands = list(parts)
        hashes = np.concatenate([np.empty(0, HASHED), *(keys.hashes for keys in summands)])
        records = np.concatenate([np.empty(0, np.int64), *(keys.records for keys in summands)])
        distinct, row_of = np.unique(hashes, return_inverse=True)
        totals = np.zeros(len(distinct), np.int64)
        np.add.at(totals, row_of, records)
        return cls(distinct, totals)


@dataclass(frozen=True, eq=False)
class SliceMatches:
    """The matches of one slice: compressed survivor entries (``packed``), and the keys of the records."""

    summary: SliceSummary
    packed: bytes
    keys: FoundKeys


def unpacked(packed: Iterable[bytes]) -> Packed:
    """The survivor entries, ``DROPPED``, of several ``SliceMatches.packed``: uint64[n]."""
    parts = [np.cumsum(np.frombuffer(zlib.decompress(part), np.uint64), dtype=np.uint64) for part in packed]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def match_slices(slices: Sequence[Slice], settings: MapSettings, matcher: Matcher) -> list[SliceMatches]:
    throttle, matches = Throttle(settings.bytes_per_second), []
    for slice_ in slices:
        sink = _MatchSink(settings, matcher)
        summary = finish(scan_records_of(slice_, [sink], (), settings, throttle))
        matches.append(sink.result(summary))
    return matches


class _MatchSink:
    """Collects the matches of one slice, also in aborted data."""

    def __init__(self, settings: MapSettings, matcher: Matcher) -> None:
        self.counts = RecordCounts()
        self._settings, self._matcher = settings, matcher
        self._data_batches = np.empty(0, np.bool_)
        self._words = [np.empty(0, np.uint64)]
        self._keys: list[pa.Array] = []
        self._keys_bytes = 0
        self._counted: list[FoundKeys] = []
        self._enlarge(_LOCATED)

    def _enlarge(self, records: int) -> None:
        self._located = np.empty((records, 3), np.uint64)

    def begin(self, block: Block) -> NDArray[np.bool_]:
        rows = block.rows
        self._data_batches = ((rows["attributes"] & CONTROL) == 0) | (rows["magic"] < MAGIC)
        return self._data_batches

    def take(self, decoded: Decoded) -> Iterable[Emitted]:
        rows, first = decoded.rows, decoded.first_row
        data_batches, keyless = self._data_batches[first : first + len(rows)], np.zeros(len(rows), np.int32)
        actions = np.where(data_batches, LOOKUPS_ONLY, SKIP).astype(np.uint8)

        def read(row: int) -> tuple[int, int, NDArray[np.uint64]]:
            # no record is below offset 0, so all of them become lookups, except those without a key
            next_row, _, count, error = scan_records(
                decoded.block.raw, decoded.scratch, rows, decoded.spans, actions, 0, row, self._located, self._located, keyless,
                self.counts.counters, UNHASHED,
            )  # fmt: skip
            return next_row, error, self._located[:count]

        for located in in_portions(decoded, read, self._enlarge):
            self._match(located)
        self.counts.add_keyless(rows, keyless)
        return ()

    def _match(self, located: NDArray[np.uint64]) -> None:
        matched = self._matcher.match(located, self._settings)
        if not matched.any():
            return
        offsets = located[matched, 2] >> np.uint64(OFFSET_SHIFT)
        self._words.append(offsets << np.uint64(OFFSET_SHIFT) | np.uint64(DROPPED))
        self._keys.append(keys_at(located, matched))
        self._keys_bytes += self._keys[-1].nbytes
        if self._keys_bytes >= _FOUND_BYTES:
            self._count()

    def _count(self) -> None:
        counts = pa.chunked_array(self._keys, pa.binary()).value_counts()
        hashes = [salted_digest(self._matcher.salt, key) for key in counts.field("values").to_pylist()]
        records = counts.field("counts").to_numpy().astype(np.int64)
        self._counted.append(FoundKeys.joined([FoundKeys(np.array(hashes, HASHED), records)]))
        self._keys, self._keys_bytes = [], 0

    def result(self, summary: SliceSummary) -> SliceMatches:
        self._count()
        words = np.concatenate(self._words)
        packed = zlib.compress(np.diff(words, prepend=np.uint64(0)).tobytes(), 1)
        return SliceMatches(summary, packed, FoundKeys.joined(self._counted))
