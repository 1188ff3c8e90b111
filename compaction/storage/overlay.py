"""A file system whose changes stay in memory: with it a dry run recovers a log exactly as a real run would, writing nothing.

Renames and copies only remember which stretch of which real file holds the bytes; written bytes (rebuilt indexes, checkpoints)
are kept. ``real_path`` leads tasks to the bytes of a file under its new name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from compaction.errors import StorageError
from compaction.storage.filesystem import Extent, FileStat, FileSystem, base_name, join, normal, parent
from compaction.storage.ranges import View


@dataclass(frozen=True)
class _Node:
    """A file as changed: a stretch of a real file, or bytes."""

    stat: FileStat
    content: Extent | bytes


class OverlayFileSystem:
    """Reads fall through to ``base``; every change stays in memory."""

    def __init__(self, base: FileSystem) -> None:
        self._base = base
        #: path -> the file now; ``None``: removed
        self._changed: dict[str, _Node | None] = {}
        #: directory -> names of it that are keys of ``_changed``: a run changes files in thousands of directories
        self._names: dict[str, set[str]] = {}
        self._touched: set[str] = set()

    @property
    def changed(self) -> bool:
        """Whether anything was written, renamed or removed."""
        return bool(self._changed)

    def changed_in(self, directory: str) -> bool:
        """Whether anything was written, renamed or removed directly in ``directory``."""
        return normal(directory) in self._touched

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

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        node = self._node(path)
        end = node.stat.size if length is None else min(node.stat.size, start + length)
        if isinstance(node.content, bytes):
            return node.content[start:end]
        return self._base.read_bytes(node.content.path, node.content.start + start, max(0, end - start))

    def view(self, path: str) -> View:
        node = self._node(path)
        if isinstance(node.content, bytes):
            return np.frombuffer(bytearray(node.content), np.uint8)
        extent = node.content
        return self._base.view(extent.path)[extent.start : extent.start + extent.size]

    def real_path(self, path: str) -> Extent:
        """The stretch of a real file that holds ``path``'s bytes.

        :raises StorageError: the bytes are in memory only
        """
        node = self._node(path)
        if isinstance(node.content, bytes):
            raise StorageError("file exists in memory only", path=path)
        return node.content

    def in_memory(self, path: str) -> bool:
        return isinstance(self._node(path).content, bytes)

    def write_file(self, path: str, data: bytes, like: FileStat | None = None) -> None:
        stat = like or self.stat(path) or FileStat(0, 0, 0o644, 0, 0, 0, is_dir=False, is_file=True)
        self._set(path, _Node(stat._replace(size=len(data)), data))

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        node = self._node(source)
        end = node.stat.size if length is None else start + length
        stat = node.stat._replace(size=end - start)
        if isinstance(node.content, bytes):
            self._set(target, _Node(stat, node.content[start:end]))
        else:
            self._set(target, _Node(stat, Extent(node.content.path, node.content.start + start, end - start)))

    def rename(self, source: str, target: str) -> None:
        node = self._node(source)
        self._set(source, None)
        self._set(target, node)

    def unlink(self, path: str) -> None:
        self._set(path, None)

    def mkdir(self, path: str, like: FileStat | None = None) -> None:
        stat = FileStat(0, 0, 0o755, 0, 0, 0, is_dir=True, is_file=False)
        if self.stat(path) is None:
            self._set(path, _Node(stat, b""))

    def rmdir(self, path: str) -> None:
        self._set(path, None)

    def utime(self, path: str, mtime_ns: int) -> None:
        node = self._node(path)
        self._set(path, replace(node, stat=node.stat._replace(mtime_ns=mtime_ns)))

    def fsync(self, path: str) -> None:
        """Nothing to make safe."""

    def fsync_dir(self, path: str) -> None:
        """Nothing to make safe."""

    def _node(self, path: str) -> _Node:
        key = normal(path)
        node = self._changed.get(key)
        if node is not None:
            return node
        stat = None if key in self._changed else self._base.stat(path)
        if stat is None:
            raise StorageError("no such file", path=path)
        return _Node(stat, Extent(key, 0, stat.size))

    def _set(self, path: str, node: _Node | None) -> None:
        key = normal(path)
        self._changed[key] = node
        self._names.setdefault(parent(key), set()).add(base_name(key))
        self._touched.add(parent(path))


class DeferredFileSystem(OverlayFileSystem):
    """An overlay over ``disk``, which is going to be changed when all is known: leftovers of earlier runs are cleared there at
    once, everything else stays in memory until then."""

    def __init__(self, disk: FileSystem) -> None:
        super().__init__(disk)
        self.disk = disk
