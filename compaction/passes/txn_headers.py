"""Reads only batch headers, for logs whose aborted transactions must be known before the map is built."""

from __future__ import annotations

import numpy as np

from compaction.cleaning.txn_tables import TXN_ROW, summarise
from compaction.errors import of_log
from compaction.fs.filesystem import ReadableFileSystem
from compaction.logdir.blocks import SegmentReader
from compaction.passes.tasks import Slice, SliceSummary


def scan_transactions(slice_: Slice, files: ReadableFileSystem) -> SliceSummary:
    """The slice's ``TXN_ROW`` summary; the first pass verifies checksums."""
    rows = [np.empty(0, TXN_ROW)]
    try:
        with SegmentReader(files, slice_.path, slice_.start, slice_.end) as reader:
            rows += [summarise(block.rows, slice_.segment_index) for block in reader.blocks(check_crc=False)]
    except Exception as error:
        return SliceSummary(slice_.log, 0, 0, 0, rows[0], error=str(of_log(error, slice_.path, slice_.start)))
    return SliceSummary(slice_.log, 0, 0, 0, np.concatenate(rows))
