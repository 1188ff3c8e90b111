"""The small logs of the simulation, and its broker: it starts, appends to the active segment, rolls, and cleans the log itself.

It handles files as ``LogLoader``, ``LogSegment.append``, ``LocalLog.roll`` and ``LocalLog.replaceSegments`` (Kafka 4.4.0) do:
the active segment is kept open; a cleaned one is written as ``.cleaned`` and renamed to ``.swap`` before its sources are
renamed to ``.deleted``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache

from compaction.files.filesystem import join
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.formats.indexes import read_txn_index
from compaction.formats.message_set import iter_batches
from compaction.formats.record_batch import TRANSACTIONAL, RecordBatch
from compaction.log.read_log import segment_bases
from compaction.names import (
    CLEANED,
    CLEANER_OFFSETS,
    DELETED,
    INDEX,
    LOG,
    SEGMENT_KINDS,
    SWAP,
    TIMEINDEX,
    TXNINDEX,
    segment_file,
)
from compaction.rules.log_view import AbortedTxn
from tests.disk import FaultyFileSystem, Inode
from tests.kafka.encode import Batch, Record
from tests.log.broker_model import start_broker
from tests.log.logs import NOW_MS, TOPIC, Built, build, marker
from tests.trust.turns import ActorFiles

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


def served(disk: FaultyFileSystem, path: str = PATH) -> tuple[dict[int, tuple[bytes | None, bytes | None]], frozenset[int]]:
    """What a reader of the log gets, by offset, control records left out; and the offsets that transaction indexes call
    aborted, as a reader of committed records learns of them."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    aborted: set[int] = set()
    here = segment_bases(disk, path)
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


@dataclass(frozen=True)
class Habits:
    """A broker's behaviour: whether its start is atomic, how often it appends, whether its cleaner runs."""

    start_is_one_step: bool
    appends: int
    cleans: bool


class Broker:
    """One broker's life."""

    def __init__(self, files: ActorFiles, history: History, habits: Habits, chance: random.Random) -> None:
        self._files, self._history, self._habits, self._chance = files, history, habits, chance
        self._active: Inode | None = None
        self._bases: list[int] = []
        self._end = 0

    def start(self) -> None:
        """Load the log into memory; the active segment is kept open."""
        start_broker(self._files, PATH)
        self._bases = segment_bases(self._files.disk, PATH)
        self._active = self._files.disk.inode(join(PATH, segment_file(self._bases[-1], LOG)))
        batches = list(iter_batches(self._active.data, torn_tail=True))
        self._end = batches[-1].last_offset + 1 if batches else self._bases[-1]

    def serve(self) -> None:
        """Append and roll; then clean, if its cleaner runs."""
        for _ in range(self._habits.appends):
            if self._chance.random() < 0.4:
                self._roll()
            self._append()
        if self._habits.cleans and len(self._bases) > 2:
            self._clean(self._bases[:2])

    def _append(self) -> None:
        assert self._active is not None
        active = self._active
        self._files.do("append", PATH, lambda: None)
        data = batch(self._history, self._end, self._chance.randrange(KEYS))
        self._files.disk.write(active, active.data + data)
        self._end += 1

    def _roll(self) -> None:
        assert self._active is not None
        if not self._active.data:
            return
        base = self._end
        for kind in (INDEX, TIMEINDEX, LOG):
            self._files.write_file(join(PATH, segment_file(base, kind)), b"")
        self._active = self._files.disk.inode(join(PATH, segment_file(base, LOG)))
        self._bases.append(base)

    def _clean(self, group: list[int]) -> None:
        """Replace two segments by one without the records that are superseded within them."""
        logs = [self._files.read_bytes(join(PATH, segment_file(base, LOG))) for base in group]
        batches = [each for log in logs for each in iter_batches(log) if isinstance(each, RecordBatch)]
        last = {r.key: r.offset for each in batches if not each.header.attributes & TRANSACTIONAL for r in each.records()}
        kept = [b for b in batches if b.header.attributes & TRANSACTIONAL or any(last[r.key] == r.offset for r in b.records())]
        txns = [join(PATH, segment_file(base, TXNINDEX)) for base in group]
        aborted = b"".join(self._files.read_bytes(name) for name in txns if self._files.stat(name) is not None)
        contents = {LOG: b"".join(bytes(b.data) for b in kept), INDEX: b"", TIMEINDEX: b""}
        if aborted:
            contents[TXNINDEX] = aborted
        for kind, data in contents.items():
            self._files.write_file(join(PATH, segment_file(group[0], kind, CLEANED)), data)
        for kind in contents:
            self._rename(segment_file(group[0], kind, CLEANED), segment_file(group[0], kind, SWAP))
        for base in group:
            for kind in SEGMENT_KINDS:
                name = segment_file(base, kind)
                if self._files.stat(join(PATH, name)) is not None:
                    self._rename(name, name + DELETED)
        for kind in contents:
            self._rename(segment_file(group[0], kind, SWAP), segment_file(group[0], kind))
        self._bases.remove(group[1])

    def _rename(self, source: str, target: str) -> None:
        self._files.rename(join(PATH, source), join(PATH, target))
