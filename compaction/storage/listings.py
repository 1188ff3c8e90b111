"""Listings, attributes and contents of objects and remote files, uncached."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from compaction.errors import StorageError
from compaction.storage.clients import is_access_denied, located, remote_errors, repeated
from compaction.storage.filesystem import FileStat

#: the store whose pyarrow listings contain only directories that exist as objects
_ONLY_MARKED = "gcs"


def _stat_of(info: Any) -> FileStat:
    from pyarrow import fs

    is_dir = info.type == fs.FileType.Directory
    return object_stat(info.size or 0, info.mtime_ns or 0, is_dir=is_dir)._replace(is_file=info.type == fs.FileType.File)


def object_stat(size: int, mtime_ns: int, *, is_dir: bool) -> FileStat:
    """Attributes of an object or directory: readable by everybody, owned by the current user."""
    return FileStat(size, mtime_ns, 0o755 if is_dir else 0o644, os.geteuid(), os.getegid(), 0, is_dir, not is_dir)


def list_directory(path: str, *, recursive: bool = False) -> dict[str, FileStat]:
    """The entries of a directory (``recursive``: all below it), by name relative to the directory.

    :raises StorageError: the directory is missing, or the store refused
    """
    from pyarrow import fs

    store, key = located(path)
    folded = store.type_name == _ONLY_MARKED and not recursive
    with remote_errors(path, "list the directory"):
        infos = store.get_file_info(fs.FileSelector(key, recursive=recursive or folded))
    start = len(key.rstrip("/")) + 1
    names = {info.path.rstrip("/")[start:]: _stat_of(info) for info in infos}
    return _folded(names) if folded else names


def objects_below(path: str) -> dict[str, FileStat]:
    """The objects below a directory, by relative name; none if it is missing.

    :raises StorageError: the store refused
    """
    try:
        entries = list_directory(path, recursive=True)
    except StorageError as error:
        if is_missing(error):
            return {}
        raise
    return {name: stat for name, stat in entries.items() if stat.is_file and name}


def _folded(names: Mapping[str, FileStat]) -> dict[str, FileStat]:
    """The direct entries of a directory, from a recursive listing."""
    entries: dict[str, FileStat] = {}
    for name, stat in names.items():
        first, slash, _ = name.partition("/")
        entries.setdefault(first, object_stat(0, 0, is_dir=True) if slash else stat)
    return entries


def is_missing(error: StorageError) -> bool:
    return isinstance(error.__cause__, FileNotFoundError)


def stat_objects(paths: Sequence[str]) -> list[FileStat | None]:
    """The attributes of URIs of one store, in one request; ``None`` for a missing one."""
    from pyarrow import fs

    if not paths:
        return []
    places = [located(path) for path in paths]
    with remote_errors(paths[0], "look at the file"):
        infos = places[0][0].get_file_info([key for _, key in places])
    return [None if info.type == fs.FileType.NotFound else _stat_of(info) for info in infos]


def read_whole(path: str) -> bytes:
    """All bytes of an object.

    :raises StorageError: the store refused
    """
    store, key = located(path)
    with remote_errors(path, "read"), store.open_input_stream(key, compression=None) as stream:
        return repeated(stream.read)


def stat_objects_if_allowed(paths: Sequence[str]) -> list[FileStat | None]:
    """``stat_objects`` that treats an object as missing if access is denied.

    :raises StorageError: the store failed for another reason
    """
    try:
        return stat_objects(paths)
    except StorageError as error:
        if not is_access_denied(error):
            raise
    return [None] if len(paths) == 1 else [stat for path in paths for stat in stat_objects_if_allowed([path])]
