"""Findings of a dump, printed at its end in the wording of Kafka's dump tool.

Mirrors the maps of ``DumpLogSegments`` and ``TimeIndexDumpErrors`` (Kafka 4.3.0), including the order of a Java ``HashMap``.
Invalid data is also reported as an error with a position. Gaps between offsets are not errors: cleaning leaves gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from compaction.dump.spool import PairSpool
from compaction.errors import CompactionError

_SMALLEST_MAP = 16
_INT = 1 << 32

T = TypeVar("T")


class Findings:
    """Findings by absolute path.

    ``mismatches`` maps offsets of index entries to offsets of their batches. ``timestamps``, ``out_of_order`` and ``not_found``
    are pairs of a value of a time index entry and the value in the log or the previous entry. ``gaps`` are non-consecutive
    offsets.
    """

    def __init__(self) -> None:
        self.mismatches: dict[str, dict[int, int]] = {}
        self.timestamps: dict[str, list[tuple[int, int]]] = {}
        self.out_of_order: dict[str, list[tuple[int, int]]] = {}
        self.not_found: dict[str, list[tuple[int, int]]] = {}
        self.gaps: dict[str, PairSpool] = {}
        self.errors: list[CompactionError] = []

    def lines(self) -> Iterator[str]:
        """All findings but ``errors``, as Kafka's tool writes them to standard error."""
        for path, offsets in java_order(self.mismatches):
            yield f"Mismatches in :{path}"
            yield from (f"  Index offset: {index}, log offset: {log}" for index, log in sorted(offsets.items(), reverse=True))
        for path, pairs in java_order(self.timestamps):
            yield f"Found timestamp mismatch in :{path}"
            yield from (f"  Index timestamp: {index}, log timestamp: {log}" for index, log in pairs)
        for path, pairs in java_order(self.out_of_order):
            yield f"Found out of order timestamp in :{path}"
            yield from (f"  Index timestamp: {index}, Previously indexed timestamp: {before}" for index, before in pairs)
        for path, pairs in java_order(self.not_found):
            yield f"The following indexed offsets are not found in :{path}"
            yield from (f"Indexed offset: {index}, found log offset: {log}" for index, log in pairs)
        for path, spool in java_order(self.gaps):
            yield f"Non-consecutive offsets in {path}"
            yield from (f"  {before} is followed by {after}" for before, after in spool)
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
    for at in range(0, len(raw), 2):
        code = (31 * code + int.from_bytes(raw[at : at + 2], "big")) % _INT
    return code ^ (code >> 16)
