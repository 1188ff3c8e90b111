"""Presents exports as log directories, read-only: ``ROOT/<topic>-<partition>/<offset>.log``, and so on.

A log's files are found when its directory is first read. ``real_path`` leads to the stored object if that has the bytes of the
file as they are, so that tasks read it like any object; otherwise to the object's path in the layout (three names or more below
the root), which any process can open without listing the export.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from compaction.errors import LogError, StorageError
from compaction.names import HIGH_WATERMARKS, LOG_STARTS, TopicPartition, parse_partition_dir
from compaction.screen.amounts import counted
from compaction.storage.contents import InMemory, open_range
from compaction.storage.export_layout import LAYOUTS
from compaction.storage.filesystem import File, FileRange, FileStat, ReadableFileSystem, join, normal
from compaction.storage.layouts.joined_log import log_files
from compaction.storage.layouts.log_tail import local_log, local_logs
from compaction.storage.lock import require_unlocked
from compaction.storage.object_store import object_stat
from compaction.storage.stored_log import Content, ExportReader, LogFile, Place, StoredLog
from compaction.storage.uri import KEY_PREFIX, TAIL, layout_path, options_of

_LOGGER = logging.getLogger(__name__)
#: of the local tail's checkpoints, those that apply to the log as a whole
_CHECKPOINTS = (LOG_STARTS, HIGH_WATERMARKS)
_OPEN_OBJECTS = 256
#: topics that a warning names
_NAMED = 20
#: names below the root from which on a path is the layout's own
_OWN = 3


def reader_at(files: ReadableFileSystem, root: str) -> ExportReader:
    """The export at an address.

    :param files: reads its place
    """
    location = layout_path(root)
    prefix = options_of(location.root).get(KEY_PREFIX, "")
    return LAYOUTS[location.layout].reader(Place(files, location.root, location.place, prefix))


class _Export:
    """One export: its reader, its logs as far as they were read, and its local tail."""

    def __init__(self, files: ReadableFileSystem, root: str) -> None:
        options = options_of(root)
        self._files, self._root = files, root
        self._tail = options.get(TAIL)
        self._reader = reader_at(files, root)
        self._uploaded: frozenset[TopicPartition] = frozenset()
        self._logs: tuple[TopicPartition, ...] | None = None
        self._found: dict[TopicPartition, dict[str, LogFile] | LogError] = {}
        self.opened = lru_cache(maxsize=_OPEN_OBJECTS)(self._reader.open)

    @property
    def logs(self) -> tuple[TopicPartition, ...]:
        """The logs, sorted; with a local tail, also the partitions of their topics of which nothing is uploaded yet.

        :raises LockedError: a live broker holds the directory of the local tail
        """
        if self._logs is None:
            self._uploaded = frozenset(self._reader.logs())
            self._logs = tuple(sorted(self._uploaded.union(self._not_uploaded())))
        return self._logs

    def _not_uploaded(self) -> list[TopicPartition]:
        if self._tail is None:
            return []
        require_unlocked(self._tail)
        topics = {log.topic for log in self._uploaded}
        local = local_logs(self._files, self._tail)
        # Kafka never uploads its own topics
        others = sorted({log.topic for log in local if not log.topic.startswith("__")} - topics)
        if others:
            message = f"{counted(len(others), 'topic')} of the local tail without uploads, not read with this export"
            _LOGGER.warning("%s: %s: %s", self._root, message, ", ".join(others[:_NAMED]) + (", …" if others[_NAMED:] else ""))
        return [log for log in local if log.topic in topics]

    def checkpoints(self) -> dict[str, LogFile]:
        """The checkpoints of the local tail."""
        checkpoint_files: dict[str, LogFile] = {}
        for name in _CHECKPOINTS if self._tail is not None else ():
            path = join(str(self._tail), name)
            stat = self._files.stat(path)
            if stat is not None:
                checkpoint_files[name] = LogFile(stat.size, stat.mtime_ns, FileRange(path, 0, stat.size))
        return checkpoint_files

    def files_of(self, log: TopicPartition) -> dict[str, LogFile]:
        """The files of a log, by name.

        :raises LogError: it cannot be read
        """
        if log not in self._found:
            self._found[log] = self._read(log)
        files = self._found[log]
        if isinstance(files, LogError):
            raise files
        return files

    def _read(self, log: TopicPartition) -> dict[str, LogFile] | LogError:
        try:
            tail = None if self._tail is None else local_log(self._files, join(self._tail, str(log)))
            stored = self._reader.stored(log) if log in self._uploaded else StoredLog(())
            return log_files(self._files, join(self._root, str(log)), stored, tail)
        except LogError as error:
            return error


class LayoutFileSystem(ReadableFileSystem):
    """Exports by their addresses (``storage.uri``). They are assumed not to change: each is listed once.

    :param files: reads the places of exports
    """

    def __init__(self, files: ReadableFileSystem) -> None:
        self._files = files
        self._exports: dict[str, _Export] = {}

    def listdir(self, path: str) -> list[str]:
        export, parts = self._located(path)
        if not parts:
            return sorted([*map(str, export.logs), *export.checkpoints()])
        log = _log_in(export, parts)
        if log is None or len(parts) > 1:
            raise StorageError("cannot list the directory: no such log in this export", path=path)
        return sorted(export.files_of(log))

    def stat(self, path: str) -> FileStat | None:
        export, parts = self._located(path)
        if len(parts) >= _OWN:
            content = export.opened("/".join(parts))
            return object_stat(content.size, content.mtime_ns, is_dir=False)
        if not parts:
            return object_stat(0, 0, is_dir=True) if self._is_dir(path) else None
        if len(parts) == 1 and _log_in(export, parts) is not None:
            return object_stat(0, 0, is_dir=True)
        file = self._file(path)
        return None if file is None else object_stat(file.size, file.mtime_ns, is_dir=False)

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        content = self._content(path)
        if content is not None:
            return _Decoded(content) if end is None else content.reader(start, min(end, content.size))
        part = self._existing(path).content
        if not isinstance(part, FileRange):
            return InMemory(part())
        if end is None:
            return open_range(self._files, part, start)
        stat = None if part.start else self._files.stat(part.path)
        if stat is not None and stat.size == part.size:
            return self._files.open(part.path, start, min(end, part.size), uncached=uncached)
        return open_range(self._files, part, start, min(end, part.size), uncached=uncached)

    def real_path(self, path: str) -> FileRange | None:
        _, parts = self._located(path)
        file = None if len(parts) >= _OWN else self._file(path)
        if file is None:
            stat = self.stat(path)
            return FileRange(path, 0, 0 if stat is None else stat.size)
        return file.content if isinstance(file.content, FileRange) else None

    def _located(self, path: str) -> tuple[_Export, list[str]]:
        """The export, and the names below its root."""
        location = layout_path(normal(path))
        export = self._exports.get(location.root)
        if export is None:
            export = self._exports[location.root] = _Export(self._files, location.root)
        return export, location.within.split("/") if location.within else []

    def _is_dir(self, path: str) -> bool:
        stat = self._files.stat(layout_path(normal(path)).place)
        return stat is not None and stat.is_dir

    def _content(self, path: str) -> Content | None:
        export, parts = self._located(path)
        return export.opened("/".join(parts)) if len(parts) >= _OWN else None

    def _file(self, path: str) -> LogFile | None:
        export, parts = self._located(path)
        if len(parts) == 1:
            return export.checkpoints().get(parts[0])
        log = _log_in(export, parts)
        return None if log is None else export.files_of(log).get(parts[1])

    def _existing(self, path: str) -> LogFile:
        file = self._file(path)
        if file is None:
            raise StorageError("no such file in this export", path=path)
        return file


class _Decoded(File):
    """A stored object, decoded where it is read."""

    def __init__(self, content: Content) -> None:
        self._content = content

    def size(self) -> int:
        return self._content.size

    def read(self, start: int = 0, length: int | None = None) -> bytes:
        return self._content.read(start, self._content.size if length is None else length)


def _log_in(export: _Export, parts: list[str]) -> TopicPartition | None:
    """The log that a path is of, or is a file of."""
    log = parse_partition_dir(parts[0]) if parts else None
    return log if log is not None and log in export.logs else None
