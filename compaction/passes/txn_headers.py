"""Reads the headers of a slice for its transactions only, where aborted data must be known before the map is built."""

from __future__ import annotations

import numpy as np

from compaction.cleaning.txn_tables import TXN_ROW, summarise
from compaction.errors import of_log
from compaction.fs.filesystem import ReadableFileSystem
from compaction.logdir.blocks import SegmentReader
from compaction.passes.tasks import Slice, SliceSummary


def scan_transactions(part: Slice, files: ReadableFileSystem) -> SliceSummary:
    """The slice's ``TXN_ROW`` summary; checksums are left to the first pass."""
    rows = [np.empty(0, TXN_ROW)]
    try:
        with SegmentReader(files, part.path, part.start, part.end) as reader:
            rows += [summarise(block.rows, part.segment_index) for block in reader.blocks(check_crc=False)]
    except Exception as error:
        return SliceSummary(part.log, 0, 0, 0, rows[0], error=str(of_log(error, part.path, part.start)))
    return SliceSummary(part.log, 0, 0, 0, np.concatenate(rows))
