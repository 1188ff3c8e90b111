"""One file system for local paths and URIs, which dispatches each operation by its path; and the files of an output in a store.

Objects appear atomically when their writer closes them; there are no renames, locks and modes. The modification time is that of
the upload, unless the manifest of an earlier output (``compaction.files.manifest``) has the file's own.

A run marks a prefix of a store as its own: of two runs that begin there at once, at most one continues. A store has no locks,
and its clients have no conditional writes. Before a run writes to an empty prefix, it puts an object of its own there, its
claim, and lists the prefix: if anything else is there, it removes its claim and fails. The claim is removed when the marker is
there. As listings are consistent, of two runs the one that lists last finds the claim, the marker or objects of the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property, lru_cache, partial

import xxhash

from compaction.errors import LogError, StorageError, UsageError
from compaction.files.contents import InMemory, ReadAhead, read_range
from compaction.files.filesystem import (
    DISK,
    EXPORTS,
    OBJECTS,
    DiskFileSystem,
    File,
    FileRange,
    FileStat,
    FileSystem,
    Output,
    ReadableFileSystem,
    base_name,
    join,
    parent,
    removed_on_failure,
    split,
    storage_of,
)
from compaction.files.local import LocalFileSystem, LocalOutput
from compaction.files.manifest import MARKER, Listing, Manifests, Marker, shared
from compaction.files.object_store import (
    ObjectFile,
    ObjectOutput,
    delete_object,
    is_missing,
    list_directory,
    located,
    read_whole,
    remote_errors,
    stat_objects,
)
from compaction.files.uri import is_inside, layouts, place_of
from compaction.names import INDEX, SNAPSHOT, TIMEINDEX, TXNINDEX, is_significant, parse_partition_dir

#: files up to this size are read completely, those of a partition together
_SMALL_BYTES = 256 * 1024
_KEPT_BYTES = 32 << 20
_OPEN_FILES = 64
_THREADS = 16
_SMALL_KINDS = (INDEX, TIMEINDEX, TXNINDEX, SNAPSHOT)
#: stores in which a directory is only a prefix of keys
_FLAT = frozenset({"s3", "gcs", "abfs"})
#: what the name of a claim begins with; the run follows
CLAIM = "_claim-"
ONE_RUN = "let one run at a time write there"


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
    file = ObjectFile(path, shared().check if checked else None)
    return ReadAhead(file, start, end, _hash_check(file, path, end) if checked and not start else None)


def _hash_check(file: File, path: str, end: int) -> Callable[[memoryview], None]:
    """Gets the bytes of an object, and with the last ones compares it with the content hash of its manifest entry."""
    content, hashed = xxhash.xxh3_128(), 0

    def add(data: memoryview) -> None:
        nonlocal hashed
        content.update(data)
        hashed += len(data)
        if hashed == end == file.size():
            shared().check(path, end, xxh3_128=content.hexdigest())

    return add


class RemoteFileSystem(ReadableFileSystem):
    """Log directories are assumed not to change: each directory is listed once.

    Files are compared with their output's manifest (``compaction.files.manifest``). A mismatch of a log's file is raised
    by any access to that log; any other mismatch, when its directory is listed.
    """

    def __init__(self) -> None:
        self._sources = Manifests()
        self._listings: dict[str, Listing] = {}
        self._opened = lru_cache(maxsize=_OPEN_FILES)(partial(ObjectFile, check=self._sources.check))
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
        small = stat is not None and stat.size <= _SMALL_BYTES
        return InMemory(self._small_file(path)) if small else self._opened(path)

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
            return ObjectFile(path, self._sources.check).read()
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


def file_system(paths: Iterable[str]) -> DiskFileSystem:
    """The file system for these paths and URIs, and everything below them."""
    return LocalFileSystem() if all(storage_of(path) is DISK for path in paths) else MixedFileSystem()


class MixedFileSystem(LocalFileSystem):
    """Paths name local files, URIs name objects or files of exports. Objects are read and created, never changed in place; they
    have no locks, and are durable once they are closed. A file copied from a URI belongs to the current user."""

    def __init__(self) -> None:
        self._remote = RemoteFileSystem()

    def __reduce__(self) -> tuple[type[MixedFileSystem], tuple[()]]:
        """Open objects and listings are not pickled."""
        return MixedFileSystem, ()

    @cached_property
    def _exports(self) -> ReadableFileSystem:
        return layouts().file_system(self)

    def _of(self, path: str) -> ReadableFileSystem:
        storage = storage_of(path)
        return _LOCAL if storage is DISK else self._exports if storage is EXPORTS else self._remote

    def listdir(self, path: str) -> list[str]:
        return self._of(path).listdir(path)

    def stat(self, path: str) -> FileStat | None:
        return self._of(path).stat(path)

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        return self._of(path).open(path, start, end, uncached=uncached)

    def real_path(self, path: str) -> FileRange | None:
        return self._of(path).real_path(path)

    def create(self, path: str, like: str | None, *, write_behind: bool = False) -> Output:
        return super().create(path, like, write_behind=write_behind) if storage_of(path) is DISK else ObjectOutput(path)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        if storage_of(source) is DISK:
            super().copy(source, target, start, length)
            return
        stat = self.stat(source)
        size = length if length is not None else 0 if stat is None else stat.size - start
        with removed_on_failure(LocalOutput(target, None)) as output:
            for block in read_range(self, FileRange(source, start, size)):
                output.write([block])
            output.close(sync=False, mtime_ns=None if stat is None else stat.mtime_ns)

    def copy_inside(self, source: str, target: str) -> bool:
        return storage_of(source) is DISK and super().copy_inside(source, target)

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        place = None if like is None else place_of(like)
        super().mkdir(path, place if place is not None and storage_of(place).attributes else None, private=private)


_LOCAL = LocalFileSystem()


class OutputFileSystem(FileSystem):
    """The files of an unpublished output. Nothing is cached; a rename is a copy and a removal."""

    def __init__(self) -> None:
        self._sources = MixedFileSystem()

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(name for name in list_directory(path) if name)
        except StorageError as error:
            if is_missing(error):
                return []
            raise

    def stat(self, path: str) -> FileStat | None:
        return stat_objects([path])[0]

    def open(self, path: str, start: int = 0, end: int | None = None, *, uncached: bool = False) -> File:
        return ObjectFile(path) if end is None else open_sequential(path, start, end, checked=False)

    def write_file(self, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
        output = ObjectOutput(path)
        output.write([data])
        output.close(sync=True)

    def copy(self, source: str, target: str, start: int = 0, length: int | None = None) -> None:
        """Copy a local file or an object into a new object; within one store, the store copies it.

        :raises CorruptLogError: the file differs from its manifest entry
        """
        stat = stat_objects([source])[0] if is_inside(source, split(target)[0]) else self._sources.stat(source)
        size = 0 if stat is None else stat.size
        part = FileRange(source, start, size - start if length is None else length)
        if part == (source, 0, size) and self.copy_inside(source, target):
            return
        with removed_on_failure(ObjectOutput(target)) as output:
            for block in read_range(self._sources, part):
                output.write([block])
            output.close(sync=True)

    def copy_inside(self, source: str, target: str) -> bool:
        """Let the store copy an object of its own, unless it differs from its manifest entry."""
        if not is_inside(source, split(target)[0]) or not _is_as_listed(source):
            return False
        self.copy_within(source, target)
        return True

    def copy_within(self, source: str, target: str) -> None:
        (store, key), (_, target_key) = located(source), located(target)
        with remote_errors(target, f"copy {source} here"):
            store.copy_file(key, target_key)

    def rename(self, source: str, target: str) -> None:
        self.copy_within(source, target)
        delete_object(source)

    def unlink(self, path: str) -> None:
        delete_object(path)

    def mkdir(self, path: str, like: str | None = None, *, private: bool = False) -> None:
        """Make a directory on a remote file system; a store has none."""
        store, key = located(path)
        if store.type_name not in _FLAT:
            with remote_errors(path, "make the directory"):
                store.create_dir(key, recursive=True)

    def remove_tree(self, path: str) -> None:
        store, key = located(path)
        try:
            with remote_errors(path, "remove the directory"):
                store.delete_dir(key)
        except StorageError as error:
            if not is_missing(error):
                raise

    def fsync(self, path: str) -> None:
        """No operation: an object is durable when its upload is complete."""

    def fsync_dir(self, path: str) -> None:
        """No operation: an object is durable when its upload is complete."""


def _is_as_listed(source: str) -> bool:
    """Whether an object need not be read to be copied: its manifest has no entry of it, or one with its ETag."""
    listed = shared().entry(source)
    return listed is None or (listed[0].etag is not None and ObjectFile(source, shared().check).etag() == listed[0].etag)


def put_marker(files: FileSystem, path: str, run: str, content: bytes) -> None:
    """Write a run's marker, if nothing else is there. Its claim has the same content.

    :raises UsageError: another run has begun to write there
    """
    claim = CLAIM + run
    files.mkdir(path)
    try:
        files.write_file(join(path, claim), content)
        _require_alone(files, path, claim)
        files.write_file(join(path, MARKER), content)
    except BaseException:
        with suppress(StorageError):
            files.unlink(join(path, claim))
        raise
    files.unlink(join(path, claim))


def _require_alone(files: FileSystem, path: str, claim: str) -> None:
    if files.listdir(path) != [claim]:
        raise UsageError("another run writes to --output-dir", path=path, hint=ONE_RUN)


def marked_by(directory: str) -> str | None:
    """The run whose marker is there; ``None`` if there is none, or it is malformed."""
    path = join(directory, MARKER)
    return None if stat_objects([path])[0] is None else Marker.parse(read_whole(path)).run


def require_own(directory: str, run: str) -> None:
    """:raises StorageError: another run has begun to write there"""
    if marked_by(directory) != run:
        raise StorageError("another run writes to this directory", path=directory, hint=ONE_RUN)
