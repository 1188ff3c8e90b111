"""Writes the files of an output segment: batches as they come, then its indexes, all on disk before it is done.

In an object store a file appears when it is closed, and not before; mode, owner and times are those of the store.

A segment is written under names that end in a suffix no other attempt uses (``.clean.<token>``); only the driver renames. What
many tasks write of one segment are *parts*: batches (``.part``) and their ``OUT_ROW`` table (``.rows``), which one task joins.

Mirrors ``LogSegment.append``, ``onBecomeInactiveSegment`` and ``flush`` (Kafka 4.3.0).
"""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from compaction.cleaning.model import AbortedTxn
from compaction.errors import CorruptLogError, StorageError
from compaction.formats.indexes import (
    OFFSET_ROW,
    TIME_ROW,
    TXN_ROW,
    write_offset_index,
    write_time_index,
    write_txn_index,
)
from compaction.kernels.index import LAST_TIME_ENTRY, MAX_TIMESTAMP, MAX_TIMESTAMP_OFFSET, index_entries, new_state
from compaction.kernels.tables import OUT_ROW
from compaction.names import CLEAN, INDEX, LOG, TIMEINDEX, TXNINDEX, segment_file
from compaction.storage.filesystem import join
from compaction.storage.manifest import Content
from compaction.storage.places import is_remote

Chunk = memoryview | bytes
_IOV_MAX = 512
_MAX_RELATIVE_OFFSET = (1 << 31) - 1
_COPY_BYTES = 64 << 20
_WRITE_BEHIND_BYTES = 16 << 20
_SYNC_FILE_RANGE_WRITE = 2
_ROWS_AT_ONCE = 1 << 16
#: of files whose sources have none
_DEFAULT_MODE = 0o644


def _start_writing(fd: int) -> None:
    """Have the system begin to write the dirty pages of a file, without waiting; nothing where it has no such call."""
    if _sync_file_range is not None:
        _sync_file_range(fd, 0, 0, _SYNC_FILE_RANGE_WRITE)


def _system_call() -> Callable[[int, int, int, int], int] | None:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_sync_file_range = _system_call()


def new_suffix() -> str:
    """A suffix that no other attempt uses."""
    return f"{CLEAN}.{uuid.uuid4().hex}"


def part_paths(directory: str, base_offset: int, number: int, suffix: str) -> tuple[str, str]:
    """The batches and the rows of a part."""
    stem = join(directory, segment_file(base_offset, LOG, f"{suffix}.{number}"))
    return stem + ".part", stem + ".rows"


class Output(Protocol):
    """A file being written; errors say which file and what to do. ``content`` is what was written to it, known of objects that
    are closed."""

    content: Content | None

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Append the chunks."""

    def copy_from(self, path: str) -> None:
        """Append all of another file of the same place."""

    def settle(self) -> None:
        """Nothing more is going to be written: what is on its way to the disk need not wait for ``close``."""

    def close(self, *, sync: bool, mtime_ms: int | None = None) -> None:
        """Close; with ``sync`` the bytes are safe afterwards."""

    def abandon(self) -> None:
        """Let go of the file, which may be closed already."""

    def remove(self) -> None:
        """Let go of the file and take it away."""


def open_output(path: str, like: str, *, write_behind: bool = False) -> Output:
    """A new file, with mode and owner of ``like`` where both are files of this machine.

    :param write_behind: the disk is to begin while there is more to come, as the file will be synced in the end
    :raises StorageError: the file system refuses
    """
    if not is_remote(path):
        return OutputFile(path, like, write_behind=write_behind)
    from compaction.storage.streams import ObjectOutput

    return ObjectOutput(path)


class OutputFile:
    """A file of this machine, with the mode and owner of another; see ``Output``."""

    def __init__(self, path: str, like: str, *, write_behind: bool = False) -> None:
        self.path = path
        self.content: Content | None = None
        self._fd = -1
        self._behind = 0 if write_behind else None
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            if is_remote(like):
                os.fchmod(self._fd, _DEFAULT_MODE)
                return
            stat = Path(like).stat()
            os.fchmod(self._fd, stat.st_mode & 0o7777)
            if (stat.st_uid, stat.st_gid) != (os.geteuid(), os.getegid()):
                with suppress(PermissionError):
                    os.fchown(self._fd, stat.st_uid, stat.st_gid)
        except OSError as error:
            if self._fd >= 0:
                self.remove()
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> StorageError:
        return StorageError(
            f"cannot write ({error.strerror})",
            path=self.path,
            hint="the log is as it was; make room or mend permissions and run again",
        )

    def write(self, chunks: Sequence[Chunk]) -> None:
        """Append the chunks."""
        try:
            for first in range(0, len(chunks), _IOV_MAX):
                pending = [memoryview(chunk) for chunk in chunks[first : first + _IOV_MAX]]
                while pending:
                    written = os.writev(self._fd, pending)
                    self._write_behind(written)
                    while pending and written >= len(pending[0]):
                        written -= len(pending.pop(0))
                    if pending:
                        pending[0] = pending[0][written:]
        except OSError as error:
            raise self._refused(error) from error

    def copy_from(self, path: str) -> None:
        """Append all of another file, within the kernel."""
        try:
            source = os.open(path, os.O_RDONLY)
            try:
                while copied := os.sendfile(self._fd, source, None, _COPY_BYTES):
                    self._write_behind(copied)
            finally:
                os.close(source)
        except OSError as error:
            raise self._refused(error) from error

    def _write_behind(self, size: int) -> None:
        """Start writing to the disk what has gathered, once it is worth it; ``close`` waits for it."""
        if self._behind is not None:
            self._behind += size
            if self._behind >= _WRITE_BEHIND_BYTES:
                _start_writing(self._fd)
                self._behind = 0

    def settle(self) -> None:
        """Have the disk begin with what is left. Files that are settled before any of them is synced share most of the work."""
        _start_writing(self._fd)

    def close(self, *, sync: bool, mtime_ms: int | None = None) -> None:
        """Close; with ``sync`` the bytes are on disk afterwards."""
        try:
            if mtime_ms is not None:
                os.utime(self._fd, ns=(mtime_ms * 1_000_000, mtime_ms * 1_000_000))
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            raise self._refused(error) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the file, which may be closed already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def remove(self) -> None:
        """Let go of the file and take it away, so that what failed leaves no less room to others."""
        self.abandon()
        with suppress(OSError):
            Path(self.path).unlink(missing_ok=True)


class PartWriter:
    """One part of an output segment: its batches and their rows, not synced (they do not outlive the run)."""

    def __init__(self, directory: str, base_offset: int, number: int, suffix: str, like: str) -> None:
        batches, rows = part_paths(directory, base_offset, number, suffix)
        self._batches = open_output(batches, like)
        try:
            self._rows = open_output(rows, like)
        except StorageError:
            self._batches.remove()
            raise

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file in (self._batches, self._rows):
            if error is None:
                file.abandon()
            else:
                file.remove()

    def append(self, chunks: Sequence[Chunk], out_rows: NDArray[np.void]) -> None:
        """Batches (in ``chunks``, back to back) and one ``OUT_ROW`` each."""
        self._batches.write(chunks)
        self._rows.write([out_rows.tobytes()])

    def close(self) -> None:
        """Done."""
        self._batches.close(sync=False)
        self._rows.close(sync=False)


class SegmentWriter:
    """One whole output segment.

    :param like: a source segment's log file, whose mode and owner all files get
    :raises StorageError: the file system refuses
    """

    def __init__(self, directory: str, base_offset: int, suffix: str, *, index_interval_bytes: int, like: str) -> None:
        self._directory, self._base_offset, self._suffix = directory, base_offset, suffix
        self._interval, self._like = index_interval_bytes, like
        self._log = open_output(self._path(LOG), like, write_behind=True)
        self._files = {LOG: self._log}
        #: of the closed files that know theirs, by kind
        self.contents: dict[str, Content] = {}
        self._state = new_state(base_offset)
        self._offsets: list[NDArray[np.void]] = []
        self._times: list[NDArray[np.void]] = []

    def _path(self, kind: str) -> str:
        return join(self._directory, segment_file(self._base_offset, kind, self._suffix))

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for file in self._files.values():
            if error is None:
                file.abandon()
            else:
                file.remove()

    def append(self, chunks: Sequence[Chunk], out_rows: NDArray[np.void]) -> None:
        """Batches (in ``chunks``, back to back) and one ``OUT_ROW`` each."""
        self._log.write(chunks)
        self._index(out_rows)

    def append_part(self, batches: str, rows: str) -> None:
        """The batches of a part."""
        self._log.copy_from(batches)
        with _open(rows) as stream:
            while data := stream.read(_ROWS_AT_ONCE * OUT_ROW.itemsize):
                self._index(np.frombuffer(data, OUT_ROW))

    def _index(self, out_rows: NDArray[np.void]) -> None:
        highest = int(out_rows["last_offset"].max(initial=self._base_offset))
        if highest - self._base_offset > _MAX_RELATIVE_OFFSET:
            what = f"batch ends at offset {highest}, out of reach of a segment with base offset {self._base_offset}"
            raise CorruptLogError(what, path=self._like, hint="restore this segment")
        offsets, times = np.empty(len(out_rows), OFFSET_ROW), np.empty(len(out_rows), TIME_ROW)
        n, m = index_entries(out_rows, self._interval, self._state, offsets, times)
        if n:
            self._offsets.append(offsets[:n].copy())
        if m:
            self._times.append(times[:m].copy())

    def close(self, mtime_ms: int, aborted_txns: Sequence[AbortedTxn]) -> None:
        """Write the indexes and see all files to the disk, with the given time of last modification."""
        if self._state[MAX_TIMESTAMP] > self._state[LAST_TIME_ENTRY]:
            last = np.array([(self._state[MAX_TIMESTAMP], self._state[MAX_TIMESTAMP_OFFSET])], TIME_ROW)
            self._times.append(last)
        offsets = np.concatenate([np.empty(0, OFFSET_ROW), *self._offsets])
        times = np.concatenate([np.empty(0, TIME_ROW), *self._times])
        self._write(INDEX, write_offset_index(offsets, self._base_offset))
        self._write(TIMEINDEX, write_time_index(times, self._base_offset))
        if aborted_txns:
            entries = np.array([tuple(txn) for txn in aborted_txns], TXN_ROW)
            self._write(TXNINDEX, write_txn_index(entries))
        for file in self._files.values():
            file.settle()
        for kind, file in self._files.items():
            file.close(sync=True, mtime_ms=mtime_ms)
            if file.content is not None:
                self.contents[kind] = file.content

    def _write(self, kind: str, data: bytes) -> None:
        file = open_output(self._path(kind), self._like)
        self._files[kind] = file
        file.write([data])


def _open(path: str) -> IO[bytes] | Any:
    """A file to be read from its start."""
    if not is_remote(path):
        return Path(path).open("rb")
    from compaction.storage.streams import open_input

    return open_input(path)
