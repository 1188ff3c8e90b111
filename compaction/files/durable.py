"""Makes changes durable: replaces files atomically, and runs work that waits for the disk, for many logs in step.

A file is replaced as by ``CheckpointFile.write``: write a temporary file, fsync it, rename it, fsync the
directory. After a crash it has either the old or the new content. Unlike Kafka's ``.tmp``, the temporary file has an
unguessable name, and is read back from the device and compared before the rename.

Work that waits for the disk is a generator (``DurableSteps``): it yields the files and directories that must be durable before
it continues. ``run_in_step`` advances the works of many logs together, each to the point where it waits, then flushes all
at once: the disk is waited for once per step, not once per step of each log.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple, TypeVar

from compaction.errors import StorageError
from compaction.files.contents import digest_of, verify_file
from compaction.files.filesystem import FileSystem, join, parent
from compaction.files.local import LocalFileSystem
from compaction.files.system_calls import whole_sync

T = TypeVar("T")

TMP = ".tmp"
_TEMPORARY = re.compile(r".+\.[0-9a-f]{32}\.tmp")
#: fewer are flushed one by one: a flush of the file system also writes what others have changed
_LEAST_TOGETHER = 8


class Unsynced(NamedTuple):
    """A file whose bytes, or a directory whose names, are not durable yet."""

    path: str
    is_directory: bool = False


#: work that continues once what it yields is durable; if that fails, the error is raised where it waits
DurableSteps = Generator[Sequence[Unsynced], None, T]


def content_of(*paths: str) -> list[Unsynced]:
    """The bytes of files, for ``DurableSteps`` to wait for."""
    return [Unsynced(path) for path in paths]


def names_in(directory: str) -> list[Unsynced]:
    """The names in a directory, for ``DurableSteps`` to wait for."""
    return [Unsynced(directory, is_directory=True)]


def run_alone(fs: FileSystem, steps: DurableSteps[T]) -> T:
    return run_in_step(fs, (), [steps])[0]


def run_in_step(fs: FileSystem, directories: Iterable[str], works: Sequence[DurableSteps[T]]) -> list[T]:
    """The results of works that advance together, in order. An error that a work does not handle ends all of them.

    :param directories: those in which the works change files
    """
    results: dict[int, T] = {}
    errors: list[StorageError | None] = [None] * len(works)
    waiting = list(enumerate(works))
    with whole_sync(directories if isinstance(fs, LocalFileSystem) else ()) as sync_all, ExitStack() as ended:
        for work in works:
            # an error that ends all works makes each of them clean up
            ended.callback(work.close)
        while waiting:
            wanted: list[Sequence[Unsynced]] = []
            advanced, waiting = waiting, []
            for (number, work), error in zip(advanced, errors, strict=True):
                try:
                    wanted.append(next(work) if error is None else work.throw(error))
                    waiting.append((number, work))
                except StopIteration as end:
                    results[number] = end.value
            together = sum(map(len, wanted)) >= _LEAST_TOGETHER and sync_all()
            errors = [None if together else _error(fs, unsynced) for unsynced in wanted]
    return [results[number] for number in range(len(works))]


def _error(fs: FileSystem, wanted: Sequence[Unsynced]) -> StorageError | None:
    try:
        for path, is_directory in wanted:
            (fs.fsync_dir if is_directory else fs.fsync)(path)
    except StorageError as error:
        return error
    return None


def replace_file(fs: FileSystem, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
    """Replace the content of ``path``, durable on return; see ``replacement``."""
    run_alone(fs, replacement(fs, path, data, like=like, mtime_ns=mtime_ns))


def replacement(
    fs: FileSystem, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None
) -> DurableSteps[None]:
    """Replaces the content of ``path`` by ``data``.

    A replaced file keeps mode, owner and extended attributes; a new one takes those of ``like``.

    :raises StorageError: the old content is unchanged, and the temporary file is removed if possible. If only the fsync of the
        directory failed, the new content is in place, and a power failure may revert it
    """
    temporary = f"{path}.{uuid.uuid4().hex}{TMP}"
    try:
        yield from verified_file(fs, temporary, data, like=path if fs.stat(path) is not None else like, mtime_ns=mtime_ns)
        fs.rename(temporary, path)
    except StorageError:
        with suppress(StorageError):
            fs.unlink(temporary)
        raise
    yield names_in(parent(path))


def write_verified(fs: FileSystem, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None) -> None:
    """Create a file, its bytes durable on return; see ``verified_file``."""
    run_alone(fs, verified_file(fs, path, data, like=like, mtime_ns=mtime_ns))


def verified_file(
    fs: FileSystem, path: str, data: bytes, *, like: str | None = None, mtime_ns: int | None = None
) -> DurableSteps[None]:
    """Creates a file, flushes it, and reads it back from the device.

    :raises StorageError: the file system refused, the name is taken, or the content read back differs
    """
    fs.write_file(path, data, like=like, mtime_ns=mtime_ns)
    yield content_of(path)
    verify_file(fs, path, digest_of(data))


def remove_temporary(fs: FileSystem, directory: str) -> int:
    """Remove the temporary files that killed runs left in a directory; returns their number."""
    names = [name for name in fs.listdir(directory) if _TEMPORARY.fullmatch(name)]
    for name in names:
        fs.unlink(join(directory, name))
    return len(names)
