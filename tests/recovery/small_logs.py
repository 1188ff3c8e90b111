"""Logs of a few segments in memory for the recovery tests."""

from __future__ import annotations

from compaction.files.filesystem import join
from compaction.log.checkpoint_store import Checkpoints
from compaction.names import segment_file
from tests.disk import FaultyFileSystem
from tests.log.logs import TOPIC, Built, location

HERE = location("/logs")
PATH = HERE.path
#: a short ``index.interval.bytes``
SMALL = 256
#: how the broker ended
CLEAN, UNKNOWN = Checkpoints("/logs", clean_shutdown=True), Checkpoints("/logs")


def killed(recovery_point: int) -> Checkpoints:
    return Checkpoints("/logs", recovery_points={TOPIC: recovery_point})


def log_with(*segments: Built) -> FaultyFileSystem:
    fs = FaultyFileSystem()
    fs.mkdir(PATH)
    for segment in segments:
        segment.put(fs, PATH)
    return fs.settle()


def name(base: int, kind: str, suffix: str = "") -> str:
    return join(PATH, segment_file(base, kind, suffix))


def flipped(data: bytes, at: int) -> bytes:
    """The bytes with one bit flipped."""
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
