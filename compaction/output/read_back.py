"""Reads an output back from the device while it is still being written, so that a task waits for little at its end.

A thread follows the writer, a block at a time. Small outputs are read when they are complete.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from compaction.fs.contents import READ_BYTES, FileDigest, borrow_buffer, read_device_blocks, return_buffer
from compaction.fs.filesystem import ReadableFileSystem
from compaction.fs.uri import is_remote
from compaction.output.verification import SegmentCheck

#: from so much on it pays to follow, and so far behind the writer: the device is still busy with what came last
_FOLLOW_BYTES = 8 << 20


class ReadBack:
    """The check of one log file that is being written.

    :param parts: of a joined file; the writer adds to them, and only then to the file
    """

    def __init__(self, files: ReadableFileSystem, path: str, parts: Sequence[FileDigest]) -> None:
        self._files, self._path = files, path
        self._check = SegmentCheck(path, parts)
        self._turn = threading.Condition()
        self._ready_bytes = 0
        self._ended = False
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def advance(self, written_bytes: int) -> None:
        """So many bytes were given to the file system."""
        if self._thread is None:
            # an object appears when it is complete
            if written_bytes < 2 * _FOLLOW_BYTES or is_remote(self._path):
                return
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()
        with self._turn:
            self._ready_bytes = max(0, written_bytes - _FOLLOW_BYTES) // READ_BYTES * READ_BYTES
            self._turn.notify()

    def end(self, size: int, batches: int, digest: str | None) -> FileDigest:
        """The file is complete and synced; what it holds. See ``SegmentCheck.end``.

        :raises StorageError: the device gives other bytes than were written, or cannot be read
        """
        if self._thread is None:
            for block in read_device_blocks(self._files, self._path):
                self._check.feed(block)
        else:
            self._stop(size)
            if self._error is not None:
                raise self._error
        return self._check.end(size, batches, digest)

    def abandon(self) -> None:
        """The file is not going to be complete."""
        if self._thread is not None:
            self._error = self._error or RuntimeError("abandoned")
            self._stop(0)

    def _stop(self, size: int) -> None:
        with self._turn:
            self._ready_bytes, self._ended = size, True
            self._turn.notify()
        if self._thread is not None:
            self._thread.join()

    def _follow(self) -> None:
        try:
            source = self._files.reader(self._path, 0, 2**63 - 1, uncached=True)
            try:
                buffer, at = borrow_buffer(), 0
                while self._await(at) and (n := source.read_into(memoryview(buffer), at, at)):
                    self._check.feed(np.asarray(buffer[:n]))
                    at += n
                return_buffer(buffer)
            finally:
                source.close()
        except Exception as error:
            self._error = self._error or error

    def _await(self, position: int) -> bool:
        """Whether there is something to read at ``position``, which may take a while to come."""
        with self._turn:
            self._turn.wait_for(lambda: self._ended or position < self._ready_bytes)
            return self._error is None and (position < self._ready_bytes or self._ended)
