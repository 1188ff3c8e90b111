"""Writes the logs of a copy in a layout of tiered storage, complete or not at all.

Tested by ``tests/exports/test_tiered_writer.py``, ``tests/jobs/test_tiered_output.py`` and
``tests/kafka/test_tiered_storage.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from compaction.errors import CorruptLogError, LogError, UsageError
from compaction.exports.aiven_form import AivenForm
from compaction.exports.export_target import TargetOptions
from compaction.exports.local_tiered_form import LocalTieredForm
from compaction.exports.new_export import NewExport, new_export, require_empty
from compaction.exports.segment_content import CopiedLog, SegmentContent
from compaction.exports.size_limit import limited
from compaction.exports.uploads import TopicLog, Upload, new_uploads, uploads_again
from compaction.fs.filesystem import join, parent
from compaction.fs.local import LocalFileSystem
from compaction.fs.uri import AIVEN, BACKUP, LOCAL_TIERED, TAIL, is_layout, layout_path, options_of
from compaction.logdir.discover import Selector, discover
from compaction.names import TopicPartition
from compaction.screen.amounts import counted
from compaction.stores.layouts.layout_view import layout_at
from compaction.stores.layouts.log_layout import StoredLog
from compaction.stores.mixed import MixedFileSystem

_THREADS = 4
Uploads = Mapping[TopicPartition, StoredLog | LogError]


class Form(Protocol):
    """How a layout stores segments."""

    def directory(self, log: TopicLog) -> str:
        """Of a log's segments, in the export."""

    def write(self, export: NewExport, upload: Upload, content: SegmentContent) -> None:
        """Write one segment; what makes it complete for a plugin, last."""


class _Work(NamedTuple):
    upload: Upload
    log: CopiedLog


@dataclass(frozen=True)
class TieredTarget:
    """A target in a layout of tiered storage.

    :param source: the export of tiered storage whose uploads are written again, if any
    :param uploads: those of its logs, as they were listed before the logs were read: one that was uploaded later has no
        records in the copy
    """

    path: str
    layout: str
    source: str | None = None
    uploads: Uploads = field(default_factory=dict)

    def write(self, log_dir: str, now_ms: int) -> str:
        """See ``ExportTarget``."""
        work, form = list(self._work(log_dir)), self._form(now_ms)
        with new_export(self.path) as export:
            directories = {join(export.place, form.directory(each.upload.log)) for each in work}
            for directory in directories:
                export.files.mkdir(directory)
            with ThreadPoolExecutor(_THREADS) as pool:
                sizes = list(pool.map(lambda each: _write(export, form, each), work))
            for directory in {*directories, *map(parent, directories)}:
                export.files.fsync_dir(directory)
        return f"{counted(len(work), 'segment')}, {sum(sizes)} bytes of log"

    def _work(self, log_dir: str) -> Iterator[_Work]:
        copy, files = LocalFileSystem(), MixedFileSystem()
        for location in discover(copy, [log_dir], Selector()):
            log, path = location.topic_partition, location.path
            copied = CopiedLog(files, path)
            uploads = new_uploads(copy, log, path) if self.source is None else uploads_again(files, log, self._stored(log))
            yield from (_Work(upload, copied) for upload in uploads)

    def _stored(self, log: TopicPartition) -> StoredLog:
        found = self.uploads.get(log)
        if found is None:
            what = "was not uploaded when the run began"
            raise CorruptLogError(what, path=join(str(self.source), str(log)), hint="run the command again")
        if isinstance(found, LogError):
            raise found
        return found

    def _form(self, now_ms: int) -> Form:
        like_source = self.source is not None and layout_path(self.source).layout == self.layout
        return LocalTieredForm() if self.layout == LOCAL_TIERED else AivenForm(now_ms, like_source=like_source)


def _write(export: NewExport, form: Form, work: _Work) -> int:
    content = limited(work.log.content(work.upload), work.upload)
    form.write(export, work.upload, content)
    return content.size


def listed_uploads(source: str, selector: Selector) -> Uploads:
    """The uploads of an export, by log; in place of those that cannot be listed, the error. None if the export is not there.

    :raises StorageError: the export cannot be listed
    """
    files = MixedFileSystem()
    found: dict[TopicPartition, StoredLog | LogError] = {}
    if files.stat(layout_path(source).place) is None:
        return found
    layout = layout_at(files, source)
    for log in filter(selector.matches, layout.logs()):
        try:
            found[log] = layout.stored(log)
        except LogError as error:
            found[log] = error
    return found


def tiered_target(name: str, options: TargetOptions) -> TieredTarget:
    """The target in the layout of this name.

    :raises UsageError: the target is not empty, options contradict each other, or encryption would be lost
    """
    source = options.source if is_layout(options.source) and layout_path(options.source).layout != BACKUP else None
    if source is not None and layout_path(source).layout == AIVEN and name == LOCAL_TIERED and options.accepted is None:
        what = "LocalTieredStorage has no encryption: encrypted segments would be written as plain text"
        raise UsageError(what, hint="give --accept-loss to write it nevertheless, or --output-layout aiven")
    if source is not None and TAIL in options_of(layout_path(source).root):
        what = "the local tail cannot be written in a layout of tiered storage: its brokers have it"
        raise UsageError(what, hint=f"leave out --tail; then --output-layout {name} has what is uploaded")
    require_empty(options.path)
    uploads = {} if source is None or options.dry_run else listed_uploads(source, options.selector)
    return TieredTarget(options.path, name, source, uploads)
