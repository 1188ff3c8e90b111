"""Writes segments in the layout of Kafka's ``LocalTieredStorage``; see ``storage.layouts.local_tiered``."""

from __future__ import annotations

from compaction.exports.new_export import NewExport
from compaction.exports.segment_content import SegmentContent
from compaction.exports.uploads import TopicLog, Upload
from compaction.formats.checkpoints import format_leader_epochs
from compaction.names import LOG, SNAPSHOT
from compaction.storage.filesystem import join
from compaction.storage.layouts.local_tiered import EPOCHS


class LocalTieredForm:
    """Each file of a segment is a file."""

    def directory(self, log: TopicLog) -> str:
        """Of a log's segments, in the export."""
        return f"{log.name}-{log.topic_id}"

    def write(self, export: NewExport, upload: Upload, content: SegmentContent) -> None:
        """Write one segment."""
        stem = join(export.place, self.directory(upload.log), upload.name)
        small = {**content.indexes, SNAPSHOT: upload.snapshot(), EPOCHS: format_leader_epochs(upload.lineage()).encode()}
        export.write(stem + LOG, content.blocks())
        for suffix, data in small.items():
            export.write(stem + suffix, [data])
