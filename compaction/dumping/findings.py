"""Findings of a dump, printed at its end in the wording of Kafka's dump tool.

Mirrors the maps of ``DumpLogSegments`` and ``TimeIndexDumpErrors`` (Kafka 4.3.1), including the order of a Java ``HashMap``.
Invalid data is also reported as an error with a position. Gaps between offsets are not errors: cleaning leaves gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from compaction.dumping.json_lines import Row
from compaction.dumping.spool import PairSpool
from compaction.errors import CompactionError

_SMALLEST_MAP = 16
_INT = 1 << 32
#: type, heading, text and fields of a finding, in the order of Kafka's tool
_KINDS = (
    ("mismatch", "Mismatches in :{}", "  Index offset: {}, log offset: {}", ("indexOffset", "logOffset")),
    (
        "timestampMismatch", "Found timestamp mismatch in :{}", "  Index timestamp: {}, log timestamp: {}",
        ("indexTimestamp", "logTimestamp"),
    ),
    (
        "outOfOrderTimestamp", "Found out of order timestamp in :{}",
        "  Index timestamp: {}, Previously indexed timestamp: {}", ("indexTimestamp", "previousTimestamp"),
    ),
    (
        "notFound", "The following indexed offsets are not found in :{}", "Indexed offset: {}, found log offset: {}",
        ("indexOffset", "logOffset"),
    ),
    ("gap", "Non-consecutive offsets in {}", "  {} is followed by {}", ("offset", "nextOffset")),
)  # fmt: skip

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

    def rows(self) -> Iterator[tuple[str, Row]]:
        """All findings but ``errors`` with their path; texts and order are those that Kafka's tool writes to standard error.
        A heading, which only the text has, has no type."""
        mismatches = {path: sorted(offsets.items(), reverse=True) for path, offsets in self.mismatches.items()}
        findings_of_kinds: tuple[Mapping[str, Iterable[tuple[int, int]]], ...] = (
            mismatches, self.timestamps, self.out_of_order, self.not_found, self.gaps,
        )  # fmt: skip
        for (kind, heading, text, names), by_path in zip(_KINDS, findings_of_kinds, strict=True):
            for path, pairs in java_order(by_path):
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
