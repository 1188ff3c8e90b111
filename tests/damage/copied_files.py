"""Damage of a file of a copy that its size and times may not show: what a lost write, a bad block or a hand leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.damage.harm import flipped
from tests.oracle.records import decode


def _swapped(data: bytes, path: Path) -> bytes:
    """Another file of its kind."""
    others = (other.read_bytes() for other in sorted(path.parent.glob(f"*{path.suffix}")))
    return next((other for other in others if other != data), b"")


#: what a file with these bytes has then; ``None``: it is gone
DAMAGES: Mapping[str, Callable[[bytes, Path], bytes | None]] = {
    "zeros": lambda data, _: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "bit": lambda data, _: flipped(data, len(data) * 2 // 3),
    "shorter": lambda data, _: data[:-7],
    "longer": lambda data, _: data + bytes(24),
    "swapped": _swapped,
    "missing": lambda *_: None,
}


def damage(path: Path, how: str) -> bool:
    """Damage a file, which keeps its times; whether that has changed it."""
    before, stat = path.read_bytes(), path.stat()
    if not before and how not in ("longer", "missing"):
        return False
    after = DAMAGES[how](before, path)
    if after is None:
        path.unlink()
    else:
        path.write_bytes(after)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return after != before


def record_count(log_dir: Path) -> int:
    """The number of records in the logs of a directory, by a reader that shares nothing with the program."""
    batches = (batch for path in log_dir.glob("*-*/*.log") for batch in decode(path.read_bytes()))
    return sum(len(batch.records()) for batch in batches)
