"""Stores rows of words by part, in a temporary file if they need too much memory."""

from __future__ import annotations

import tempfile
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from compaction.storage.filesystem import storage_errors

_WORD_BYTES = 8


class PartSpool:
    """Rows of ``words`` uint64 in ``parts`` parts; a context manager.

    :param memory_bytes: rows are kept in memory up to this size
    """

    def __init__(self, words: int, parts: int, memory_bytes: int) -> None:
        self._words, self._parts = words, parts
        self._file = tempfile.SpooledTemporaryFile(max_size=memory_bytes)
        #: of each addition, the row of the file at which it starts, and the first rows of the parts in it
        self._additions: list[tuple[int, NDArray[np.int64]]] = []
        self._rows = 0

    def add(self, rows: NDArray[np.uint64], part_of: NDArray[np.int64]) -> None:
        """Add rows, uint64[n, words], with the part of each, int64[n].

        :raises StorageError: the temporary directory is full
        """
        order = np.argsort(part_of, kind="stable")
        starts = np.searchsorted(part_of[order], np.arange(self._parts + 1))
        with storage_errors(tempfile.gettempdir(), "hold intermediate results"):
            self._file.seek(self._rows * self._words * _WORD_BYTES)
            self._file.write(np.ascontiguousarray(rows[order]).tobytes())
        self._additions.append((self._rows, starts))
        self._rows += len(rows)

    def read(self, part: int) -> NDArray[np.uint64]:
        """The rows of a part, uint64[n, words], in the order in which they were added."""
        blocks = [np.empty((0, self._words), np.uint64)]
        for first, starts in self._additions:
            start, end = int(starts[part]), int(starts[part + 1])
            if start < end:
                self._file.seek((first + start) * self._words * _WORD_BYTES)
                data = self._file.read((end - start) * self._words * _WORD_BYTES)
                blocks.append(np.frombuffer(data, np.uint64).reshape(-1, self._words))
        return np.concatenate(blocks)

    def __enter__(self) -> PartSpool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
