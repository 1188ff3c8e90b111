"""Ranks records by timestamp or by a header, for a ``compaction.strategy`` other than ``offset`` (KIP-280).

The rank is a signed 64-bit number, stored so that unsigned words compare as the numbers do: its sign bit is inverted. By
timestamp it is the record's, which is the append time if the topic says so. By header it is the value of the last header of
that name, 8 bytes in big-endian order, as Kafka's ``LongSerializer`` writes. A record without such a header has no rank, and
neither has one whose last such header has another size: every record with a rank supersedes it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compaction.formats.record_batch import LOG_APPEND_TIME
from compaction.kernels.compiling.jit import inner, kernel
from compaction.kernels.reading.bytes import be64, varint
from compaction.kernels.reading.records import LOOKUPS_ONLY, SKIP, read_record
from compaction.kernels.reading.tables import RANKED

#: words of a ranked entry or lookup
RANKED_WORDS = 4
_SIGN = 1 << 63
_LONG_BYTES = 8


class Ranking(NamedTuple):
    """The criterion: the header of this name, or the timestamp if there is none."""

    header: bytes | None

    def name(self) -> NDArray[np.uint8]:
        """The bytes of the header's name, uint8[]."""
        return np.array(list(self.header or b""), np.uint8)


@inner
def _is_name(data, pos, size, name):
    """Whether ``data[pos:pos + size]`` is ``name``."""
    if size != len(name):
        return False
    for i in range(size):
        if data[pos + i] != name[i]:
            return False
    return True


@inner
def _header_rank(data, pos, stop, name):
    """``(whether there is a rank, rank)`` by the headers at ``data[pos:stop]``, which are well-formed."""
    ranked, rank = False, np.uint64(0)
    count, pos = varint(data, pos, stop)
    for _ in range(count):
        size, pos = varint(data, pos, stop)
        named = _is_name(data, pos, size, name)
        size, pos = varint(data, pos + size, stop)
        if named:
            ranked = size == _LONG_BYTES
            rank = np.uint64(be64(data, pos)) ^ np.uint64(_SIGN) if ranked else np.uint64(0)
        pos += max(size, 0)
    return ranked, rank


@inner
def _record_rank(data, row, record, by_header, name):
    """``(whether there is a rank, rank)`` of a record, as ``read_record`` returned it."""
    stop, timestamp_delta, _, key_at, key_size, _ = record
    if not by_header:
        # messages of magic 1 were converted with their append time; those of magic 0 have no timestamp
        append_time = row.magic == 2 and row.attributes & LOG_APPEND_TIME != 0
        timestamp = row.max_timestamp if append_time else row.base_timestamp + timestamp_delta
        return True, np.uint64(timestamp) ^ np.uint64(_SIGN)
    value_size, pos = varint(data, key_at + max(key_size, 0), stop)
    return _header_rank(data, pos + max(value_size, 0), stop, name)


@inner
def _ranked(source, ranked, rank, target):
    """Copy the entry ``source`` (uint64[3]) to ``target`` (uint64[4]) with its rank."""
    target[0], target[1], target[2], target[3] = source[0], source[1], source[2], rank
    if ranked:
        target[2] |= np.uint64(RANKED)


@kernel
def rank_records(
    raw, scratch, rows, spans, actions, first_dirty, first_row, by_header, name, entries, lookups, ranked, ranked_lookups
):
    """Add ranks to the map entries and lookups that ``scan_records`` made of ``rows[first_row:]``; the number of entries
    without a rank. The parameters up to ``first_row`` are those of ``scan_records``.

    :param by_header: whether to rank by the header ``name`` (uint8[]), else by timestamp
    :param entries: uint64[n, 3], the map entries of these batches; ``lookups`` uint64[m, 3]
    :param ranked: uint64[n, 4] to fill; ``ranked_lookups`` uint64[m, 4] to fill
    """
    n, m, missing, i = 0, 0, 0, first_row
    while i < len(rows) and n + m < len(entries) + len(lookups):
        row = rows[i]
        data = scratch if spans[i, 2] else raw
        pos, end = spans[i, 0], spans[i, 1]
        for _ in range(0 if actions[i] == SKIP else row.count):
            record = read_record(data, pos, end)
            pos = record[0]
            clean = row.base_offset + record[2] < first_dirty
            if record[4] < 0:
                if clean:
                    _ranked(lookups[m], False, np.uint64(0), ranked_lookups[m])
                    m += 1
                continue
            has_rank, rank = _record_rank(data, row, record, by_header, name)
            if clean or actions[i] == LOOKUPS_ONLY:
                _ranked(lookups[m], has_rank, rank, ranked_lookups[m])
                m += 1
            else:
                _ranked(entries[n], has_rank, rank, ranked[n])
                n += 1
                missing += not has_rank
        i += 1
    return missing
