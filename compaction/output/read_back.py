"""Reads an output back from the device while it is being written, which leaves little to read at the end.

A thread reads behind the writer, a block at a time. Small outputs are read when they are complete.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from compaction.output.verification import SegmentCheck
from compaction.storage.contents import READ_BYTES, FileDigest, borrow_buffer, read_device_blocks, return_buffer
from compaction.storage.filesystem import ReadableFileSystem
from compaction.storage.kinds import storage_of

#: The reader's distance behind the writer, and the least size (twice this) that is read in parallel. It must exceed the
#: writer's two buffers (``compaction.storage.direct.DirectWriter``): bytes still in these are not in the file yet.
_FOLLOW_BYTES = 8 << 20


class ReadBack:
    """The check of one log file while it is written.

    :param parts: of a joined file; the writer appends to this list before it appends the bytes to the file
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
        """The writer has passed ``written_bytes`` bytes to the file system."""
        if self._thread is None:
            if written_bytes < 2 * _FOLLOW_BYTES or storage_of(self._path).appears_whole:
                return
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()
        with self._turn:
            self._ready_bytes = max(0, written_bytes - _FOLLOW_BYTES) // READ_BYTES * READ_BYTES
            self._turn.notify()

    def end(self, size: int, batches: int, digest: str | None) -> FileDigest:
        """Check the rest of the file, which is complete and synced. See ``SegmentCheck.end``.

        :raises StorageError: the device returns other bytes than were written, or cannot be read
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
        """Stop: the file will not be completed."""
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
            buffer, position = borrow_buffer(), 0
            try:
                while self._wait_for(position) and (n := source.read_into(memoryview(buffer), position, position)):
                    self._check.feed(np.asarray(buffer[:n]))
                    position += n
            finally:
                return_buffer(buffer)
                source.close()
        except Exception as error:
            self._error = self._error or error

    def _wait_for(self, position: int) -> bool:
        """Wait until the file can be read at ``position``; false after an error."""
        with self._turn:
            self._turn.wait_for(lambda: self._ended or position < self._ready_bytes)
            return self._error is None and (position < self._ready_bytes or self._ended)
