"""Detects an output that equals its only source: it need not be written.

Kafka rewrites such a segment with the same bytes and modification time. If little of a log is dirty, these are most of the
clean segments. The indexes must also equal those that cleaning would write. Each batch is read, and its CRC verified, as for
a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compaction.errors import LogError
from compaction.kernels.reading.tables import IN_BLOCK
from compaction.names import INDEX, LOG, TIMEINDEX, TXNINDEX, segment_file
from compaction.output.segment_writer import SegmentIndexes
from compaction.passes.tasks import CleanContext, OutputPart
from compaction.storage.filesystem import Chunk, join

#: smaller segments are written without a comparison, which would take as long
_MIN_BYTES = 1 << 20


class DiffersError(LogError):
    """The output is not the source. An error of the log, so that a scan raises it as it is; no user sees it."""

    def __init__(self) -> None:
        super().__init__("output differs from its source")


class SourceComparison:
    """Compares the output of a part with the segment that it reads; a ``Writer`` that writes nothing.

    :param source: from ``only_source``
    """

    def __init__(self, part: OutputPart, log: CleanContext, source: str) -> None:
        self._part, self._log, self._source = part, log, source
        self._indexes = SegmentIndexes(part.output.base_offset, log.index_interval_bytes, source)
        self._size = 0

    def append(self, chunks: Sequence[Chunk], out_rows: NDArray[np.void]) -> None:
        """The part's next output.

        :raises DiffersError: a batch was rewritten, or one before the last of these dropped
        """
        start, size = out_rows["start"], out_rows["size"]
        if (out_rows["source"] != IN_BLOCK).any() or (start[1:] != start[:-1] + size[:-1]).any():
            raise DiffersError
        self._indexes.append(out_rows)
        self._size += int(size.sum())

    def finish(self) -> None:
        """:raises DiffersError: a batch was dropped, or cleaning would write other indexes"""
        if self._size != self._part.size_bytes:
            raise DiffersError
        expected = dict(self._indexes.files(self._part.output.aborted_txns))
        for kind in (INDEX, TIMEINDEX, TXNINDEX):
            path = join(self._log.directory, segment_file(self._part.output.base_offset, kind))
            content = self._log.files.read_bytes(path) if self._log.files.stat(path) is not None else None
            if content != expected.get(kind):
                raise DiffersError


def only_source(part: OutputPart, log: CleanContext) -> str | None:
    """The path of the one segment that a part reads as a whole, if its output would replace it under the same name; ``None`` if
    not, or if it is small.

    :raises StorageError: the file system refused
    """
    path = join(log.directory, segment_file(part.output.base_offset, LOG))
    size = part.size_bytes
    if not part.complete or size < _MIN_BYTES or any(slice_.path != path for slice_ in part.slices):
        return None
    status = log.files.stat(path)
    return path if status is not None and status.size == size else None
