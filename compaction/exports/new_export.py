"""Writes a new export, complete or not at all.

On a disk it is written in a hidden directory beside its final name, and renamed. In a store the marker of unfinished outputs is
written first and removed last: no command reads or overwrites a prefix that has it. A failed run removes only its own objects;
those of a killed run keep the marker. Of two runs that begin at the same time, at most one continues
(``compaction.files.mixed``).

Only the owner may enter the hidden directory. It is locked while a run uses it. The next run with the same output removes the
directories of killed runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NamedTuple

import xxhash

from compaction.errors import StorageError, UsageError
from compaction.files.contents import FileDigest, verify_file
from compaction.files.filesystem import (
    Chunk,
    DiskFileSystem,
    FileSystem,
    Output,
    ReadableFileSystem,
    join,
    parent,
    removed_on_failure,
    storage_of,
)
from compaction.files.local import LocalFileSystem
from compaction.files.manifest import MARKER, Marker
from compaction.files.mixed import OutputFileSystem, marked_by, put_marker, require_own
from compaction.files.object_store import ObjectOutput
from compaction.log.discover import Selector, discover
from compaction.names import LOG
from compaction.output.finished import STAGED, hidden_name, remove_leftovers

#: permissions
_GROUP, _OTHERS = 0o070, 0o007


def _most_private_of(log_dir: str) -> tuple[str | None, str | None]:
    """The directory and the file of a log directory from which an export on a disk takes mode and owner: those with the fewest
    readers."""
    files = LocalFileSystem()
    logs = [location.path for location in discover(files, [log_dir], Selector())]
    segments = [join(path, name) for path in logs for name in files.listdir(path) if name.endswith(LOG)]
    return _most_private(files, [log_dir, *logs]), _most_private(files, segments)


def _most_private(files: ReadableFileSystem, paths: Iterable[str]) -> str | None:
    modes = {path: status.mode for path in paths if (status := files.stat(path)) is not None}
    return min(modes, key=lambda path: (modes[path] & _OTHERS, modes[path] & _GROUP), default=None)


class NewExport(NamedTuple):
    """An export that is being written in ``place``.

    :param create: opens a new file there
    :param like: a directory whose mode and owner its directories take
    """

    files: FileSystem
    place: str
    create: Callable[[str], Output]
    like: str | None = None

    def mkdir(self, path: str) -> None:
        """Make a directory in ``place``, and those above it."""
        if path != self.place:
            self.mkdir(parent(path))
        self.files.mkdir(path, self.like)

    def write(self, path: str, blocks: Iterable[Chunk]) -> None:
        """Write a file, durable on return; ``StorageError`` if the file system refused, or what is read back differs."""
        content, size = xxhash.xxh3_128(), 0
        with removed_on_failure(self.create(path)) as output:
            for block in blocks:
                content.update(block)
                size += len(block)
                output.write([block])
            output.close(sync=True)
        verify_file(self.files, path, FileDigest("", size, content.hexdigest()))


def require_empty(path: str) -> None:
    """:raises UsageError: the target is not empty"""
    files = LocalFileSystem() if storage_of(path).renames else OutputFileSystem()
    if files.stat(path) is not None and files.listdir(path):
        raise UsageError("--output-dir exists and is not empty", path=path, hint="name a new directory")


def new_export(path: str, log_dir: str | None = None) -> AbstractContextManager[NewExport]:
    """An export that is complete when the block ends, and removed if the block fails.

    :param log_dir: the source on a disk, whose permissions an export on a disk takes
    :raises UsageError: the target is not empty
    :raises LockedError: another run writes to the same target
    """
    require_empty(path)
    return _new_directory(path, log_dir) if storage_of(path).renames else _new_objects(path)


@contextmanager
def _new_directory(path: str, log_dir: str | None) -> Iterator[NewExport]:
    files = LocalFileSystem()
    directory, file = (None, None) if log_dir is None else _most_private_of(log_dir)
    with staging_directory(files, path) as staging:
        place = join(staging, "export")
        files.mkdir(place, directory)
        yield NewExport(files, place, lambda name: files.create(name, file), directory)
        files.fsync_dir(place)
        files.rename(place, path)
        files.fsync_dir(parent(path))


@contextmanager
def _new_objects(path: str) -> Iterator[NewExport]:
    files, run, created, marks = OutputFileSystem(), uuid.uuid4().hex, list[str](), join(path, MARKER)

    def create(name: str) -> Output:
        created.append(name)
        return ObjectOutput(name)

    try:
        put_marker(files, path, run, Marker(run).to_json())
        yield NewExport(files, path, create)
        require_own(path, run)
        files.unlink(marks)
    except BaseException:
        with suppress(StorageError):
            if marked_by(path) == run:
                # the marker last, then directories that are empty
                for name in [*({*created} - {marks}), marks]:
                    files.unlink(name)
                _prune(files, path)
        raise


def _prune(files: FileSystem, path: str) -> bool:
    """Remove a directory that has no files; returns whether it had none."""
    status = files.stat(path)
    if status is None or not status.is_dir:
        return status is None
    remaining = [name for name in files.listdir(path) if not _prune(files, join(path, name))]
    if not remaining:
        files.remove_tree(path)
    return not remaining


@contextmanager
def staging_directory(files: DiskFileSystem, path: str) -> Iterator[str]:
    """A hidden directory beside ``path``, removed at the end; ``LockedError`` if another run uses one for the same output."""
    remove_leftovers(files, path)
    files.mkdir(parent(path))
    staging = hidden_name(path, STAGED)
    files.mkdir(staging, private=True)
    lock = files.lock(staging)
    try:
        yield staging
    finally:
        lock.close()
        files.remove_tree(staging)
