"""Checks the offset index and the time index of a segment against its batches.

The rule: an entry of the offset index is a batch's last offset and its position. An entry of the time index is a batch's last
offset and the largest timestamp up to that batch. The last entry of an inactive segment's time index has its largest timestamp.

Mirrors ``OffsetIndex``, ``TimeIndex`` and ``LogSegment.onBecomeInactiveSegment``.
"""

from __future__ import annotations

import numpy as np

from compaction.certifier.checks.log_pair import Int64s, Rows, SegmentFiles
from compaction.certifier.checks.violations import Findings
from compaction.formats.indexes import check_offset_index, check_time_index, read_offset_index, read_time_index
from compaction.formats.primitives import FormatError
from compaction.names import INDEX, TIMEINDEX
from compaction.storage.filesystem import FileSystem


class IndexChecks:
    """The checks of one segment: ``take`` its batches in order, then ``finish``."""

    def __init__(self, fs: FileSystem, files: SegmentFiles) -> None:
        self._files = files
        self._problems: list[str] = []
        offsets, times = self._read(fs, INDEX), self._read(fs, TIMEINDEX)
        self._offsets = read_offset_index(offsets, files.base_offset)
        self._times = read_time_index(times, files.base_offset)
        self._offsets_seen = np.zeros(len(self._offsets), np.bool_)
        self._times_seen = np.zeros(len(self._times), np.bool_)
        self._largest = -1
        self._last_offset = files.base_offset

    def _read(self, fs: FileSystem, kind: str) -> bytes:
        path = self._files.path(kind)
        if fs.stat(path) is None:
            self._problems.append(f"{kind} is missing")
            return b""
        data = fs.read_bytes(path)
        try:
            (check_offset_index if kind == INDEX else check_time_index)(data)
        except FormatError as error:
            self._problems.append(error.message)
        return data

    def take(self, rows: Rows, findings: Findings) -> None:
        """Check the entries of the next batches, ``BATCH_ROW[b]``."""
        last = rows["last_offset"]
        chosen, batch_rows = _entries_in(self._offsets["offset"], last)
        matches = rows["position"][batch_rows] == self._offsets["position"][chosen]
        self._offsets_seen[chosen] = True
        wrong = self._offsets["offset"][chosen[~matches]]
        findings.add_all(wrong, f"{INDEX} entry does not point to the batch with this last offset")
        chosen, batch_rows = _entries_in(self._times["offset"], last)
        largest = np.maximum.accumulate(np.maximum(rows["max_timestamp"], self._largest))
        matches = largest[batch_rows] == self._times["timestamp"][chosen]
        self._times_seen[chosen] = True
        wrong = self._times["offset"][chosen[~matches]]
        findings.add_all(wrong, f"{TIMEINDEX} entry does not have the largest timestamp up to this offset")
        self._largest, self._last_offset = int(largest[-1]), int(last[-1])

    def finish(self, findings: Findings) -> None:
        """Report entries without a batch, and an incomplete time index."""
        for problem in self._problems:
            findings.add(self._files.base_offset, problem)
        findings.add_all(self._offsets["offset"][~self._offsets_seen], f"{INDEX} entry is not the last offset of any batch")
        findings.add_all(self._times["offset"][~self._times_seen], f"{TIMEINDEX} entry is not the last offset of any batch")
        indexed = int(self._times["timestamp"][-1]) if len(self._times) else -1
        if not self._files.last and not self._problems and indexed < self._largest:
            findings.add(self._last_offset, f"{TIMEINDEX} lacks the segment's largest timestamp")


def _entries_in(entries: Int64s, last: Int64s) -> tuple[Int64s, Int64s]:
    """The entries that are the last offset of one of these batches, and the rows of those batches."""
    batch_rows = np.searchsorted(last, entries)
    chosen = np.flatnonzero((batch_rows < len(last)) & (last[np.minimum(batch_rows, len(last) - 1)] == entries))
    return chosen, batch_rows[chosen]
