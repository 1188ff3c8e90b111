"""Small logs for the simulation: their records, the survivors, and the records that a reader is served."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache

from compaction.files.filesystem import join
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.formats.indexes import read_txn_index
from compaction.formats.message_set import iter_batches
from compaction.formats.record_batch import TRANSACTIONAL, RecordBatch
from compaction.names import CLEANER_OFFSETS, LOG, TXNINDEX, segment_file
from compaction.rules.log_view import AbortedTxn
from tests.disk import FaultyFileSystem
from tests.kafka.encode import Batch, Record
from tests.log.logs import NOW_MS, TOPIC, Built, build, marker

LOG_DIR = "/simulated/logs"
PATH = f"{LOG_DIR}/{TOPIC}"
KEYS = 6
SEGMENT_OFFSETS = 100
PRODUCER = 7


@dataclass
class History:
    """All acknowledged records: offset -> key and value; ``aborted`` are offsets of aborted ones."""

    records: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)
    aborted: frozenset[int] = frozenset()

    def end(self) -> int:
        """The offset after the last record."""
        return max(self.records) + 1

    def survivors(self) -> dict[int, tuple[bytes, bytes | None]]:
        """The last committed record of each key."""
        last: dict[bytes, int] = {}
        for offset in sorted(self.records.keys() - self.aborted):
            last[self.records[offset][0]] = offset
        return {offset: self.records[offset] for offset in last.values()}


def batch(history: History, offset: int, key: int, *, transactional: bool = False) -> bytes:
    """Append one record as a batch and acknowledge it."""
    record = Record(offset, NOW_MS + offset, b"key-%d" % key, b"value-%d" % offset)
    history.records[offset] = (b"key-%d" % key, record.value)
    if transactional:
        return Batch([record], producer_id=PRODUCER, producer_epoch=0, base_sequence=0, transactional=True).encode()
    return Batch([record]).encode()


@cache
def _layout(number: int) -> tuple[tuple[Built, ...], dict[int, tuple[bytes, bytes | None]], frozenset[int], int | None]:
    """One of a few logs: its segments, the last one active, its records, the aborted ones, and its cleaner checkpoint."""
    chance = random.Random(number)
    history, segments, aborted = History(), [], set()
    closed = chance.randint(2, 5)
    with_transaction = chance.randrange(closed)
    for index in range(closed + 1):
        base, batches, txns = index * SEGMENT_OFFSETS, [], []
        for offset in sorted(chance.sample(range(base + 2, base + 60), chance.randint(1, 4))):
            batches.append(batch(history, offset, chance.randrange(KEYS)))
        if index == with_transaction:
            offset = base + 70
            batches.append(batch(history, offset, chance.randrange(KEYS), transactional=True))
            batches.append(marker(offset + 5, PRODUCER, commit=False))
            batches.append(batch(history, offset + 10, chance.randrange(KEYS)))
            txns.append(AbortedTxn(PRODUCER, offset, offset + 5, offset + 6))
            aborted.add(offset)
        segments.append(build(base, batches, txns=txns, interval=60))
    checkpoint = chance.choice([None, None, 0, SEGMENT_OFFSETS])
    return tuple(segments), history.records, frozenset(aborted), checkpoint


def put_log(disk: FaultyFileSystem, number: int) -> History:
    """Write log ``number``; returns its records."""
    segments, records, aborted, checkpoint = _layout(number)
    disk.mkdir(PATH)
    for segment in segments:
        for kind, data in segment.files.items():
            disk.write_file(join(PATH, segment_file(segment.base_offset, kind)), data)
    if checkpoint is not None:
        disk.write_file(join(LOG_DIR, CLEANER_OFFSETS), format_offset_checkpoint({TOPIC: checkpoint}).encode())
    disk.write_file(join(PATH, "partition.metadata"), b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    return History(dict(records), aborted)


def bases(disk: FaultyFileSystem, path: str = PATH) -> list[int]:
    """The base offsets of the segments, ascending."""
    return sorted(int(name[:20]) for name in disk.listdir(path) if name.endswith(LOG) and name[:20].isdigit())


def served(disk: FaultyFileSystem, path: str = PATH) -> tuple[dict[int, tuple[bytes | None, bytes | None]], frozenset[int]]:
    """What a reader of the log gets, by offset, control records left out; and the offsets that transaction indexes call
    aborted, as a reader of committed records learns of them."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    aborted: set[int] = set()
    here = bases(disk, path)
    for base, end in zip(here, [*here[1:], 2**63], strict=True):
        ranges = []
        if segment_file(base, TXNINDEX) in disk.listdir(path):
            index = read_txn_index(disk.read_bytes(join(path, segment_file(base, TXNINDEX))))
            ranges = [(row["first_offset"], row["last_offset"]) for row in index]
        for one in iter_batches(disk.read_bytes(join(path, segment_file(base, LOG))), torn_tail=True):
            assert isinstance(one, RecordBatch)
            for record in () if one.is_control else one.records():
                if record.offset < end:
                    found[record.offset] = (record.key, record.value)
                    if one.header.attributes & TRANSACTIONAL and any(first <= record.offset <= last for first, last in ranges):
                        aborted.add(record.offset)
    return found, frozenset(aborted)
