"""Reads files in object stores and on remote file systems; for URIs see ``compaction.files.uri``.

Objects appear atomically when their writer closes them; there are no renames, locks and modes. The modification time is that of
the upload, unless the manifest of an earlier output (``compaction.files.manifest``) has the file's own.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import lru_cache, partial

import xxhash

from compaction.errors import LogError, StorageError, UsageError
from compaction.files.contents import InMemory, ReadAhead
from compaction.files.filesystem import (
    OBJECTS,
    File,
    FileStat,
    ReadableFileSystem,
    base_name,
    join,
    parent,
    split,
    storage_of,
)
from compaction.files.manifest import Listing, Manifests, is_significant, shared
from compaction.files.object_store import ObjectFile, is_missing, list_directory, read_whole, stat_objects
from compaction.names import INDEX, SNAPSHOT, TIMEINDEX, TXNINDEX, parse_partition_dir

#: files up to this size are read completely, those of a partition together
_SMALL_BYTES = 256 * 1024
_KEPT_BYTES = 32 << 20
_OPEN_FILES = 64
_THREADS = 16
_SMALL_KINDS = (INDEX, TIMEINDEX, TXNINDEX, SNAPSHOT)


class _KeptFile(ObjectFile):
    """An object that stays open for later reads."""

    def close(self) -> None:
        """No operation."""


def require_finished(log_dir: str) -> None:
    """:raises UsageError: the URI is an output of an unfinished run, or its manifest is malformed"""
    if storage_of(log_dir) is OBJECTS:
        sources = Manifests()
        for root in (log_dir, parent(log_dir)):
            try:
                sources.manifest(root)
            except LogError as error:
                raise UsageError(error.message, path=error.path, hint=error.hint) from error


def open_sequential(path: str, start: int, end: int, *, checked: bool = True) -> File:
    """Open ``[start, end)`` of an object to be read sequentially. An object of an output is compared with its manifest entry:
    ETag and size on opening, the content hash if it is read completely.

    :param checked: ``False`` to read back an object of this run, whose manifest is not written yet
    :raises StorageError: the object cannot be opened
    """
    if not checked:
        return ReadAhead(ObjectFile(path), start, end)
    file = ObjectFile(path, shared().check)
    return ReadAhead(file, start, end, None if start else _HashCheck(file, path, end).add)


class _HashCheck:
    """Compares an object that is read completely with the content hash of its manifest entry."""

    def __init__(self, file: File, path: str, end: int) -> None:
        self._file, self._path, self._end = file, path, end
        self._hash = xxhash.xxh3_128()
        self._hashed = 0

    def add(self, data: memoryview) -> None:
        """:raises CorruptLogError: these are the last bytes, and the object differs from its manifest entry"""
        self._hash.update(data)
        self._hashed += len(data)
        if self._hashed == self._end == self._file.size():
            shared().check(self._path, self._end, xxh3_128=self._hash.hexdigest())


class RemoteFileSystem(ReadableFileSystem):
    """Log directories are assumed not to change: each directory is listed once.

    Files are compared with their output's manifest (``compaction.files.manifest``). A mismatch of a log's file is raised
    by any access to that log; any other mismatch, when its directory is listed.
    """

    def __init__(self) -> None:
        self._sources = Manifests()
        self._listings: dict[str, Listing] = {}
        self._opened = lru_cache(maxsize=_OPEN_FILES)(partial(_KeptFile, check=self._sources.check))
        self._small: OrderedDict[str, bytes] = OrderedDict()
        self._small_bytes = 0

    def listdir(self, path: str) -> list[str]:
        return sorted(self._listing(path.rstrip("/")).entries)

    def stat(self, path: str) -> FileStat | None:
        """The attributes of ``path``; ``None`` if nothing is there.

        :raises CorruptLogError: a file of its log differs from its manifest entry
        """
        path = path.rstrip("/")
        directory = parent(path)
        if not split(path)[1] or not self._is_listed(directory, base_name(path)):
            return stat_objects([path])[0]
        listing = self._listing(directory, missing_ok=True)
        if listing.fault is not None:
            raise listing.fault
        return listing.entries.get(base_name(path))

    def _is_listed(self, directory: str, name: str) -> bool:
        """Whether to answer ``stat`` from the directory's listing: of a partition, or if a manifest applies."""
        known = directory in self._listings or parse_partition_dir(base_name(directory)) is not None
        return known or (is_significant(name) and self._sources.governing(directory) is not None)

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        """Open a file; stores have no page cache, so ``uncached`` has no effect."""
        if end is not None:
            return open_sequential(path, start, end)
        stat = self.stat(path)
        return InMemory(self._small_file(path)) if stat is not None and stat.size <= _SMALL_BYTES else self._large_file(path)

    def _listing(self, path: str, *, missing_ok: bool = False) -> Listing:
        if path not in self._listings:
            entries: dict[str, FileStat] | None = None
            try:
                entries = list_directory(path)
            except StorageError as error:
                if not is_missing(error) or not (missing_ok or self._sources.governing(path) is not None):
                    raise
            listing = self._sources.check_listing(path, entries or {})
            if listing.fault is not None and parse_partition_dir(base_name(path)) is None:
                raise StorageError(listing.fault.message, path=listing.fault.path, hint=listing.fault.hint)
            self._listings[path] = self._without_late(path, listing)
        return self._listings[path]

    def _without_late(self, path: str, listing: Listing) -> Listing:
        """A listing without the directories that contain only late uploads of killed tasks."""
        governing = self._sources.governing(path)
        if governing is None:
            return listing
        others = listing.entries.keys() - governing.folder.folders
        logs = [name for name in others if listing.entries[name].is_dir and parse_partition_dir(name) is not None]
        late = {name for name in logs if not self._listing(join(path, name)).entries}
        return listing._replace(entries={name: stat for name, stat in listing.entries.items() if name not in late})

    def _large_file(self, path: str) -> File:
        listing = self._listings.get(parent(path))
        if listing is not None and listing.fault is not None:
            raise listing.fault
        return self._opened(path)

    def _small_file(self, path: str) -> bytes:
        if path not in self._small:
            directory = parent(path)
            wanted = [path]
            if parse_partition_dir(base_name(directory)) is not None and base_name(path).endswith(_SMALL_KINDS):
                wanted += self._neighbours(directory, path)
            with ThreadPoolExecutor(min(_THREADS, len(wanted))) as pool:
                for name, data in zip(wanted, pool.map(self._checked, wanted), strict=True):
                    self._small[name] = data
                    self._small_bytes += len(data)
            while self._small_bytes > _KEPT_BYTES and len(self._small) > 1:
                self._small_bytes -= len(self._small.popitem(last=False)[1])
        self._small.move_to_end(path)
        return self._small[path]

    def _checked(self, path: str) -> bytes:
        """The content of a file, compared with its manifest entry."""
        listed = self._sources.entry(path)
        if listed is not None and listed[0].xxh3_128 is None:
            with closing(ObjectFile(path, self._sources.check)) as file:
                return file.read()
        data = read_whole(path)
        self._sources.check(path, len(data), xxh3_128=xxhash.xxh3_128_hexdigest(data))
        return data

    def _neighbours(self, directory: str, path: str) -> list[str]:
        """The unread small files of a partition after ``path``: planning reads all of them."""
        taken, names = 0, []
        for name, found in sorted(self._listing(directory).entries.items()):
            neighbour = join(directory, name)
            if neighbour > path and name.endswith(_SMALL_KINDS) and found.size <= _SMALL_BYTES and neighbour not in self._small:
                taken += found.size
                if taken > _KEPT_BYTES // 2:
                    break
                names.append(neighbour)
        return names
