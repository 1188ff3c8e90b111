"""Writes the logs of a copy in a layout of tiered storage, complete or not at all.

Tested by ``tests/exports/test_tiered_writer.py``, ``tests/jobs/test_tiered_output.py`` and
``tests/kafka/test_tiered_storage.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from compaction.errors import UsageError
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
from compaction.screen.amounts import counted
from compaction.stores.layouts.layout_view import layout_at
from compaction.stores.mixed import MixedFileSystem

_THREADS = 4


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
    """

    path: str
    layout: str
    source: str | None = None

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
        layout = None if self.source is None else layout_at(files, self.source)
        for location in discover(copy, [log_dir], Selector()):
            log, path = location.topic_partition, location.path
            copied = CopiedLog(files, path)
            uploads = new_uploads(copy, log, path) if layout is None else uploads_again(files, log, layout.stored(log))
            yield from (_Work(upload, copied) for upload in uploads)

    def _form(self, now_ms: int) -> Form:
        like_source = self.source is not None and layout_path(self.source).layout == self.layout
        return LocalTieredForm() if self.layout == LOCAL_TIERED else AivenForm(now_ms, like_source=like_source)


def _write(export: NewExport, form: Form, work: _Work) -> int:
    content = limited(work.log.content(work.upload), work.upload)
    form.write(export, work.upload, content)
    return content.size


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
    return TieredTarget(options.path, name, source)
