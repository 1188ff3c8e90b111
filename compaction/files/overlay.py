"""File systems over others.

``OverlayFileSystem`` keeps changes in memory: a dry run recovers a log on it exactly as a real run would, without writing. A
rename or copy only records which byte range of which real file holds the bytes; written bytes (rebuilt indexes, checkpoints)
are held in memory. Tasks find the bytes of a renamed file by ``real_path``. The operations on each directory are listed, to be
carried out on the disk later.

``SplicedFileSystem`` has the first segments of some logs from other directories. An incremental copy reads its source through
it: the segments that a previous copy has cleaned are files of that copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from compaction.errors import StorageError
from compaction.files.contents import InMemory, open_range
from compaction.files.filesystem import (
    File,
    FileRange,
    FileStat,
    FileSystem,
    ReadableFileSystem,
    base_name,
    join,
    normal,
    parent,
)
from compaction.names import LOG, SNAPSHOT, parse_segment_file


class Written(NamedTuple):
    path: str
    data: bytes
    like: str | None
    mtime_ns: int | None


class Copied(NamedTuple):
    """A byte range of ``source`` was copied to a new file."""

    source: FileRange
    path: str


class Renamed(NamedTuple):
    source: str
    path: str


class Removed(NamedTuple):
    path: str


class NamesSynced(NamedTuple):
    """The names in a directory were made durable."""

    path: str


Operation = Written | Copied | Renamed | Removed | NamesSynced


@dataclass(frozen=True)
class _Node:
    """A changed file: a byte range of a real file, or bytes."""

    stat: FileStat
    content: FileRange | bytes


class OverlayFileSystem(FileSystem):
    """Reads unchanged files from ``base``, keeps every change in memory."""

    def __init__(self, base: ReadableFileSystem) -> None:
        self._base = base
        #: path -> the changed file; ``None``: removed
        self._changed: dict[str, _Node | None] = {}
        #: directory -> its names among the keys of ``_changed``: a run changes files in thousands of directories
        self._names: dict[str, set[str]] = {}
        self._operations: dict[str, list[Operation]] = {}

    @property
    def changed(self) -> bool:
        """Whether anything was written, renamed or removed."""
        return bool(self._changed)

    def operations(self, directory: str) -> Sequence[Operation]:
        """The operations on files directly in ``directory``, in order."""
        return tuple(self._operations.get(normal(directory), ()))

    def changed_names(self, directory: str) -> list[str]:
        """The names directly in ``directory`` that were written, renamed or removed."""
        return sorted(self._names.get(normal(directory), ()))

    def revert(self, directory: str) -> None:
        """Forget all changes of files directly in ``directory``."""
        for name in self._names.pop(normal(directory), ()):
            del self._changed[join(normal(directory), name)]
        self._operations.pop(normal(directory), None)

    def listdir(self, path: str) -> list[str]:
        names = set(self._base.listdir(path)) if self._base.stat(path) is not None else set()
        directory = normal(path)
        for name in self._names.get(directory, ()):
            (names.discard if self._changed[join(directory, name)] is None else names.add)(name)
        return sorted(names)

    def stat(self, path: str) -> FileStat | None:
        key = normal(path)
        if key not in self._changed:
            return self._base.stat(path)
        node = self._changed[key]
        return None if node is None else node.stat

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        if normal(path) not in self._changed:
            return self._base.open(path, start, end, uncached=uncached)
        content = self._node(path).content
        if isinstance(content, bytes):
            return InMemory(content)
        return open_range(self._base, content, start, end, uncached=uncached)

    def real_path(self, path: str) -> FileRange | None:
        if normal(path) not in self._changed:
            return self._base.real_path(path)
        content = self._node(path).content
        return None if isinstance(content, bytes) else content

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        stat = (None if like is None else self.stat(like)) or FileStat(0, 0, 0o644, 0, 0, is_dir=False, is_file=True)
        stat = _of_new_file(stat, len(data), mtime_ns or stat.mtime_ns)
        self._set(path, _Node(stat, data), Written(path, data, like, mtime_ns))

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        node = self._node(source)
        end = node.stat.size if length is None else start + length
        stat = _of_new_file(node.stat, end - start, node.stat.mtime_ns)
        part = node.content[start:end] if isinstance(node.content, bytes) else node.content.part(start, end)
        self._set(target, _Node(stat, part), Copied(FileRange(source, start, end - start), target))

    def rename(self, source: str, target: str) -> None:
        node = self._node(source)
        self._set(source, None)
        self._set(target, node, Renamed(source, target))

    def link(self, source: str, target: str) -> bool:
        if self.stat(target) is not None:
            return False
        self._set(target, self._node(source))
        return True

    def unlink(self, path: str) -> None:
        if self.stat(path) is not None:
            self._set(path, None, Removed(path))

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        if self.stat(path) is None:
            self._set(path, _Node(FileStat(0, 0, 0o755, 0, 0, is_dir=True, is_file=False), b""))

    def remove_tree(self, path: str) -> None:
        self._set(path, None)

    def fsync(self, path: str) -> None:
        """No operation."""

    def fsync_dir(self, path: str) -> None:
        if (done := self._operations.get(normal(path))) and not isinstance(done[-1], NamesSynced):
            done.append(NamesSynced(path))

    def _node(self, path: str) -> _Node:
        key = normal(path)
        node = self._changed.get(key)
        if node is not None:
            return node
        stat = None if key in self._changed else self._base.stat(path)
        if stat is None:
            raise StorageError("no such file", path=path)
        content = self._base.real_path(key)
        return _Node(stat, self._base.read_bytes(key) if content is None else content)

    def _set(self, path: str, node: _Node | None, operation: Operation | None = None) -> None:
        key = normal(path)
        self._changed[key] = node
        self._names.setdefault(parent(key), set()).add(base_name(key))
        if operation is not None:
            self._operations.setdefault(parent(key), []).append(operation)


def _of_new_file(like: FileStat, size: int, mtime_ns: int) -> FileStat:
    """Attributes of a file that is not on the disk yet."""
    return like._replace(size=size, mtime_ns=mtime_ns, inode=0, device=0, ctime_ns=0)


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
        return file is not None and file.base_offset >= self.first and self.hides(name)

    def hides(self, name: str) -> bool:
        """Whether the log's own file of this name is replaced or left out."""
        file = parse_segment_file(name)
        if file is None or file.suffix:
            return False
        is_last_log = self.log_at_end and (file.base_offset, file.kind) == (self.end, LOG)
        return is_last_log or file.base_offset < self.end


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
        logs = {name.removesuffix(LOG) for name in taken.union(own) if name.endswith(LOG)}
        snapshots = {name for name in taken if name.endswith(SNAPSHOT) and name not in names}
        stray = {name for name in snapshots if name.removesuffix(SNAPSHOT) not in logs}
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
