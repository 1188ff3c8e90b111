"""Logs of a few segments in memory for the recovery tests."""

from __future__ import annotations

from compaction.files.filesystem import join
from compaction.names import INDEX, LOG, TIMEINDEX, segment_file
from tests.disk import FaultyFileSystem
from tests.log.logs import Built, data_segment, location

HERE = location("/logs")
PATH = HERE.path
KINDS = (LOG, INDEX, TIMEINDEX)
#: a short ``index.interval.bytes``
SMALL = 256


def log_with(*segments: Built) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir(PATH)
    for segment in segments:
        segment.put(fs, PATH)
    return fs.settle()


def three() -> FaultyFileSystem:
    return log_with(data_segment(0, [5, 60]), data_segment(100, [105, 150]), data_segment(200, [200]))


def name(base: int, kind: str, suffix: str = "") -> str:
    return join(PATH, segment_file(base, kind, suffix))


def put(fs: FaultyFileSystem, segment: Built, suffixes: dict[str, str]) -> None:
    """Write a segment's files with the given suffix for each kind."""
    for kind, suffix in suffixes.items():
        fs.put(name(segment.base_offset, kind, suffix), segment.files[kind])


def flipped(data: bytes, at: int) -> bytes:
    """The bytes with one bit flipped."""
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
