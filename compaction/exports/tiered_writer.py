"""Writes the logs of a copy in a layout of tiered storage, complete or not at all.

No upload that is written again becomes larger than its source.

Plugins read no more bytes of a segment than the cluster's metadata states. Cleaning makes a batch larger if it sets its delete
horizon, from which the timestamps of records are then encoded. If a segment becomes larger in this way, the source's batches
are written in place of these: their tombstones and markers are retained longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from compaction.errors import CorruptLogError, LogError, UnsupportedLogError, UsageError
from compaction.exports import ExportLayout, StoredLog, StoredSegment, TargetOptions
from compaction.exports.layout_view import reader_at
from compaction.exports.lineage import newest_lineage, within
from compaction.exports.local_tiered import EPOCHS
from compaction.exports.new_export import NewExport, new_export, require_empty
from compaction.exports.stored_segments import view_of
from compaction.exports.uploads import CopiedLog, SegmentContent, Upload, new_uploads, rebuilt_indexes, uploads_again
from compaction.files.contents import View
from compaction.files.filesystem import FileRange, join, parent
from compaction.files.local import LocalFileSystem
from compaction.files.mixed import MixedFileSystem
from compaction.files.segment_file import SegmentScan
from compaction.files.uri import TAIL, layout_of, layout_path, options_of
from compaction.formats.checkpoints import format_leader_epochs
from compaction.formats.record_batch import DELETE_HORIZON, MAGIC
from compaction.log.discover import Selector, discover
from compaction.names import LOG, SNAPSHOT, TopicPartition
from compaction.screen.amounts import counted

_EQUAL = ("base_offset", "last_offset", "count", "leader_epoch", "producer_id", "base_sequence", "max_timestamp", "magic")


def limited(content: SegmentContent, upload: Upload) -> SegmentContent:
    """The content, not larger than the source; ``UnsupportedLogError`` if it is larger for another reason."""
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
    views = View(upload.name, content.read, content.size), data
    rows, source_rows = (np.concatenate(list(SegmentScan(each))) for each in views)
    source_rows = source_rows[
        np.minimum(np.searchsorted(source_rows["last_offset"], rows["last_offset"]), len(source_rows) - 1)
    ]
    replaced = (rows["magic"] >= MAGIC) & (rows["attributes"] == source_rows["attributes"] | DELETE_HORIZON)
    replaced &= rows["attributes"] != source_rows["attributes"]
    for name in _EQUAL:
        replaced &= rows[name] == source_rows[name]
    parts, copied_end = list[FileRange](), 0
    for row, source_row in zip(rows[replaced], source_rows[replaced], strict=True):
        position, source_start = int(row["position"]), int(source_row["position"])
        parts += content.ranges(copied_end, position)
        parts.append(source.part(source_start, source_start + int(source_row["size"])))
        copied_end = position + int(row["size"])
    parts += content.ranges(copied_end, content.size)
    changed = replace(content, parts=tuple(parts))
    return replace(changed, indexes={**content.indexes, **rebuilt_indexes(changed, upload)})


_THREADS = 4
_HINT = "run the command again while nothing is uploaded"
Uploads = Mapping[TopicPartition, StoredLog | LogError]


class Form(Protocol):
    """The form in which a layout stores segments."""

    def directory(self, upload: Upload) -> str:
        """The directory of the segments of a log in the export."""

    def write(self, export: NewExport, upload: Upload, content: SegmentContent, now_ms: int) -> None:
        """Write one segment; the file that makes it complete for a plugin is written last."""


@dataclass(frozen=True)
class TieredTarget:
    """A target in a layout of tiered storage.

    :param source: the export of tiered storage whose uploads are written again, if any
    :param uploads: the uploads of its logs, as listed before the logs were read: later uploads have no records in the copy
    """

    path: str
    form: Form
    source: str | None = None
    uploads: Uploads = field(default_factory=dict)

    def write(self, log_dir: str, now_ms: int) -> str:
        """See ``ExportTarget``.

        :raises CorruptLogError: a batch of the copy is in no upload, because it was uploaded during the run
        """
        logs = list(self._logs(log_dir))
        work = [(log, upload) for log, uploads in logs for upload in uploads]

        def write_upload(log_and_upload: tuple[CopiedLog, Upload]) -> int:
            log, upload = log_and_upload
            content = limited(log.content(upload), upload)
            self.form.write(export, upload, content, now_ms)
            return content.size

        with new_export(self.path, log_dir) as export:
            directories = {join(export.place, self.form.directory(upload)) for _, upload in work}
            for directory in directories:
                export.mkdir(directory)
            with ThreadPoolExecutor(_THREADS) as pool:
                sizes = list(pool.map(write_upload, work))
            for log, _ in logs:
                if (offset := log.unused_from()) is not None:
                    problem = f"{log.name}: offset {offset} of the output is in no segment that existed when the run began"
                    raise CorruptLogError(problem, path=self.source, hint=_HINT)
            for directory in {*directories, *map(parent, directories)}:
                export.files.fsync_dir(directory)
        return f"{counted(len(work), 'segment')}, {sum(sizes)} bytes of log"

    def _logs(self, log_dir: str) -> Iterator[tuple[CopiedLog, list[Upload]]]:
        copy, files = LocalFileSystem(), MixedFileSystem()
        again = None if self.source is None else reader_at(files, self.source)
        for location in discover(copy, [log_dir], Selector()):
            log, path = location.topic_partition, location.path
            if again is None:
                uploads = new_uploads(copy, log, path)
            else:
                address = join(str(self.source), str(log))
                stored = self.uploads.get(log)
                if stored is None:
                    raise CorruptLogError("was not uploaded when the run began", path=address, hint=_HINT)
                if isinstance(stored, LogError):
                    raise stored
                if stored.segments:
                    _require_same(stored, again.stored(log), address)
                uploads = uploads_again(files, log, stored)
            yield CopiedLog(files, path, log), list(uploads)


def _require_same(listed: StoredLog, relisted: StoredLog, path: str) -> None:
    """Check that uploads have not changed since they were listed: records are written under the listed segment ids and epochs.

    New uploads after the listed end are permitted if their leader continues the log.

    :raises CorruptLogError: a listed upload was changed or removed, or a new one may have changed the listed offsets
    """
    before, after = ({segment.path: _identity(segment) for segment in log.segments} for log in (listed, relisted))
    start = min((segment.start_offset for segment in listed.segments), default=0)
    end = max((segment.end_offset for segment in listed.segments), default=0)
    for segment in relisted.segments:
        if segment.path not in before and segment.start_offset < end:
            raise CorruptLogError("was uploaded while the logs were read", path=segment.path, hint=_HINT)
    for changed_path in sorted(before.keys() - after.keys()) + [
        name for name in after if before.get(name, after[name]) != after[name]
    ]:
        raise CorruptLogError("was removed or changed while the logs were read", path=changed_path, hint=_HINT)
    lineages = (newest_lineage(log.segments) for log in (listed, relisted))
    if listed.topic_id != relisted.topic_id or len({within(lineage, start, end) for lineage in lineages}) > 1:
        problem = "a new leader or a re-created topic has uploaded segments while the logs were read"
        raise CorruptLogError(problem, path=path, hint=_HINT)


def _identity(segment: StoredSegment) -> tuple[object, ...]:
    sizes = {kind: (file.size, file.mtime_ns) for kind, file in segment.files.items()}
    return (segment.name, segment.start_offset, segment.end_offset, segment.epochs, segment.written_ms, sizes)


def listed_uploads(source: str, selected: Callable[[TopicPartition], bool]) -> Uploads:
    """The uploads of an export by log, or the error of a log that cannot be listed; empty if the export does not exist.

    :raises StorageError: the export cannot be listed
    """
    files = MixedFileSystem()
    uploads: dict[TopicPartition, StoredLog | LogError] = {}
    if files.stat(layout_path(source).place) is None:
        return uploads
    layout = reader_at(files, source)
    for log in filter(selected, layout.logs()):
        try:
            uploads[log] = layout.stored(log)
        except LogError as error:
            uploads[log] = error
    return uploads


def tiered_source(options: TargetOptions) -> ExportLayout | None:
    """The layout of the source, if it is tiered storage."""
    layout = layout_of(options.source)
    return layout if layout is not None and layout.is_tiered else None


def tiered_target(name: str, options: TargetOptions, form: Form) -> TieredTarget:
    """The target in the layout of this name; ``UsageError`` if the target is not empty, or options contradict each other."""
    source = None if tiered_source(options) is None else options.source
    if source is not None and TAIL in options_of(layout_path(source).root):
        problem = "--tail cannot be written in a layout of tiered storage: the brokers have its segments"
        raise UsageError(problem, hint=f"leave out --tail; then --output-layout {name} writes the uploaded segments")
    require_empty(options.path)
    uploads = {} if source is None or options.dry_run else listed_uploads(source, options.selected)
    return TieredTarget(options.path, form, source, uploads)


class LocalTieredForm:
    def directory(self, upload: Upload) -> str:
        return f"{upload.log}-{upload.topic_id}"

    def write(self, export: NewExport, upload: Upload, content: SegmentContent, now_ms: int) -> None:
        stem = join(export.place, self.directory(upload), upload.name)
        small = {**content.indexes, SNAPSHOT: upload.snapshot(), EPOCHS: format_leader_epochs(upload.lineage()).encode()}
        export.write(stem + LOG, content.blocks())
        for suffix, data in small.items():
            export.write(stem + suffix, [data])


def local_tiered_target(options: TargetOptions) -> TieredTarget:
    source = tiered_source(options)
    if source is not None and source.encrypts and options.accepted is None:
        problem = "LocalTieredStorage has no encryption: encrypted segments would be written as plain text"
        raise UsageError(problem, hint="give --accept-loss to write it nevertheless, or --output-layout aiven")
    return tiered_target("local-tiered", options, LocalTieredForm())
