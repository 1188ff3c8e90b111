"""Between the passes: which logs have room for their output.

Where there is room even if nothing goes, nothing more is done. Elsewhere pass 2 is run once without writing, which gives the
exact sizes, and logs are admitted in their order, the dirtiest first, as long as there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compaction.engine.free_space import SpaceBudget
from compaction.kernels.reading.tables import OUT_ROW
from compaction.passes.tasks import CleanContext, OutputPart, PartResult

#: two index entries, and what the file system rounds up for each of a segment's files
_INDEX_ENTRY_BYTES = 20
_SEGMENT_BYTES = 5 * 4096
_TXN_ENTRY_BYTES = 34
#: batches smaller than this on average are not expected when nothing is known of them
_BATCH_BYTES = 128


def logs_without_space(
    room: SpaceBudget,
    logs: Mapping[int, CleanContext],
    pieces: Sequence[OutputPart],
    measure: Callable[[], Sequence[PartResult]],
) -> dict[int, tuple[int, int]]:
    """The logs whose output would not fit: bytes needed and bytes free.

    :param measure: runs pass 2 without writing
    """
    most = sum(_needed(each, logs[each.output.log], each.size_bytes, each.size_bytes // _BATCH_BYTES) for each in pieces)
    if room.fits({work.directory for work in logs.values()}, most):
        return {}
    found = {(result.log, result.number): result for result in measure()}
    exact = dict.fromkeys(logs, 0)
    for piece in pieces:
        result = found[piece.output.log, piece.number]
        exact[result.log] += _needed(piece, logs[result.log], result.stats.bytes_kept, result.batches)
    refused = {}
    for log, needed_bytes in exact.items():
        if not room.take(logs[log].directory, needed_bytes):
            refused[log] = needed_bytes, max(0, room.left(logs[log].directory))
    return refused


def _needed(piece: OutputPart, log: CleanContext, kept_bytes: int, batches: int) -> int:
    """Bytes on disk for ``kept_bytes`` of so many batches, indexes included; a part is there twice until the swap."""
    indexes = _INDEX_ENTRY_BYTES * (kept_bytes // max(1, log.index_interval_bytes) + 1)
    whole = kept_bytes + indexes + _SEGMENT_BYTES + _TXN_ENTRY_BYTES * len(piece.output.aborted_txns)
    return whole if piece.complete else whole + kept_bytes + OUT_ROW.itemsize * batches
