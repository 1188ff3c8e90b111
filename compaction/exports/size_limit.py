"""No upload that is written again becomes larger than its source.

Plugins read no more bytes of a segment than the cluster's metadata states. Cleaning makes a batch larger if it sets its delete
horizon, from which the timestamps of records are then encoded. If a segment becomes larger in this way, the source's batches
are written in place of these: their tombstones and markers are retained longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from compaction.errors import UnsupportedLogError
from compaction.exports.segment_content import SegmentContent, rebuilt_indexes
from compaction.exports.uploads import Upload
from compaction.formats.record_batch import DELETE_HORIZON
from compaction.names import LOG
from compaction.storage.filesystem import FileRange
from compaction.storage.layouts.batch_positions import view_of
from compaction.storage.ranges import View
from compaction.storage.segment_file import SegmentScan

_EQUAL = ("base_offset", "last_offset", "count", "leader_epoch", "producer_id", "base_sequence", "max_timestamp", "magic")
_V2 = 2


def limited(content: SegmentContent, upload: Upload) -> SegmentContent:
    """The content, not larger than the source.

    :raises UnsupportedLogError: it is larger for another reason
    """
    if upload.source is None:
        return content
    log, path = upload.source.files[LOG], upload.source.path
    if content.size > log.size > 0 and isinstance(log.content, FileRange):
        content = _without_horizons(content, upload, view_of(content.files, path, log), log.content)
    if content.size > log.size:
        sizes = f"has {content.size} bytes after this run, {log.size} before"
        problem = f"{sizes}: plugins read only as many bytes as the metadata states"
        raise UnsupportedLogError(problem, path=path, hint="leave this topic out")
    return content


def _without_horizons(content: SegmentContent, upload: Upload, data: View, source: FileRange) -> SegmentContent:
    """The content, with the source's batches in place of those whose only change is a new delete horizon."""
    rows, source_rows = _batches(View(upload.name, content.read, content.size)), _batches(data)
    source_rows = source_rows[
        np.minimum(np.searchsorted(source_rows["last_offset"], rows["last_offset"]), len(source_rows) - 1)
    ]
    replaced = (rows["magic"] >= _V2) & (rows["attributes"] == source_rows["attributes"] | DELETE_HORIZON)
    replaced &= rows["attributes"] != source_rows["attributes"]
    for name in _EQUAL:
        replaced &= rows[name] == source_rows[name]
    parts = tuple(_parts(content, rows, source_rows, replaced, source))
    changed = replace(content, parts=parts)
    return replace(changed, indexes={**content.indexes, **rebuilt_indexes(changed, upload)})


def _parts(
    content: SegmentContent,
    rows: NDArray[np.void],
    source_rows: NDArray[np.void],
    replaced: NDArray[np.bool_],
    source: FileRange,
) -> Iterator[FileRange]:
    copied_end = 0
    for number in np.flatnonzero(replaced):
        position = int(rows["position"][number])
        yield from content.ranges(copied_end, position)
        yield FileRange(source.path, source.start + int(source_rows["position"][number]), int(source_rows["size"][number]))
        copied_end = position + int(rows["size"][number])
    yield from content.ranges(copied_end, content.size)


def _batches(data: View) -> NDArray[np.void]:
    return np.concatenate(list(SegmentScan(data)))
