"""What a broker does with the files of a log when it starts: the file handling of ``LogLoader`` (Kafka 4.4.0), and no more.

It does not know ``.clean`` nor the journal. A ``.log.swap`` is opened with its offset index, which comes into being
preallocated where it is missing.
"""

from __future__ import annotations

import re

from compaction.files.filesystem import FileSystem, join
from compaction.names import INDEX, LOG, SWAP, segment_file
from tests.log.logs import iter_batches

PREALLOCATED = 64


def start_broker(fs: FileSystem, path: str) -> None:
    """Load the log: temporary files go, swaps are finished, orphaned indexes go."""
    swaps = _remove_temporary_files(fs, path)
    low, high = 2**63, -1
    for name in swaps:
        if not name.endswith(LOG + SWAP):
            continue
        base = _offset(name)
        index = join(path, segment_file(base, INDEX, SWAP))
        if fs.stat(index) is None:
            fs.write_file(index, bytes(PREALLOCATED))
        low, high = min(low, base), max(high, _next_offset(fs, join(path, name), base))
    for name in fs.listdir(path):
        if not name.endswith(SWAP) and _has_offset(name) and low <= _offset(name) < high:
            fs.unlink(join(path, name))
    for name in fs.listdir(path):
        if name.endswith(SWAP):
            fs.rename(join(path, name), join(path, name.removesuffix(SWAP)))
    for name in fs.listdir(path):
        if name.endswith((".index", ".timeindex", ".txnindex")) and _has_offset(name):
            if fs.stat(join(path, segment_file(_offset(name), LOG))) is None:
                fs.unlink(join(path, name))


def _remove_temporary_files(fs: FileSystem, path: str) -> list[str]:
    names = fs.listdir(path)
    for name in names:
        if name.endswith(".deleted"):
            fs.unlink(join(path, name))
    cleaned = [name for name in names if name.endswith(".cleaned")]
    lowest = min((_offset(name) for name in cleaned), default=2**63)
    swaps = [name for name in names if name.endswith(SWAP)]
    for name in [*(name for name in swaps if _offset(name) >= lowest), *cleaned]:
        fs.unlink(join(path, name))
    return [name for name in swaps if _offset(name) < lowest]


def _next_offset(fs: FileSystem, path: str, base: int) -> int:
    batches = list(iter_batches(fs.read_bytes(path), torn_tail=True))
    return batches[-1].last_offset + 1 if batches else base


def _has_offset(name: str) -> bool:
    return re.match(r"\d+\.", name) is not None


def _offset(name: str) -> int:
    return int(name.split(".", 1)[0])
