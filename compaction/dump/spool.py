"""Stores pairs of numbers until the end of a dump, in a temporary file if they need too much memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from compaction.fs.filesystem import storage_errors

#: number of pairs in memory before they are written to a file
MEMORY_PAIRS = 1 << 20
_CHUNK_PAIRS = 1 << 16
_PAIR_BYTES = 16

Pairs = NDArray[np.int64]


class PairSpool:
    """Pairs of int64. Iterates in the order of the first numbers; the last pair with a first number wins."""

    def __init__(self, memory_pairs: int = MEMORY_PAIRS) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=memory_pairs * _PAIR_BYTES)
        self._sorted = True
        self._last: int | None = None

    def append(self, pairs: Pairs) -> None:
        """Appends int64[n, 2].

        :raises StorageError: the temporary directory is full
        """
        if not len(pairs):
            return
        firsts = pairs[:, 0]
        rising = bool(np.all(firsts[1:] > firsts[:-1])) and (self._last is None or int(firsts[0]) > self._last)
        self._sorted, self._last = self._sorted and rising, int(firsts[-1])
        with storage_errors(tempfile.gettempdir(), "hold intermediate results"):
            self._file.write(pairs.astype(np.int64).tobytes())

    @property
    def empty(self) -> bool:
        """Whether nothing was appended."""
        return self._last is None

    def __iter__(self) -> Iterator[tuple[int, int]]:
        self._file.seek(0)
        if not self._sorted:
            pairs: list[list[int]] = np.frombuffer(self._file.read(), np.int64).reshape(-1, 2).tolist()
            latest = {}
            for first, second in pairs:
                latest[first] = second
            yield from sorted(latest.items())
            return
        while data := self._file.read(_CHUNK_PAIRS * _PAIR_BYTES):
            yield from ((first, second) for first, second in np.frombuffer(data, np.int64).reshape(-1, 2).tolist())

    def close(self) -> None:
        """Deletes the temporary file."""
        self._file.close()
