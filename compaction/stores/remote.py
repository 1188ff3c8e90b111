"""Files in object stores and on remote file systems, read. See ``compaction.fs.uri`` for addresses.

Objects appear whole, when what wrote them closes them; there is no rename, no lock and no mode. The time of last modification
is that of the upload, unless the manifest of an earlier output (``compaction.stores.manifest``) has the file's own.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from compaction.errors import LogError, StorageError, UsageError
from compaction.fs.filesystem import FileRange, FileStat, base_name, join, parent
from compaction.fs.uri import is_remote, split
from compaction.names import INDEX, SNAPSHOT, TIMEINDEX, TXNINDEX, parse_partition_dir
from compaction.stores.listings import is_missing, list_directory, stat_objects
from compaction.stores.source_check import Listing, Sources, content_of, is_meaningful
from compaction.stores.streams import ObjectFile, RangeReader, open_input

#: files up to this size are read whole, and the small ones of a partition together
_SMALL_BYTES = 256 * 1024
_KEPT_BYTES = 32 << 20
_OPEN_FILES = 64
_THREADS = 16
_SMALL_KINDS = (INDEX, TIMEINDEX, TXNINDEX, SNAPSHOT)


def require_finished(log_dir: str) -> None:
    """:raises UsageError: the place is an output whose run has not come to its end, or whose manifest is malformed"""
    if is_remote(log_dir):
        sources = Sources()
        for place in (log_dir, parent(log_dir)):
            try:
                sources.manifest(place)
            except LogError as error:
                raise UsageError(error.what, path=error.path, hint=error.hint) from error


class RemoteFileSystem:
    """The read side of ``compaction.fs.filesystem.FileSystem``. The places are at rest: each directory is listed once.

    What an output's manifest lists is held against it (``compaction.stores.source_check``): what is wrong with a file of a log
    is raised when anything of that log is looked at, all else when its directory is listed.
    """

    def __init__(self) -> None:
        self._sources = Sources()
        self._listings: dict[str, Listing] = {}
        self._files: OrderedDict[str, ObjectFile] = OrderedDict()
        self._small: OrderedDict[str, bytes] = OrderedDict()
        self._small_bytes = 0

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(self._listing(path.rstrip("/")).entries)

    def stat(self, path: str) -> FileStat | None:
        """What ``path`` is; ``None`` when there is no such thing.

        :raises CorruptLogError: it lies in a log of which a file is not as its manifest lists it
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
        """Whether a look at a file is a look at its directory's listing: many are asked for, or a manifest lists it."""
        known = directory in self._listings or parse_partition_dir(base_name(directory)) is not None
        return known or (is_meaningful(name) and self._sources.governing(directory) is not None)

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes from ``start``, at most ``length`` of them."""
        found = self.stat(path)
        if found is not None and found.size <= _SMALL_BYTES:
            data = self._small_file(path)
            return data[start:] if length is None else data[start : start + length]
        file = self._open(path)
        end = file.size() if length is None else min(file.size(), start + length)
        return file.read_at(end - start, start) if end > start else b""

    def reader(self, path: str, start: int, end: int, *, uncached: bool = False) -> RangeReader:
        """Opens a byte range; a store always answers with what it holds."""
        return RangeReader(path, start, end)

    def real_path(self, path: str) -> FileRange | None:
        """The file itself."""
        found = self.stat(path)
        return FileRange(path, 0, 0 if found is None else found.size)

    def _listing(self, path: str, *, missing_ok: bool = False) -> Listing:
        if path not in self._listings:
            found: dict[str, FileStat] | None = None
            try:
                found = list_directory(path)
            except StorageError as error:
                if not is_missing(error) or not (missing_ok or self._sources.governing(path) is not None):
                    raise
            listing = self._sources.check_listing(path, found or {})
            if listing.fault is not None and parse_partition_dir(base_name(path)) is None:
                raise StorageError(listing.fault.what, path=listing.fault.path, hint=listing.fault.hint)
            self._listings[path] = self._without_late(path, listing)
        return self._listings[path]

    def _without_late(self, path: str, listing: Listing) -> Listing:
        """A listing without directories that hold nothing but late uploads of tasks that were killed."""
        governing = self._sources.governing(path)
        if governing is None:
            return listing
        others = listing.entries.keys() - governing.manifest.directories_in(governing.within)
        logs = [name for name in others if listing.entries[name].is_dir and parse_partition_dir(name) is not None]
        late = {name for name in logs if not self._listing(join(path, name)).entries}
        return listing._replace(entries={name: stat for name, stat in listing.entries.items() if name not in late})

    def _open(self, path: str) -> ObjectFile:
        listing = self._listings.get(parent(path))
        if listing is not None and listing.fault is not None:
            raise listing.fault
        file = self._files.pop(path, None) or ObjectFile(path, self._sources)
        self._files[path] = file
        if len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)
        return file

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
        """All bytes of a file, as its manifest lists them."""
        listed = self._sources.entry(path)
        with open_input(path) as stream:
            data = stream.read(None)
            if listed is not None and listed[0].xxh3_128 is None:
                self._sources.check_opened(path, len(data), stream.etag())
        self._sources.check_content(path, content_of(data))
        return data

    def _neighbours(self, directory: str, path: str) -> list[str]:
        """The small files of a partition that were not read yet, from this one on: planning reads all of them."""
        taken, names = 0, []
        for name, found in sorted(self._listing(directory).entries.items()):
            each = join(directory, name)
            if each > path and name.endswith(_SMALL_KINDS) and found.size <= _SMALL_BYTES and each not in self._small:
                taken += found.size
                if taken > _KEPT_BYTES // 2:
                    break
                names.append(each)
        return names
