"""Small valid logs of every kind, to be damaged: three segments each, the last of them active."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from compaction.formats.producer_snapshot import ProducerEntry, write_snapshot
from compaction.names import INDEX, LEADER_EPOCHS, LOG, SNAPSHOT, TIMEINDEX, TXNINDEX, segment_file
from compaction.rules.log_view import AbortedTxn
from tests.kafka.encode import ABORT, COMMIT, Batch, Legacy, Producer, Record, marker
from tests.log.logs import build

NOW_MS = 1_700_000_000_000
SEGMENT_OFFSETS = 20
INTERVAL_BYTES = 100
MTIME_NS = 1_600_000_000_000_000_000

_HEADERS = ((b"trace", b"\x00\xff"), (b"", None))


def _records(base: int, count: int, *, headers: bool = False) -> list[Record]:
    """Keys repeat; every fifth record is a tombstone."""
    return [
        Record(
            base + i,
            NOW_MS - 10**7 + base + i,
            b"key-%d" % ((base + i) % 7),
            None if (base + i) % 5 == 4 else b"value-%d" % (base + i) * 3,
            _HEADERS if headers else (),
        )
        for i in range(count)
    ]


def _batches(codec: str) -> Callable[[int], list[bytes]]:
    return lambda base: [Batch(_records(base + i, 4, headers=True), codec).encode() for i in range(0, SEGMENT_OFFSETS, 4)]


def _legacy(magic: int, codec: str) -> Callable[[int], list[bytes]]:
    return lambda base: [Legacy(_records(base + i, 5), magic, codec).encode() for i in range(0, SEGMENT_OFFSETS, 5)]


def _mixed(base: int) -> list[bytes]:
    """All magics, one after the other."""
    return [
        Legacy(_records(base, 3), 0).encode(),
        Legacy(_records(base + 3, 3), 1, "gzip").encode(),
        Legacy(_records(base + 6, 3), 1, log_append_time=NOW_MS).encode(),
        Batch(_records(base + 9, 4), "zstd").encode(),
        Batch(_records(base + 13, 7), log_append_time=NOW_MS).encode(),
    ]


def _transactions(base: int) -> list[bytes]:
    """A committed and an aborted transaction, an emptied batch, one past its delete horizon."""
    good, bad = Producer(1), Producer(2)
    return [
        Batch(_records(base, 3), producer_id=1, producer_epoch=0, base_sequence=base, transactional=True).encode(),
        Batch(_records(base + 3, 3), "lz4", producer_id=2, producer_epoch=0, base_sequence=base, transactional=True).encode(),
        marker(base + 6, NOW_MS, good, COMMIT),
        Batch(_records(base + 7, 2), producer_id=2, producer_epoch=0, base_sequence=base + 3, transactional=True).encode(),
        marker(base + 9, NOW_MS, bad, ABORT),
        Batch((), base_offset=base + 10, last_offset=base + 12, producer_id=3, producer_epoch=0, base_sequence=0).encode(),
        Batch(_records(base + 13, 7), delete_horizon=NOW_MS - 5).encode(),
    ]


def _short(codec: str) -> Callable[[int], list[bytes]]:
    """Two small batches, for tests of every byte."""
    return lambda base: [Batch(_records(base + i, 2), codec).encode() for i in (0, 2)]


SHORT_KINDS: dict[str, Callable[[int], list[bytes]]] = {
    "short": _short("none"),
    "short-zstd": _short("zstd"),
    "short-v1": lambda base: [Legacy(_records(base, 2), 1).encode()],
}
KINDS: dict[str, Callable[[int], list[bytes]]] = {
    **{codec: _batches(codec) for codec in ("none", "gzip", "snappy", "lz4", "zstd")},
    **{f"v{magic}-{codec}": _legacy(magic, codec) for magic in (0, 1) for codec in ("none", "gzip", "snappy", "lz4")},
    "mixed": _mixed,
    "transactions": _transactions,
}


@dataclass(frozen=True)
class ValidLog:
    """One partition's files by name, and the base offsets of its segments."""

    kind: str
    files: dict[str, bytes]
    bases: tuple[int, ...]

    def log(self, number: int) -> str:
        """The name of a segment's log file."""
        return segment_file(self.bases[number], LOG)


def valid_log(kind: str, segments: int = 3) -> ValidLog:
    """A log of the given kind (see ``KINDS`` and ``SHORT_KINDS``) with indexes, snapshots and leader epochs."""
    files: dict[str, bytes] = {LEADER_EPOCHS: b"0\n1\n0 0\n"}
    bases = tuple(number * SEGMENT_OFFSETS for number in range(segments))
    for base in bases:
        aborted = [AbortedTxn(2, base + 3, base + 9, base + 10)] if kind == "transactions" else []
        built = build(base, {**KINDS, **SHORT_KINDS}[kind](base), txns=aborted, interval=INTERVAL_BYTES)
        for suffix in (LOG, INDEX, TIMEINDEX, TXNINDEX):
            if suffix in built.files:
                files[segment_file(base, suffix)] = built.files[suffix]
        if base:
            lasts = ((1, base - 18), (2, base - 12)) if kind == "transactions" else ()
            producers = [ProducerEntry(producer, 0, last, last, 1, NOW_MS, 0, -1) for producer, last in lasts]
            files[segment_file(base, SNAPSHOT)] = write_snapshot(producers)
    return ValidLog(kind, files, bases)


def write_log(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write a partition directory; all files get the same old mtime."""
    directory.mkdir(parents=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
        os.utime(directory / name, ns=(MTIME_NS, MTIME_NS))


def look_at(directory: Path) -> dict[str, tuple[bytes, int, int]]:
    """Bytes, mtime and mode of each file in a directory."""
    found = {}
    for path in sorted(directory.iterdir()):
        stat = path.stat()
        found[path.name] = (path.read_bytes(), stat.st_mtime_ns, stat.st_mode)
    return found
