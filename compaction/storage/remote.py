"""Files in object stores and on remote file systems, read. See ``compaction.storage.places`` for addresses.

Objects appear whole, when what wrote them closes them; there is no rename, no lock and no mode. The time of last modification
is that of the upload, unless the manifest of an earlier output (``compaction.storage.manifest``) has the file's own.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from compaction.errors import StorageError, UsageError
from compaction.names import INDEX, SNAPSHOT, TIMEINDEX, TXNINDEX, parse_partition_dir
from compaction.storage.filesystem import Extent, FileStat, base_name, join, parent
from compaction.storage.manifest import MANIFEST, MARKER, Manifest
from compaction.storage.places import NOT_IN_PLACE, is_remote, split
from compaction.storage.stores import located, remote_errors
from compaction.storage.streams import ObjectFile, RangeReader, read_whole

#: files up to this size are read whole, and the small ones of a partition together
_SMALL_BYTES = 256 * 1024
_KEPT_BYTES = 32 << 20
_OPEN_FILES = 64
_THREADS = 16
#: the store whose listings, as pyarrow gives them, have only directories that somebody has put there as objects
_ONLY_MARKED = "gcs"
_SMALL_KINDS = (INDEX, TIMEINDEX, TXNINDEX, SNAPSHOT)


def _stat_of(info: Any) -> FileStat:
    """A listed object; everybody may read it, and copies belong to whoever makes them."""
    from pyarrow import fs

    is_dir = info.type == fs.FileType.Directory
    mode = 0o755 if is_dir else 0o644
    return FileStat(
        info.size or 0, info.mtime_ns or 0, mode, os.geteuid(), os.getegid(), 0, is_dir, info.type == fs.FileType.File
    )


def list_directory(path: str, *, recursive: bool = False) -> dict[str, FileStat]:
    """What lies in a directory (with ``recursive``: below it), by its name relative to the directory.

    :raises StorageError: there is no such directory, or the store refused
    """
    from pyarrow import fs

    store, key = located(path)
    folded = store.type_name == _ONLY_MARKED and not recursive
    with remote_errors(path, "list the directory"):
        found = store.get_file_info(fs.FileSelector(key, recursive=recursive or folded))
    start = len(key.rstrip("/")) + 1
    names = {info.path.rstrip("/")[start:]: _stat_of(info) for info in found}
    return _folded(names) if folded else names


def _folded(names: Mapping[str, FileStat]) -> dict[str, FileStat]:
    """Of what lies below a directory, what lies in it."""
    found: dict[str, FileStat] = {}
    for name, stat in names.items():
        first, slash, _ = name.partition("/")
        found.setdefault(first, FileStat(0, 0, 0o755, stat.uid, stat.gid, 0, True, False) if slash else stat)
    return found


def look_up(paths: Sequence[str]) -> list[FileStat | None]:
    """What each of some addresses of one store is; ``None`` where nothing is."""
    from pyarrow import fs

    if not paths:
        return []
    found = [located(path) for path in paths]
    with remote_errors(paths[0], "look at the file"):
        infos = found[0][0].get_file_info([key for _, key in found])
    return [None if info.type == fs.FileType.NotFound else _stat_of(info) for info in infos]


def _look_up_if_allowed(paths: Sequence[str]) -> list[FileStat | None]:
    """``look_up`` for what need not be there; what may not be looked at is not there."""
    try:
        return look_up(paths)
    except StorageError:
        return [None] * len(paths)


def require_finished(log_dir: str) -> None:
    """:raises UsageError: the place is an output whose run has not come to its end"""
    for place in (log_dir, parent(log_dir)):
        if is_remote(log_dir):
            done, begun = _look_up_if_allowed([join(place, MANIFEST), join(place, MARKER)])
            if begun is not None and done is None:
                what = "this output is unfinished: the run that writes it was stopped, or is still at work"
                raise UsageError(what, path=place, hint="run the job that writes it again")


class RemoteFileSystem:
    """The read side of ``compaction.storage.filesystem.FileSystem``. The places are at rest: each directory is listed once."""

    def __init__(self) -> None:
        self._listings: dict[str, dict[str, FileStat]] = {}
        self._manifests: dict[str, Manifest | None] = {}
        self._files: OrderedDict[str, ObjectFile] = OrderedDict()
        self._small: OrderedDict[str, bytes] = OrderedDict()
        self._small_bytes = 0

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(self._entries(path.rstrip("/")))

    def stat(self, path: str) -> FileStat | None:
        """What ``path`` is; ``None`` when there is no such thing."""
        path = path.rstrip("/")
        directory = parent(path)
        if split(path)[1] and (directory in self._listings or parse_partition_dir(base_name(directory)) is not None):
            return self._entries(directory, missing_ok=True).get(base_name(path))
        return look_up([path])[0]

    def read_bytes(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes from ``start``, at most ``length`` of them."""
        found = self.stat(path)
        if found is not None and found.size <= _SMALL_BYTES:
            data = self._small_file(path)
            return data[start:] if length is None else data[start : start + length]
        file = self._open(path)
        end = file.size() if length is None else min(file.size(), start + length)
        return file.read_at(end - start, start) if end > start else b""

    def reader(self, path: str, start: int, end: int, *, fresh: bool = False) -> RangeReader:
        """Opens a byte range; a store always answers with what it holds."""
        return RangeReader(path, start, end)

    def real_path(self, path: str) -> Extent | None:
        """The file itself."""
        found = self.stat(path)
        return Extent(path, 0, 0 if found is None else found.size)

    def _entries(self, path: str, *, missing_ok: bool = False) -> dict[str, FileStat]:
        if path not in self._listings:
            try:
                found = list_directory(path)
            except StorageError as error:
                if not missing_ok or not isinstance(error.__cause__, FileNotFoundError):
                    raise
                found = {}
            self._listings[path] = self._as_written(path, found)
        return self._listings[path]

    def _as_written(self, path: str, found: dict[str, FileStat]) -> dict[str, FileStat]:
        """A listing with the times that a manifest has, and without what only an output has."""
        place = parent(path) if parse_partition_dir(base_name(path)) is not None else path
        for root in (place, parent(place)):
            manifest = self._manifest(root)
            if manifest is not None:
                prefix = f"{path[len(root) + 1 :]}/" if path != root else ""
                times = {name: manifest.mtime_ns(prefix + name, stat.size) for name, stat in found.items() if stat.is_file}
                found = {
                    name: stat if (mtime_ns := times.get(name)) is None else stat._replace(mtime_ns=mtime_ns)
                    for name, stat in found.items()
                }
                break
        return {name: stat for name, stat in found.items() if name not in (MANIFEST, MARKER, "")}

    def _manifest(self, root: str) -> Manifest | None:
        if root not in self._manifests:
            path = join(root, MANIFEST)
            there = _look_up_if_allowed([path])[0] is not None
            self._manifests[root] = Manifest.parse(read_whole(path), path) if there else None
        return self._manifests[root]

    def _open(self, path: str) -> ObjectFile:
        file = self._files.pop(path, None) or ObjectFile(path)
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
                for name, data in zip(wanted, pool.map(read_whole, wanted), strict=True):
                    self._small[name] = data
                    self._small_bytes += len(data)
            while self._small_bytes > _KEPT_BYTES and len(self._small) > 1:
                self._small_bytes -= len(self._small.popitem(last=False)[1])
        self._small.move_to_end(path)
        return self._small[path]

    def _neighbours(self, directory: str, path: str) -> list[str]:
        """The small files of a partition that were not read yet, from this one on: planning reads all of them."""
        taken, names = 0, []
        for name, found in sorted(self._entries(directory).items()):
            each = join(directory, name)
            if each > path and name.endswith(_SMALL_KINDS) and found.size <= _SMALL_BYTES and each not in self._small:
                taken += found.size
                if taken > _KEPT_BYTES // 2:
                    break
                names.append(each)
        return names


def read_only(path: str) -> StorageError:
    return StorageError(f"cannot be changed in place: {NOT_IN_PLACE}", path=path, hint="use --output-dir")


