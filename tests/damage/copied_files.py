"""Damage of a file of a copy that its size and times may not show: what a lost write, a bad block or a hand leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.oracle.records import decode


def _zeros(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def _bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 16
    path.write_bytes(bytes(data))


def _shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + bytes(24))


def _swapped(path: Path) -> None:
    """By another file of its kind."""
    others = [other for other in path.parent.glob(f"*{path.suffix}") if other.read_bytes() != path.read_bytes()]
    path.write_bytes(others[0].read_bytes() if others else b"")


DAMAGES: Mapping[str, Callable[[Path], None]] = {
    "zeros": _zeros, "bit": _bit, "shorter": _shorter, "longer": _longer, "swapped": _swapped, "missing": Path.unlink
}  # fmt: skip


def damage(path: Path, how: str) -> bool:
    """Damage a file, which keeps its times; whether that has changed it."""
    before, stat = path.read_bytes(), path.stat()
    if not before and how not in ("longer", "missing"):
        return False
    DAMAGES[how](path)
    if path.exists():
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return not path.exists() or path.read_bytes() != before


def record_count(log_dir: Path) -> int:
    """The number of records in the logs of a directory, by a reader that shares nothing with the program."""
    batches = (batch for path in log_dir.glob("*-*/*.log") for batch in decode(path.read_bytes()))
    return sum(len(batch.records()) for batch in batches)
