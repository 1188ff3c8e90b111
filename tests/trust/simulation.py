"""Two jobs, at times a third one, and a broker on one log, interleaved at every file operation as a seed decides.

``python -m tests.trust.simulation --runs 10000 --seed 1``. Each run draws a log, a lock mode, the actions of the three, and
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
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError, LockedError
from compaction.files.filesystem import FileSystem
from compaction.files.local import FreeSpace
from compaction.log.access import Identity
from compaction.names import LOCK
from compaction.report import LogStatus
from compaction.run import waves
from compaction.run.compact import clean_logs
from compaction.run.run import Environment
from compaction.run_report import RunReport
from tests.disk import FaultyFileSystem
from tests.local_job import request_for
from tests.local_passes import LocalPasses
from tests.log.logs import NOW_MS, TOPIC
from tests.trust.simulated_broker import LOG_DIR, PATH, Broker, Habits, History, put_log, served
from tests.trust.turns import Actor, ActorFiles, Killed, LockTable, Schedule

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


def claim_of(name: str) -> bytes:
    """The content of an actor's claim."""
    return json.dumps(asdict(identity_of(name))).encode()


class Verdict(NamedTuple):
    """The result of a run: each actor's outcome, and the violations."""

    outcomes: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]


@dataclass
class World:
    """One scenario being played."""

    scenario: Scenario
    trace: bool = False
    disk: FaultyFileSystem = field(default_factory=FaultyFileSystem)
    locks: LockTable = field(default_factory=LockTable)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.scenario.seed ^ 0x5EED)
        self.history = put_log(self.disk, self.scenario.layout)
        self.everybody: list[Actor] = []
        if self.scenario.left_claim:
            self.disk.write_file(f"{LOG_DIR}/.compaction-run.00000001", claim_of("long ago"))

    def play(self) -> Verdict:
        """Play the scenario and the undisturbed end; returns the violations."""
        free_bytes = _GROUP_BYTES if self.scenario.portions else 1 << 40
        # the thread of an actor has its name
        of_this_thread = classmethod(lambda cls: identity_of(threading.current_thread().name))
        with (
            patch.object(waves, "free_space", lambda directory: FreeSpace(1, free_bytes, 0)),
            patch.object(Identity, "of_this_process", of_this_thread),
            patch.object(Identity, "is_over", lambda run, log_dir: self._is_over(run.token)),
        ):
            return self._play()

    def _is_over(self, name: str) -> bool:
        return all(each.over for each in self.everybody if each.name == name)

    def _play(self) -> Verdict:
        scenario = self.scenario
        schedule = self._schedule()
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

    def _schedule(self) -> Schedule:
        made = Schedule(self.chance, self.scenario.switch, self.locks.drop)
        made.trace = [] if self.trace else None
        self.last_schedule = made
        return made

    def _files(self, schedule: Schedule, actor: Actor) -> ActorFiles:
        domain: object = actor.name
        if self.scenario.mode == WORKING:
            domain = "everybody"
        elif self.scenario.mode == ADVISORY:
            domain = "another mount" if actor.name == "second" else "everybody else"
        return ActorFiles(self.disk, self.locks, actor.name, domain, schedule.turn_of(actor))

    def _add(self, schedule: Schedule, actor: Actor, *, copy: bool = False) -> None:
        files = self._files(schedule, actor)

        def work() -> RunReport:
            return clean_logs(LocalPasses, _request(self.scenario, files, copy=copy), Environment(files))

        actor.work = work
        self._enter(schedule, actor)

    def _add_broker(self, schedule: Schedule, actor: Actor, habits: Habits) -> None:
        files = self._files(schedule, actor)

        def live() -> str:
            lock = files.lock(LOG_DIR)
            broker = Broker(files, self.history, habits, self.chance)
            with schedule.uninterrupted(actor) if habits.start_is_one_step else nullcontext():
                broker.start()
            broker.serve()
            lock.release()
            return "served"

        actor.work = live
        self._enter(schedule, actor)

    def _enter(self, schedule: Schedule, actor: Actor) -> None:
        schedule.actors.append(actor)
        self.everybody.append(actor)

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
        self.scenario = replace(self.scenario, switch=0.0)
        last: list[Actor] = []
        for name in self.chance.choice([("last broker", "last job"), ("last job", "last broker")]):
            schedule = self._schedule()
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


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=(*MODES, UNGUARDED))
    parser.add_argument("--trace", action="store_true", help="print every operation of a run that fails")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    started, tally, bad = time.monotonic(), Counter[str](), 0
    for seed in range(options.seed, options.seed + options.runs):
        scenario = Scenario.draw(seed, options.mode)
        world = World(scenario, trace=options.trace)
        verdict = world.play()
        tally[f"{scenario.mode}: runs"] += 1
        tally.update(f"{scenario.mode}: {name} {outcome}" for name, outcome in verdict.outcomes)
        if verdict.problems:
            bad += 1
            tally[f"{scenario.mode}: WRONG"] += 1
            if scenario.mode != UNGUARDED:
                print(json.dumps({"seed": seed, "mode": scenario.mode, **verdict._asdict()}))
    for name, count in sorted(tally.items()):
        print(f"{count:8}  {name}")
    print(f"{options.runs} runs, {bad} wrong, {time.monotonic() - started:.0f} s")
    return int(bad > 0 and options.mode != UNGUARDED)


if __name__ == "__main__":
    raise SystemExit(main())
