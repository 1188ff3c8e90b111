"""A file system in which the first segments of some logs are files of other directories.

An incremental copy reads its source in this way: the segments that a previous copy has cleaned are files of that copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from compaction.names import LOG, SNAPSHOT, parse_segment_file
from compaction.storage.filesystem import (
    File,
    FileRange,
    FileStat,
    ReadableFileSystem,
    base_name,
    join,
    parent,
)


class Splice(NamedTuple):
    """The first segments of a log: the files with base offsets in ``[first, end)`` are in ``directory``, with ``log_at_end``
    also the ``.log`` of the segment at ``end``. There are no files below ``first``; all others are in the log's own directory.
    A producer snapshot that belongs to no segment is listed only if that directory has it, too: a broker removes those.
    """

    directory: str
    first: int
    end: int
    log_at_end: bool = False

    def has(self, name: str) -> bool:
        """Whether a file of this name is in ``directory``."""
        file = parse_segment_file(name)
        if file is None or file.suffix:
            return False
        return self.first <= file.base_offset < self.end or self._is_last_log(file.base_offset, file.kind)

    def hides(self, name: str) -> bool:
        """Whether the log's own file of this name is replaced or left out."""
        file = parse_segment_file(name)
        if file is None or file.suffix:
            return False
        return file.base_offset < self.end or self._is_last_log(file.base_offset, file.kind)

    def _is_last_log(self, base_offset: int, kind: str) -> bool:
        return self.log_at_end and base_offset == self.end and kind == LOG


def _log_of(snapshot: str) -> str:
    return snapshot.removesuffix(SNAPSHOT) + LOG


class SplicedFileSystem(ReadableFileSystem):
    """Reads the files of ``base``.

    :param splices: by path, the logs whose first segments are files of other directories
    """

    def __init__(self, base: ReadableFileSystem, splices: Mapping[str, Splice]) -> None:
        self._base, self._splices = base, splices

    def listdir(self, path: str) -> list[str]:
        names, splice = self._base.listdir(path), self._splices.get(path)
        if splice is None:
            return names
        own = [name for name in names if not splice.hides(name)]
        taken = set(filter(splice.has, self._base.listdir(splice.directory)))
        known = taken.union(own)
        stray = {name for name in taken if name.endswith(SNAPSHOT) and name not in names and _log_of(name) not in known}
        return sorted([*own, *(taken - stray)])

    def stat(self, path: str) -> FileStat | None:
        real = self._real(path)
        return None if real is None else self._base.stat(real)

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        return self._base.open(self._real(path) or path, start, end, uncached=uncached)

    def real_path(self, path: str) -> FileRange | None:
        real = self._real(path)
        return None if real is None else self._base.real_path(real)

    def _real(self, path: str) -> str | None:
        """The file of this name; ``None`` if the log has none."""
        splice = self._splices.get(parent(path)) if self._splices else None
        if splice is None:
            return path
        name = base_name(path)
        if splice.has(name):
            return join(splice.directory, name)
        return None if splice.hides(name) else path
