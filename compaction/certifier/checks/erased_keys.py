"""What an erasure may have changed: exactly the records whose keys were meant are missing, or have lost value and headers. A
batch without such a record has the bytes of its source.

Keys are compared by Arrow, byte by byte, and patterns by ``key_patterns``; nothing of the code that erases is used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compaction.certifier.checks.key_tables import keys_of
from compaction.certifier.checks.log_pair import Bools, Int64s, Rows
from compaction.certifier.checks.read_chunks import Chunk
from compaction.certifier.checks.segment_walk import CONTROL
from compaction.certifier.checks.violations import ERASED, ERASED_IN, REMAINING, Findings
from compaction.certifier.key_patterns.key_matcher import matcher, matching
from compaction.formats.key_criteria import KeyCriteria
from compaction.names import parse_segment_file

#: a number of headers of 0, whose varint may be padded, has no other bytes
_NO_HEADERS = b"\x80\x00"


@dataclass(frozen=True, eq=False)
class ErasedKeys:
    """Which keys were erased; with ``tombstones`` their records are retained without value and headers."""

    criteria: KeyCriteria
    tombstones: bool = False

    def __post_init__(self) -> None:
        """:raises FormatError: an expression cannot be judged"""
        for pattern in self.criteria.patterns:
            matcher(pattern)

    def to_erase(self, chunk: Chunk, end_offset: int, counts: Counter[str]) -> Bools:
        """Which records of a chunk below ``end_offset`` have such a key, bool[n]; the others that have one are counted."""
        meant = self._meant(chunk)
        below: Bools = meant & (chunk.records["offset"] < end_offset)
        counts[REMAINING] += self._remaining(chunk, meant & ~below)
        return below

    def remaining(self, chunk: Chunk) -> int:
        """The number of records in a chunk that an erasure of it would remove or change."""
        return self._remaining(chunk, self._meant(chunk))

    def _remaining(self, chunk: Chunk, meant: Bools) -> int:
        # a record without value and headers is all that a tombstone would leave
        return int(_have_content(chunk, chunk.records[meant]).sum() if self.tombstones else meant.sum())

    def _meant(self, chunk: Chunk) -> Bools:
        control = (chunk.rows["magic"] >= 2) & ((chunk.rows["attributes"] & CONTROL) != 0)
        some = ~control[chunk.records["batch"]] & (chunk.records["key_size"] >= 0)
        meant = np.zeros(len(chunk.records), np.bool_)
        meant[some] = matching(self.criteria, keys_of(chunk, chunk.records[some]))
        return meant

    @staticmethod
    def copied(before: Chunk, after: Chunk, first: int, end: int) -> Int64s:
        """The rows of ``before`` with the bytes of one of the batches ``[first, end)`` of ``after``, int64[m]."""
        rows = after.rows[first:end]
        at = np.minimum(np.searchsorted(before.rows["last_offset"], rows["last_offset"]), len(before.rows) - 1)
        equal = pc.equal(before.batches().take(pa.array(at)), after.batches().slice(first, end - first))
        same: Int64s = at[equal.to_numpy(zero_copy_only=False)]
        return same

    @staticmethod
    def check_untouched(before: Chunk, copied: Bools, meant: Bools, findings: Findings) -> None:
        """Check that batches without a record that is ``meant`` (bool[n]) are ``copied`` (bool[b])."""
        touched = np.zeros(len(before.rows), np.bool_)
        touched[before.records["batch"][meant]] = True
        what = "batch without an erased key is missing, or differs from its source"
        findings.add_all(before.rows["base_offset"][~touched & ~copied], what)

    def check_missing(self, before: Chunk, found: Bools, meant: Bools, findings: Findings, counts: Counter[str]) -> None:
        """Check which records of ``before`` were ``found`` (bool[n]), and count those that were erased."""
        offsets = before.records["offset"]
        counts["records_before"] += len(offsets)
        counts["missing"] += int((~found).sum())
        if self.tombstones:
            findings.add_all(offsets[~found], "record is missing, it should have become a tombstone")
            return
        findings.add_all(offsets[~found & ~meant], "record is missing though its key was not erased")
        findings.add_all(offsets[found & meant], "record of an erased key is retained")
        erased = int((~found & meant).sum())
        counts[ERASED] += erased
        counts[segment_count(before)] += erased

    def check_tombstones(self, before: Chunk, sources: Rows, after: Chunk, records: Rows, counts: Counter[str]) -> Findings:
        """Check ``records`` (of ``after``) whose keys are meant: they have lost value and headers of ``sources``."""
        findings = Findings()
        findings.add_all(records["offset"][_have_content(after, records)], "record of an erased key has a value or headers")
        counts[segment_count(before)] += int(_have_content(before, sources).sum())
        return findings


def segment_count(chunk: Chunk) -> str:
    """The name of the count of records that were erased in the chunk's segment."""
    file = parse_segment_file(chunk.path.rpartition("/")[2])
    return f"{ERASED_IN}{-1 if file is None else file.base_offset}"


def _have_content(chunk: Chunk, records: Rows) -> Bools:
    """Which records of a chunk have a value or headers, bool[n]."""
    headers = [bool(chunk.data[each["headers_at"] : each["end"]].tobytes().strip(_NO_HEADERS)) for each in records]
    content: Bools = (records["value_size"] >= 0) | np.array(headers, np.bool_)
    return content
