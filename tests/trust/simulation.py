"""Two jobs, at times a third one, and a broker on one log, interleaved at every file operation as a seed decides.

``python -m tools.search --turn simulation`` tries many seeds. Each run draws a log, a lock mode, the actions of the three, and
which of them is killed. At the end one more broker starts and one more job runs undisturbed. Then every survivor of all
acknowledged records must be served with its key and value, only acknowledged records may be served, and aborted records must
be marked as aborted.

Lock modes and their guarantees:

* ``working``: both jobs and the broker see each other's locks. All guarantees hold, whatever the broker does.
* ``advisory``: the second job is on another mount, whose locks the first one and the broker do not see.
* ``lost``: every lock is granted to every actor.

In the last two modes claims exclude the jobs from each other: at most one of two jobs swaps a log. A broker ignores claims. It
may start between any two steps of a job, append and roll, and no record is lost. More cannot be guaranteed: ``unguarded`` is
``lost`` with a broker whose start is interleaved with a swap, or whose cleaner runs at the same time as the job. A start works
on the listing that it began with and deletes files that a swap has meanwhile renamed; a cleaner renames by path the files that
it has read by handle. No order of the job's steps can prevent that. These runs are counted, and lose records.

The broker handles files as ``LogLoader``, ``LogSegment.append``, ``LocalLog.roll`` and ``LocalLog.replaceSegments`` (Kafka
4.4.0) do: the active segment is kept open; a cleaned one is written as ``.cleaned`` and renamed to ``.swap`` before its sources
are renamed to ``.deleted``.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError, LockedError
from compaction.files.filesystem import FileSystem, join
from compaction.files.local import FreeSpace
from compaction.formats.checkpoints import format_offset_checkpoint
from compaction.formats.indexes import read_txn_index
from compaction.formats.record_batch import TRANSACTIONAL, RecordBatch
from compaction.log.access import Identity
from compaction.log.read_log import segment_bases
from compaction.names import (
    CLEANED,
    CLEANER_OFFSETS,
    DELETED,
    INDEX,
    LOCK,
    LOG,
    SEGMENT_KINDS,
    SWAP,
    TIMEINDEX,
    TXNINDEX,
    segment_file,
)
from compaction.report import LogStatus, RunReport
from compaction.rules.log_view import AbortedTxn
from compaction.run import waves
from compaction.run.compact import clean_logs
from tests.disk import FaultyFileSystem, Inode
from tests.kafka.encode import Batch, Record
from tests.local_job import request_for
from tests.local_passes import LocalPasses
from tests.log.broker_model import start_broker
from tests.log.logs import NOW_MS, TOPIC, Built, build, iter_batches, marker
from tests.trust.turns import Actor, ActorFiles, Killed, LockTable, Schedule

LOG_DIR = "/simulated/logs"
PATH = f"{LOG_DIR}/{TOPIC}"
KEYS = 6
SEGMENT_OFFSETS = 100
PRODUCER = 7
IN_TRANSACTION = {"producer_id": PRODUCER, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
WORKING, ADVISORY, LOST, UNGUARDED = "working", "advisory", "lost", "unguarded"
MODES = (WORKING, ADVISORY, LOST)
JOBS = ("first", "second", "third")
LAYOUTS = 40
COPY_DIR = "/simulated/copy"
#: rarely, so that one actor gets far while the others wait, or at nearly every step
_SWITCHES = (0.003, 0.01, 0.03, 0.1, 0.5)
_JOB_STEPS = 520
_BROKER_STEPS = 80
_DAY_MS = 86_400_000
#: free space for one group of segments, and the margin
_GROUP_BYTES = (4 << 20) + 24_000


# the log


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


def batch(history: History, offset: int, key: int, **header: Any) -> bytes:
    """Append one record as a batch and acknowledge it."""
    record = Record(offset, NOW_MS + offset, b"key-%d" % key, b"value-%d" % offset)
    history.records[offset] = (b"key-%d" % key, record.value)
    return Batch([record], **header).encode()


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
            batches.append(batch(history, offset, chance.randrange(KEYS), **IN_TRANSACTION))
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


# its broker


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


# the scenarios


@dataclass(frozen=True)
class Scenario:
    """The scenario of a seed."""

    seed: int
    mode: str
    layout: int
    switch: float
    jobs: int
    starts: tuple[int, ...]
    kills: tuple[int | None, ...]
    broker: Habits | None
    copies: bool
    left_claim: bool
    delay_ms: int
    #: the free space is enough for one group of segments
    portions: bool = False

    @classmethod
    def draw(cls, seed: int, mode: str | None = None) -> Scenario:
        """Draw a random scenario, in ``mode`` if given."""
        chance = random.Random(seed)
        drawn = chance.choice(MODES)
        mode = mode or drawn
        starts = (0, chance.choice([0, chance.randrange(_JOB_STEPS)]), *(chance.randrange(2 * _JOB_STEPS) for _ in range(2)))
        kills = tuple(
            chance.randrange(1, steps) if chance.random() < share else None
            for steps, share in ((_JOB_STEPS, 0.4), (_JOB_STEPS, 0.2), (_JOB_STEPS, 0.2), (_BROKER_STEPS, 0.3))
        )
        jobs = chance.choice([2, 2, 3])
        guarded = mode == WORKING
        habits = Habits(not guarded and mode != UNGUARDED, chance.randrange(8), guarded or mode == UNGUARDED)
        broker = habits if chance.random() < 0.6 or mode == UNGUARDED else None
        layout, switch, delay_ms = chance.randrange(LAYOUTS), chance.choice(_SWITCHES), chance.choice([0, 60_000])
        copies, left_claim = chance.random() < 0.15, chance.random() < 0.3
        portions = chance.random() < 0.3
        return cls(seed, mode, layout, switch, jobs, starts, kills, broker, copies, left_claim, delay_ms, portions)


def identity_of(name: str) -> Identity:
    """An actor as a run."""
    return Identity(name, f"host-of-{name}", "boot", "namespace", 1, "0")


class Verdict(NamedTuple):
    """The result of a run: each actor's outcome, and the violations."""

    outcomes: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


@dataclass
class World:
    """One scenario being played."""

    scenario: Scenario
    disk: FaultyFileSystem = field(default_factory=FaultyFileSystem)
    locks: LockTable = field(default_factory=LockTable)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.scenario.seed ^ 0x5EED)
        self.history = put_log(self.disk, self.scenario.layout)
        self.everybody: list[Actor] = []
        if self.scenario.left_claim:
            self.disk.write_file(f"{LOG_DIR}/.compaction-run.00000001", json.dumps(asdict(identity_of("long ago"))).encode())

    def play(self) -> Verdict:
        """Play the scenario and the undisturbed end; returns the violations."""
        free_bytes = _GROUP_BYTES if self.scenario.portions else 1 << 40
        # the thread of an actor has its name
        of_this_thread = classmethod(lambda cls: identity_of(threading.current_thread().name))
        with (
            patch.object(waves, "free_space", lambda directory: FreeSpace(1, free_bytes, 0)),
            patch.object(Identity, "of_this_process", of_this_thread),
            patch.object(
                Identity, "is_over", lambda run, _: all(each.over for each in self.everybody if each.name == run.token)
            ),
        ):
            return self._play()

    def _play(self) -> Verdict:
        scenario = self.scenario
        schedule = Schedule(self.chance, scenario.switch, self.locks.drop)
        for name, start, kill in zip((*JOBS, "broker"), scenario.starts, scenario.kills, strict=True):
            actor = Actor(name, starts_at=start, killed_at=kill)
            if name in JOBS[: scenario.jobs]:
                self._add(schedule, actor, copy=scenario.copies and name == "second")
            elif name == "broker" and scenario.broker is not None:
                self._add_broker(schedule, actor, scenario.broker)
        schedule.run()
        problems = [*self._crashes(schedule), *self._double_swaps(schedule), *self._copy_problems(schedule)]
        outcomes = tuple((actor.name, outcome_of(actor)) for actor in schedule.actors)
        problems += self._end()
        return Verdict(outcomes, tuple(problems))

    def _files(self, schedule: Schedule, actor: Actor) -> ActorFiles:
        """The disk of an actor that enters."""
        schedule.actors.append(actor)
        self.everybody.append(actor)
        domain: object = actor.name
        if self.scenario.mode == WORKING:
            domain = "everybody"
        elif self.scenario.mode == ADVISORY:
            domain = "another mount" if actor.name == "second" else "everybody else"
        return ActorFiles(self.disk, self.locks, actor.name, domain, partial(schedule.take_turn, actor))

    def _add(self, schedule: Schedule, actor: Actor, *, copy: bool = False) -> None:
        files = self._files(schedule, actor)
        actor.work = lambda: clean_logs(LocalPasses, _request(self.scenario, files, copy=copy), files)

    def _add_broker(self, schedule: Schedule, actor: Actor, habits: Habits) -> None:
        files = self._files(schedule, actor)

        def live() -> str:
            lock = files.lock(LOG_DIR)
            broker = Broker(files, self.history, habits, self.chance)
            with schedule.uninterrupted(actor) if habits.start_is_one_step else nullcontext():
                broker.start()
            broker.serve()
            lock.close()
            return "served"

        actor.work = live

    def _crashes(self, schedule: Schedule) -> Iterator[str]:
        for actor in schedule.actors:
            if actor.error is not None and not isinstance(actor.error, (Killed, CompactionError)):
                # a broker goes offline if its files vanish
                if actor.name != "broker" or self.scenario.mode != UNGUARDED:
                    yield f"{actor.name} crashed: {actor.error!r}"
            if isinstance(actor.outcome, RunReport):
                yield from (f"{actor.name}: {log.reason}" for log in actor.outcome.logs if "unforeseen" in log.reason)

    def _double_swaps(self, schedule: Schedule) -> Iterator[str]:
        reports = [log for actor in schedule.actors if isinstance(actor.outcome, RunReport) for log in actor.outcome.logs]
        begins = [log.first_dirty_offset for log in reports if log.status is LogStatus.CLEANED]
        if len(set(begins)) < len(begins) and not self.scenario.copies:
            yield f"two jobs cleaned the log from offset {begins[0]}"

    def _copy_problems(self, schedule: Schedule) -> Iterator[str]:
        """A published copy serves the records that existed when it was made, at least those that are still current."""
        path = f"{COPY_DIR}/{TOPIC}"
        if self.disk.stat(path) is not None:
            # records may have been appended after the copy was planned
            end = put_log(FaultyFileSystem(), self.scenario.layout).end()
            yield from (f"copy: {each}" for each in _differences(self.disk, path, self.history, up_to=end))

    def _end(self) -> Iterator[str]:
        """Start one broker and run one job, in either order, then check the served records."""
        last: list[Actor] = []
        for name in self.chance.choice([("last broker", "last job"), ("last job", "last broker")]):
            schedule = Schedule(self.chance, 0.0, self.locks.drop)
            actor = Actor(name)
            if name == "last job":
                self._add(schedule, actor)
            else:
                self._add_broker(schedule, actor, Habits(start_is_one_step=True, appends=0, cleans=False))
            schedule.run()
            last.append(actor)
        for actor in last:
            if outcome_of(actor) not in ("served", "cleaned", "skipped"):
                yield f"{actor.name} undisturbed: {outcome_of(actor)} {actor.error or actor.outcome}"
        yield from _differences(self.disk, PATH, self.history)
        unfinished = (".swap", ".clean", ".cleaned", ".tmp")
        left = [name for name in self.disk.listdir(PATH) if name.startswith(".") or name.endswith(unfinished)]
        # a copy makes the lock file, which stays
        others = set(self.disk.listdir(LOG_DIR)) - {LOCK}
        left += [name for name in others if name.startswith(".") or name.endswith(".tmp")]
        if left:
            yield f"left behind: {left}"


def outcome_of(actor: Actor) -> str:
    """An actor's outcome in a word."""
    if isinstance(actor.error, Killed):
        return "killed"
    if isinstance(actor.error, LockedError):
        return "kept out"
    if actor.error is not None:
        return "refused" if isinstance(actor.error, CompactionError) else "crashed"
    if isinstance(actor.outcome, RunReport):
        return ", ".join(log.status.value for log in actor.outcome.logs) or "nothing"
    return str(actor.outcome)


def _differences(disk: FaultyFileSystem, path: str, history: History, up_to: int | None = None) -> Iterator[str]:
    found, known_as_aborted = served(disk, path)
    for offset, record in history.survivors().items():
        if found.get(offset) != record and (up_to is None or offset < up_to):
            yield f"offset {offset} {'is lost' if offset not in found else 'has changed'}"
    for offset, given in found.items():
        if history.records.get(offset) != given:
            yield f"offset {offset} was never written like this"
        if (offset in history.aborted) != (offset in known_as_aborted):
            yield f"offset {offset} is served as {'committed' if offset in history.aborted else 'aborted'}"


def _request(scenario: Scenario, fs: FileSystem, *, copy: bool) -> CompactionRequest:
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "internal.segment.bytes": "700",
        "index.interval.bytes": "60",
        "file.delete.delay.ms": str(scenario.delay_ms),
    }
    made = request_for(Path(LOG_DIR), NOW_MS + _DAY_MS, {TOPIC.topic: settings}, fs=fs)
    if copy:
        return replace(made, output_dir=COPY_DIR)
    # a run that frees space does not wait
    return replace(made, release_early=scenario.portions)
