"""Finds files in the log directories of an erasure that it does not reach and that may have the erased records.

These are the logs in directories marked ``-future``, ``-delete`` and ``-stray``, segments under other names (``.deleted``,
``.orig``, ``~``), and files and directories that are no part of a log: backups, dumps, cores. Files that consist of record
batches are searched for the keys; the others are only named.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from compaction.certifier.certificate import Remains
from compaction.certifier.certify import run_packed
from compaction.certifier.erased_keys import ErasedKeys
from compaction.certifier.find_pairs import LONG_MAX
from compaction.certifier.reader import ByteRange, read_chunks
from compaction.engine import Engine
from compaction.errors import CompactionError, StorageError
from compaction.files.filesystem import ReadableFileSystem, join
from compaction.files.manifest import MANIFEST, MARKER
from compaction.files.mixed import file_system
from compaction.formats.primitives import FormatError
from compaction.log.access import is_claim
from compaction.names import (
    DELETED,
    LOG,
    TopicPartition,
    is_log_file,
    is_of_log_dir,
    marked_dirs_of,
    parse_partition_dir,
    parse_segment_file,
)
from compaction.output.finished import FINISHED
from compaction.output.journal import JOURNAL
from compaction.screen.amounts import counted

_OF_RUNS = frozenset((JOURNAL, FINISHED, MANIFEST, MARKER))
_DIRECTORY = "/"


def unreached(
    log_dir: str, logs: Collection[TopicPartition], unread: Collection[TopicPartition] = (), *, replaced: bool = True
) -> list[str]:
    """The files outside the erased segments that may have records of ``logs``; directories end with ``/``.

    :param unread: logs of which no file was examined
    :param replaced: include ``.deleted`` files, which the run removes once it is certified
    """
    fs, paths = file_system([log_dir]), []
    names = fs.listdir(log_dir)
    marked = frozenset(marked_dirs_of(names, logs))
    for name in names:
        log = parse_partition_dir(name)
        if name in marked or log in unread:
            paths += [join(name, file) for file in _listed(fs, join(log_dir, name)) if not _has_no_records(file)]
        elif log in logs:
            other_files = [
                file for file in _listed(fs, join(log_dir, name)) if not (is_log_file(file) or _has_no_records(file))
            ]
            paths += [join(name, file) for file in other_files if replaced or not file.endswith(DELETED)]
        elif not (is_of_log_dir(name) or is_claim(name) or name in _OF_RUNS):
            paths.append(name)
    return [f"{path.rstrip(_DIRECTORY)}{_DIRECTORY}" if _is_dir(fs, join(log_dir, path)) else path for path in paths]


def _size_of(path: str) -> int:
    """The number of bytes that ``remains_in`` reads."""
    try:
        status = None if path.endswith(_DIRECTORY) else file_system([path]).stat(path)
    except StorageError:
        return 0
    return status.size if status is not None and status.is_file else 0


def remains_in(path: str, erased: ErasedKeys) -> Remains:
    """Search a file of ``unreached`` for the keys."""
    records, complete = 0, False
    try:
        status = file_system([path]).stat(path)
        if path.endswith(_DIRECTORY) or status is None or not status.is_file:
            return Remains(path)
        for chunk in read_chunks([ByteRange(path, 0, status.size, 0)], -LONG_MAX, LONG_MAX):
            records += erased.remaining(chunk)
        complete = True
    except (CompactionError, FormatError):
        # not a segment, or a torn tail
        complete = False
    return Remains(path, records if complete or records else None)


def _has_no_records(name: str) -> bool:
    """Whether a file of a partition directory has no records, independent of its suffix."""
    file = parse_segment_file(name)
    return name in _OF_RUNS or (is_log_file(name) if file is None else file.kind != LOG)


def _listed(fs: ReadableFileSystem, path: str) -> list[str]:
    """The names in a directory; an empty name for the directory itself if it cannot be read."""
    try:
        return fs.listdir(path) if _is_dir(fs, path) else []
    except StorageError:
        return [""]


def _is_dir(fs: ReadableFileSystem, path: str) -> bool:
    status = fs.stat(path)
    return status is not None and status.is_dir


def search_files(runner: Engine, files: Sequence[str], erased: ErasedKeys) -> list[Remains]:
    """``remains_in`` each of the files."""
    sizes = {path: _size_of(path) for path in files}
    description = f"verify: look for keys in {counted(len(files), 'other file')}"
    return run_packed(runner, "other files", description, files, sizes.__getitem__, partial(remains_in, erased=erased))
