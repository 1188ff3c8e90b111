"""Stores pairs of numbers until the end of a dump, in a temporary file if they need too much memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np

from compaction.files.filesystem import storage_errors

#: number of pairs in memory before they are written to a file
MEMORY_PAIRS = 1 << 20
_CHUNK_PAIRS = 1 << 16
_PAIR_BYTES = 16


class PairSpool:
    """Pairs of int64. Iterates in the order of the first numbers; the last pair with a first number wins."""

    def __init__(self, memory_pairs: int = MEMORY_PAIRS) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=memory_pairs * _PAIR_BYTES)
        self._pairs: list[tuple[int, int]] = []
        self._sorted = True
        self._last: int | None = None

    def append(self, first: int, second: int) -> None:
        """Appends a pair.

        :raises StorageError: the temporary directory is full
        """
        self._sorted = self._sorted and (self._last is None or first > self._last)
        self._last = first
        self._pairs.append((first, second))
        if len(self._pairs) == _CHUNK_PAIRS:
            self._flush()

    def _flush(self) -> None:
        with storage_errors(tempfile.gettempdir(), "hold intermediate results"):
            self._file.write(np.array(self._pairs, np.int64).tobytes())
        self._pairs.clear()

    @property
    def empty(self) -> bool:
        """Whether nothing was appended."""
        return self._last is None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self._flush()
        self._file.seek(0)
        if not self._sorted:
            latest = dict(_pairs(self._file.read()))
            yield from sorted(latest.items())
            return
        while data := self._file.read(_CHUNK_PAIRS * _PAIR_BYTES):
            yield from _pairs(data)

    def close(self) -> None:
        """Deletes the temporary file."""
        self._file.close()


def _pairs(data: bytes) -> Iterator[tuple[int, int]]:
    return ((first, second) for first, second in np.frombuffer(data, np.int64).reshape(-1, 2).tolist())
