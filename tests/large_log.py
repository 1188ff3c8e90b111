"""A log that needs worker processes: more than ``INLINE_BYTES``, in few large records, so that it is written quickly."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from pathlib import Path

import google_crc32c

from compaction.engines.local import INLINE_BYTES

_VALUE = bytes(1 << 20)
_RECORDS = 4 + INLINE_BYTES // len(_VALUE)
_MS = 1_760_000_000_000
#: number of keys of the log; the active segment has another one
KEYS = 5
#: of the log
END_OFFSET = _RECORDS + 1


def _varint(number: int) -> bytes:
    number, data = number << 1, b""
    while number > 127:
        data, number = data + bytes([number & 127 | 128]), number >> 7
    return data + bytes([number])


def _batch(offset: int, key: bytes, value: bytes, step_ms: int) -> bytes:
    record = b"\0\0\0" + _varint(len(key)) + key + _varint(len(value)) + value + b"\0"
    time_ms = _MS + offset * step_ms
    tail = struct.pack(">hiqqqhii", 0, 0, time_ms, time_ms, -1, -1, -1, 1) + _varint(len(record)) + record
    return struct.pack(">qiibI", offset, 9 + len(tail), 0, 2, google_crc32c.value(tail)) + tail


def write_large_log(directory: Path, step_ms: int = 0) -> Path:
    """Writes ``orders-0`` in a log directory: two inactive segments and an active one. Returns the log directory.

    :param step_ms: from a record to the next one
    """
    log = directory / "orders-0"
    log.mkdir(parents=True)
    for first, last in ((0, _RECORDS // 2), (_RECORDS // 2, _RECORDS)):
        _write(log, first, (_batch(offset, b"key-%d" % (offset % KEYS), _VALUE, step_ms) for offset in range(first, last)))
    _write(log, _RECORDS, [_batch(_RECORDS, b"active", b"value", step_ms)])
    return directory


def replace_log(log_dir: Path, topic: str, log: Path) -> None:
    """Puts the files of ``log``, of ``write_large_log``, in the place of a topic's first log."""
    replaced = log_dir / f"{topic}-0"
    for file in replaced.iterdir():
        if re.match(r"\d+\.", file.name):
            file.unlink()
    for file in log.iterdir():
        os.link(file, replaced / file.name)
    assert sum(file.stat().st_size for file in replaced.glob("*.log")) > INLINE_BYTES
    for file in log_dir.glob("*-offset-checkpoint"):
        end = f"{topic} 0 {0 if file.name.startswith(('log-start', 'cleaner')) else END_OFFSET}"
        file.write_text(re.sub(rf"^{topic} 0 \d+$", end, file.read_text(), flags=re.MULTILINE))


def _write(log: Path, offset: int, batches: Iterable[bytes]) -> None:
    with (log / f"{offset:020d}.log").open("wb") as file:
        file.writelines(batches)
