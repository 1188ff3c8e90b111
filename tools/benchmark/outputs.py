"""Whether both results are equal: every segment byte for byte, or as many records in as many bytes.

Compressed batches may differ by the version of the codec's library: then as many records in about as many bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from compaction.kernels.batches import scan_batches

_STEP = 64 << 20
#: allowed relative difference between versions of a codec's library
_ENCODER = 0.01


class Content(NamedTuple):
    """The content of a log directory's segments."""

    records: int
    size_bytes: int


def compare(kafkas: Path, ours: Path, *, compressed: bool) -> str:
    """``the same bytes``, or which figures of the logs are equal.

    :raises AssertionError: they have different numbers of records, or of bytes
    """
    names = _segments(kafkas)
    if names == _segments(ours) and all(_equal(kafkas / name, ours / name) for name in names):
        return "the same bytes"
    left, right = content(kafkas), content(ours)
    assert left.records == right.records, f"Kafka's cleaner left {left}, ours {right}"
    if left == right:
        return "the same records and sizes, in other segments"
    more = right.size_bytes / left.size_bytes - 1
    assert compressed and abs(more) < _ENCODER, f"Kafka's cleaner left {left}, ours {right}"
    return f"the same records, {100 * more:+.2f} % bytes"


def content(place: Path) -> Content:
    """Records and bytes of all segments."""
    records = size = 0
    for file in place.rglob("*.log"):
        data = np.memmap(file, np.uint8, "r") if file.stat().st_size else np.empty(0, np.uint8)
        at = 0
        while at < len(data):
            found = scan_batches(np.array(data[at : at + _STEP]), at, check_crc=False)
            assert found.consumed, file
            records += int(found.rows["count"].sum())
            at += found.consumed
        size += len(data)
    return Content(records, size)


def _segments(place: Path) -> list[str]:
    return sorted(str(file.relative_to(place)) for file in place.rglob("*.log") if file.stat().st_size)


def _equal(left: Path, right: Path) -> bool:
    if left.stat().st_size != right.stat().st_size:
        return False
    with left.open("rb") as one, right.open("rb") as other:
        while block := one.read(_STEP):
            if block != other.read(_STEP):
                return False
    return True
