"""A broker in the simulation: it starts, appends to the active segment, rolls, and cleans the log itself.

It handles files as ``LogLoader``, ``LogSegment.append``, ``LocalLog.roll`` and ``LocalLog.replaceSegments`` (Kafka 4.4.0) do:
the active segment is kept open; a cleaned one is written as ``.cleaned`` and renamed to ``.swap`` before its sources are
renamed to ``.deleted``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from compaction.files.filesystem import join
from compaction.formats.message_set import iter_batches
from compaction.formats.record_batch import TRANSACTIONAL, RecordBatch
from compaction.names import CLEANED, DELETED, INDEX, LOG, SEGMENT_KINDS, SWAP, TIMEINDEX, TXNINDEX, segment_file
from tests.disk import Inode
from tests.log.broker_model import start_broker
from tests.trust.simulated_logs import KEYS, PATH, History, bases, batch
from tests.trust.turns import ActorFiles


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
        self._bases = bases(self._files.disk)
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
