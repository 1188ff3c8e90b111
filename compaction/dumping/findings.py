"""The rows of a dump, and its findings, which are printed at its end in the wording of Kafka's dump tool.

Mirrors the maps of ``DumpLogSegments`` and ``TimeIndexDumpErrors`` (Kafka 4.3.1), including the order of a Java ``HashMap``.
Invalid data is also reported as an error with a position. Gaps between offsets are not errors: cleaning leaves gaps.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from compaction.errors import CompactionError
from compaction.files.filesystem import storage_errors

_SMALLEST_MAP = 16
_INT = 1 << 32
MISMATCH, TIMESTAMP, OUT_OF_ORDER, NOT_FOUND = "mismatch", "timestampMismatch", "outOfOrderTimestamp", "notFound"
#: heading, text and fields of a finding by its type, in the order of Kafka's tool
_KINDS = {
    MISMATCH: ("Mismatches in :{}", "  Index offset: {}, log offset: {}", ("indexOffset", "logOffset")),
    TIMESTAMP: (
        "Found timestamp mismatch in :{}", "  Index timestamp: {}, log timestamp: {}", ("indexTimestamp", "logTimestamp"),
    ),
    OUT_OF_ORDER: (
        "Found out of order timestamp in :{}", "  Index timestamp: {}, Previously indexed timestamp: {}",
        ("indexTimestamp", "previousTimestamp"),
    ),
    NOT_FOUND: (
        "The following indexed offsets are not found in :{}", "Indexed offset: {}, found log offset: {}",
        ("indexOffset", "logOffset"),
    ),
    "gap": ("Non-consecutive offsets in {}", "  {} is followed by {}", ("offset", "nextOffset")),
}  # fmt: skip

#: number of pairs in memory before they are written to a file
MEMORY_PAIRS = 1 << 20
_CHUNK_PAIRS = 1 << 16
_PAIR_BYTES = 16
T = TypeVar("T")

#: the fields of a line with their values
Fields = Mapping[str, object]


class Row(NamedTuple):
    """One line of a dump: the type and fields of its JSON object, and the text, ``None`` if it consists of the fields."""

    type: str
    fields: Fields
    wording: str | None = None

    @property
    def text(self) -> str:
        """As Kafka's tool prints it."""
        return " ".join(f"{name}: {value}" for name, value in self.fields.items()) if self.wording is None else self.wording

    def json(self, path: str) -> str:
        """As a JSON object without its line end, of the file at the absolute ``path``."""
        return json.dumps({"type": self.type, "file": path, **self.fields}, separators=(",", ":"))


class Findings:
    """Findings by absolute path: pairs of a value of an index entry and the value in the log or the previous entry; ``gaps``
    are non-consecutive offsets."""

    def __init__(self) -> None:
        self._pairs: dict[str, dict[str, list[tuple[int, int]]]] = {kind: {} for kind in _KINDS}
        self.gaps: dict[str, PairSpool] = {}
        self.errors: list[CompactionError] = []

    def add(self, kind: str, path: str, pair: tuple[int, int]) -> None:
        self._pairs[kind].setdefault(path, []).append(pair)

    def rows(self) -> Iterator[tuple[str, Row]]:
        """All findings but ``errors`` with their path; texts and order are those that Kafka's tool writes to standard error.
        A heading, which only the text has, has no type."""
        gaps = {path: spool for path, spool in self.gaps.items() if not spool.empty}
        findings: Mapping[str, Mapping[str, Iterable[tuple[int, int]]]] = {**self._pairs, "gap": gaps}
        for kind, (heading, text, names) in _KINDS.items():
            for path, pairs in java_order(findings[kind]):
                if kind == MISMATCH:
                    # of each offset the last one
                    pairs = sorted(dict(pairs).items(), reverse=True)
                yield path, Row("", {}, heading.format(path))
                yield from ((path, Row(kind, dict(zip(names, pair, strict=True)), text.format(*pair))) for pair in pairs)

    def close(self) -> None:
        """Deletes temporary files."""
        for spool in self.gaps.values():
            spool.close()


def java_order(entries: Mapping[str, T]) -> list[tuple[str, T]]:
    """The entries in the iteration order of a Java ``HashMap`` filled by ``computeIfAbsent`` in the given order.

    ``computeIfAbsent`` grows the table one entry later than ``put``, and inserts new entries at the head of their bucket.
    """
    size = _SMALLEST_MAP
    while len(entries) - 1 > size * 3 // 4:
        size *= 2
    latest_first = list(entries.items())[::-1]
    return sorted(latest_first, key=lambda entry: _spread(entry[0]) % size)


def _spread(text: str) -> int:
    """``HashMap.hash`` of a string."""
    code = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(raw), 2):
        code = (31 * code + int.from_bytes(raw[position : position + 2], "big")) % _INT
    return code ^ (code >> 16)


class PairSpool:
    """Pairs of int64, in a temporary file if they need too much memory. Iterates in the order of the first numbers; the last
    pair with a first number wins."""

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
