"""Checks an erasure: exactly the records with selected keys are missing, or have lost value and headers. A batch without such a
record has the bytes of its source.

Keys are compared by Arrow, byte by byte, and patterns by ``key_patterns``, independently of the code that erases.
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
from compaction.certifier.key_patterns import matcher, matching
from compaction.formats.keys import KeyCriteria
from compaction.names import parse_segment_file

#: the bytes of a header count of 0, whose varint may be padded
_NO_HEADERS = b"\x80\x00"


@dataclass(frozen=True, eq=False)
class ErasedKeys:
    """The erased keys; with ``tombstones`` their records are retained without value and headers."""

    criteria: KeyCriteria
    tombstones: bool = False

    def __post_init__(self) -> None:
        """:raises FormatError: the certifier does not support an expression"""
        for pattern in self.criteria.patterns:
            matcher(pattern)

    def to_erase(self, chunk: Chunk, end_offset: int, counts: Counter[str]) -> Bools:
        """Whether each record of a chunk has such a key and is below ``end_offset``, bool[n]; counts those at or past it."""
        selected = self._selected(chunk)
        below: Bools = selected & (chunk.records["offset"] < end_offset)
        counts[REMAINING] += self._remaining(chunk, selected & ~below)
        return below

    def remaining(self, chunk: Chunk) -> int:
        """The number of records in a chunk that an erasure of it would remove or change."""
        return self._remaining(chunk, self._selected(chunk))

    def _remaining(self, chunk: Chunk, selected: Bools) -> int:
        # a record without value and headers is a tombstone already
        return int(_have_content(chunk, chunk.records[selected]).sum() if self.tombstones else selected.sum())

    def _selected(self, chunk: Chunk) -> Bools:
        control = (chunk.rows["magic"] >= 2) & ((chunk.rows["attributes"] & CONTROL) != 0)
        candidates = ~control[chunk.records["batch"]] & (chunk.records["key_size"] >= 0)
        selected = np.zeros(len(chunk.records), np.bool_)
        selected[candidates] = matching(self.criteria, keys_of(chunk, chunk.records[candidates]))
        return selected

    @staticmethod
    def copied(before: Chunk, after: Chunk, first: int, end: int) -> Int64s:
        """The rows of ``before`` with the bytes of one of the batches ``[first, end)`` of ``after``, int64[m]."""
        rows = after.rows[first:end]
        source_rows = np.minimum(np.searchsorted(before.rows["last_offset"], rows["last_offset"]), len(before.rows) - 1)
        equal = pc.equal(before.batches().take(pa.array(source_rows)), after.batches().slice(first, end - first))
        same: Int64s = source_rows[equal.to_numpy(zero_copy_only=False)]
        return same

    @staticmethod
    def check_untouched(before: Chunk, copied: Bools, selected: Bools, findings: Findings) -> None:
        """Check that batches without a record that is ``selected`` (bool[n]) are ``copied`` (bool[b])."""
        touched = np.zeros(len(before.rows), np.bool_)
        touched[before.records["batch"][selected]] = True
        message = "batch without an erased key is missing, or differs from its source"
        findings.add_all(before.rows["base_offset"][~touched & ~copied], message)

    def check_missing(self, before: Chunk, retained: Bools, selected: Bools, findings: Findings, counts: Counter[str]) -> None:
        """Check the retained records of ``before`` (bool[n]), and count the erased ones."""
        offsets = before.records["offset"]
        counts["records_before"] += len(offsets)
        counts["missing"] += int((~retained).sum())
        if self.tombstones:
            findings.add_all(offsets[~retained], "record is missing, it should have become a tombstone")
            return
        findings.add_all(offsets[~retained & ~selected], "record is missing though its key was not erased")
        findings.add_all(offsets[retained & selected], "record of an erased key is retained")
        erased = int((~retained & selected).sum())
        counts[ERASED] += erased
        counts[segment_count(before)] += erased

    def check_tombstones(self, before: Chunk, sources: Rows, after: Chunk, records: Rows, counts: Counter[str]) -> Findings:
        """Check that ``records`` (of ``after``) with selected keys have lost value and headers of ``sources``."""
        findings = Findings()
        findings.add_all(records["offset"][_have_content(after, records)], "record of an erased key has a value or headers")
        counts[segment_count(before)] += int(_have_content(before, sources).sum())
        return findings


def segment_count(chunk: Chunk) -> str:
    """The name of the count of records that were erased in the chunk's segment."""
    file = parse_segment_file(chunk.path.rpartition("/")[2])
    return f"{ERASED_IN}{-1 if file is None else file.base_offset}"


def _have_content(chunk: Chunk, records: Rows) -> Bools:
    """Whether each record of a chunk has a value or headers, bool[n]."""
    headers = [bool(chunk.data[record["headers_at"] : record["end"]].tobytes().strip(_NO_HEADERS)) for record in records]
    content: Bools = (records["value_size"] >= 0) | np.array(headers, np.bool_)
    return content
