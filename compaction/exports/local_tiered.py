"""The layout of Kafka's ``LocalTieredStorage``: ``<topic>-<partition>-<topicId>/<start offset>-<segment id><kind>``.

Mirrors ``LocalTieredStorage``, ``RemoteTopicPartitionDirectory`` and ``RemoteLogSegmentFileset`` (Kafka 4.3.0). Files are
copies of the broker's; ``.leader_epoch_checkpoint`` has the leader epochs of the log up to the segment's end. The end offset is
read from the last batches. A segment without one of its required files is an unfinished upload, or partly deleted, and is
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import NoReturn

from compaction.errors import CorruptLogError, StorageError
from compaction.exports import METADATA_ELSEWHERE, ExportLayout, LogFile, Place, StoredLog, StoredSegment, when_writing
from compaction.exports.lineage import within
from compaction.exports.stored_segments import TOPIC_AND_ID, end_of, in_parallel, matching_directories, uploads_of
from compaction.files.filesystem import FileStat, base_name, join
from compaction.files.text_files import read_small_text
from compaction.formats.checkpoints import parse_leader_epochs
from compaction.names import INDEX, LOG, SNAPSHOT, TIMEINDEX, TopicPartition
from compaction.screen.amounts import counted

#: the suffix of a segment's leader epochs
EPOCHS = ".leader_epoch_checkpoint"
_REQUIRED = (LOG, INDEX, TIMEINDEX, SNAPSHOT, EPOCHS)
_DIRECTORY = re.compile(TOPIC_AND_ID.replace("-(?P<id>", r"-(?P<partition>0|[1-9][0-9]{0,9})-(?P<id>"))
_FILE = re.compile(r"(?P<name>[0-9]{1,20}-[A-Za-z0-9_-]{22})(?P<suffix>\.[a-z_]+)")
_HINT = "restore it from another copy"


class LocalTieredReader:
    def __init__(self, place: Place) -> None:
        self._at, self._files = place, place.files

    def logs(self) -> Sequence[TopicPartition]:
        return sorted(self._directories)

    @cached_property
    def _directories(self) -> dict[TopicPartition, list[tuple[str, str]]]:
        found: dict[TopicPartition, list[tuple[str, str]]] = {}
        for match in matching_directories(self._at, _DIRECTORY):
            found.setdefault(TopicPartition(match["topic"], int(match["partition"])), []).append((match[0], match["id"]))
        return found

    def stored(self, log: TopicPartition) -> StoredLog:
        topic_id, complete, incomplete = uploads_of(self._at, self._directories.get(log, []), _FILE, _REQUIRED)
        segments = in_parallel(lambda upload: self._segment(*upload), [*complete.items()])
        return StoredLog(tuple(segments), topic_id, (counted(incomplete, "incomplete upload"),) if incomplete else ())

    def _segment(self, path: str, stats: Mapping[str, FileStat]) -> StoredSegment:
        files = {kind: LogFile.of(path + kind, stat) for kind, stat in stats.items() if kind != EPOCHS}
        name, log = base_name(path), path + LOG
        start = int(name.partition("-")[0])
        end = end_of(self._files, log, start, files)
        if end <= start:
            raise CorruptLogError("has no complete batch", path=log, hint=_HINT)
        lineage = parse_leader_epochs(read_small_text(self._files, path + EPOCHS, _HINT), path + EPOCHS)
        written_ms = files[LOG].mtime_ns // 1_000_000
        epochs = within(lineage, start, end)
        return StoredSegment(log, start, end, files, epochs, partial(tuple, lineage), written_ms, name=name)

    def open(self, within: str) -> NoReturn:
        """No file of this layout is encoded."""
        raise StorageError("no such file in this export", path=join(self._at.path, within))


LAYOUT = ExportLayout(
    "tiered storage",
    LocalTieredReader,
    when_writing("compaction.exports.tiered_writer:local_tiered_target"),
    METADATA_ELSEWHERE,
    is_tiered=True,
)
