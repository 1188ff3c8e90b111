"""Kafka's side of the runner of scenarios: its writer of logs, its way to clean them, and ours beside it.

The reference version writes the logs; a judge of any version cleans them. Before a round our directory becomes a copy of
Kafka's; after it both must be the same logs, with the same outcomes, and ``verify`` must accept ours.
``clean_as_broker`` has it clean the logs of a real broker's directory.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError

from compaction import compact
from compaction.certifier.certificate import Status
from compaction.names import CLEAN_SHUTDOWN, TopicPartition
from compaction.report import LogReport
from tests.certifier.certify import certify_copy
from tests.conformance.compare import differences, state_differences
from tests.kafka.cleaner import CleanResult, clean_partition_if_due
from tests.kafka.gateway import Gateway, shared_gateway, unconverted_errors
from tests.kafka.log import LONG_MAX, KafkaLog, Opening, has_snapshot, remove_deleted
from tests.local_job import OFFSET_FILES, TopicConfigs
from tests.oracle.records import decode
from tests.scenarios.language import MTIME, Scenario
from tests.scenarios.runner import Left, Outcome, Outcomes, Shutdown, Way, outcome_of, rounds_of

#: segments are written with limits at which they never roll
_WRITING = {"internal.segment.bytes": str(1 << 30), "segment.index.bytes": str(10 << 20), "cleanup.policy": "delete"}
#: an append ignores batches of a later leader epoch than its own
_ANY_LEADER_EPOCH = 1 << 30
_MAP_BYTES = 1 << 19
#: of internal topics
INTERNAL = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
#: Kafka's cleaner gives up a log if an index of an output needs more entries than its limit; the job writes that index
_FULL_INDEX = "Attempt to append to a full"


def by_kafka(partition: Path, scenario: Scenario, number: int) -> tuple[Shutdown, int]:
    """A ``Writer``: a broker's log, appended to and then shut down, or killed."""
    state, before = scenario.rounds[number], set(partition.glob("*.log"))
    shutdown, point = Shutdown.CLEAN, 0
    if state.segments or not before:
        log = KafkaLog(shared_gateway(), partition, Opening(state.now_ms, {**scenario.topic_config, **_WRITING}))
        point = log.end_offset
        for at, segment in enumerate(state.segments):
            if at or before:
                log.roll()
            (_append_as_leader if scenario.as_leader else _append)(log, segment)
        if state.was_killed:
            log.abandon()
            shutdown = Shutdown.KILLED
        else:
            log.close()
        # a segment that remains empty has the base offset of the next one, so there may be fewer files than segments
        newest = sorted(partition.glob("*.log"))[-len(state.segments) :] if state.segments else []
        for back, file in enumerate(reversed(newest), 1):
            mtime_ms = state.mtimes.get(len(state.segments) - back, MTIME)
            os.utime(file, ns=(mtime_ms * 10**6,) * 2)
    for name in state.lost:
        lose(partition, name)
    if shutdown is Shutdown.CLEAN and not has_snapshot(partition):
        shutdown = Shutdown.UNKNOWN
    return shutdown, point


def _append(log: KafkaLog, segment: Sequence[bytes]) -> None:
    if segment:
        log.append(b"".join(segment), leader_epoch=_ANY_LEADER_EPOCH)
        *_, last = decode(segment[-1])
        if log.end_offset != last.next_offset:
            raise AssertionError(f"the log ends at {log.end_offset}, not at {last.next_offset}")


def _append_as_leader(log: KafkaLog, segment: Sequence[bytes]) -> None:
    for stored in segment:
        # a producer's batch begins at offset 0: a leader that compresses makes data of a control batch with another offset
        batch = bytes(8) + stored[8:]
        control = batch[22] & 0x20
        try:
            with unconverted_errors():
                log.append_as_leader(batch, origin="COORDINATOR" if control else "CLIENT")
        except Py4JJavaError:
            # a leader would not have accepted every batch that a follower appends
            continue


def lose(partition: Path, name: str) -> None:
    """Removes what ``without`` names."""
    place, _, kind = name.rpartition(".")
    files = sorted(partition.glob(f"*.{kind}"))
    if place.isdecimal():
        inactive = sorted(partition.glob("*.log"))[:-1]
        files = [inactive[int(place) % len(inactive)].with_suffix(f".{kind}")] if inactive else []
    for file in files[-1:] if place == "newest" else files[:1]:
        file.unlink(missing_ok=True)


def cleaned_by(gateway: Gateway, *, include_active: bool = False, expires: bool = False) -> Way:
    """Kafka's own cleaner of a version, log by log, from the directory's checkpoints, which it moves.

    :param include_active: the last segment is rolled before, and what is rolled is removed afterwards
    :param expires: segment deletion only
    """

    def clean(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
        found = {
            name: _Broker(gateway, log_dir, f"{name}-0", Opening(now_ms, config), include_active, expires).run()
            for name, config in topics.items()
        }
        return found, log_dir

    return clean


@dataclass
class _Broker:
    """Segment deletion, if the policy includes it, then cleaning of one log; moves its checkpoints."""

    gateway: Gateway
    log_dir: Path
    log: str
    opening: Opening
    include_active: bool = False
    expires: bool = False
    deleted: int = 0

    @property
    def partition(self) -> Path:
        return self.log_dir / self.log

    def run(self) -> Outcome:
        policy, compacts = self.opening.config["cleanup.policy"], "compact" in self.opening.config["cleanup.policy"]
        if not self.expires and not compacts:
            return Outcome(None)
        opening = self._opening()
        if self.expires or "delete" in policy:
            opening = self._expire(opening)
        if self.expires:
            return Outcome(None, self.deleted)
        rolled = self._roll(opening) if self.include_active else None
        checkpoint = checkpoints(self.log_dir, "cleaner_offsets").get(self.log)
        try:
            with unconverted_errors():
                found = clean_partition_if_due(self.gateway, self.partition, opening, checkpoint, _MAP_BYTES)
        except Py4JJavaError as refusal:
            return Outcome(None, self.deleted, str(refusal.java_exception.toString()))
        if rolled is not None:
            for kind in (".log", ".index", ".timeindex"):
                (self.partition / f"{rolled:020d}{kind}").unlink(missing_ok=True)
        if opening.clean_shutdown is False:
            forget_active_indexes(self.partition)
        if isinstance(found, CleanResult):
            self._move("cleaner_offsets", found.end_offset)
            return Outcome(found.end_offset, self.deleted, figures=found.figures)
        self._move("cleaner_offsets", found.first_dirty_offset if found.force_update_checkpoint else checkpoint)
        return Outcome(None, self.deleted)

    def _opening(self) -> Opening:
        """How a broker that starts on the directory opens the log."""
        starts, marks, points = (
            checkpoints(self.log_dir, file) for file in ("log_starts", "high_watermarks", "recovery_points")
        )
        opening = replace(self.opening, log_start_offset=starts.get(self.log, 0), high_watermark=marks.get(self.log))
        if points and not (self.log_dir / CLEAN_SHUTDOWN).exists():
            return replace(opening, clean_shutdown=False, recovery_point=points.get(self.log, 0))
        return opening

    def _expire(self, opening: Opening) -> Opening:
        """Deletes segments, with ``.deleted`` files removed; the opening after it."""
        with KafkaLog(self.gateway, self.partition, replace(opening, background=True)) as log:
            self.deleted, start = log.expire(), int(log.java.logStartOffset())
        remove_deleted(self.partition)
        self._move("log_starts", start or None)
        return replace(opening, log_start_offset=start)

    def _move(self, file: str, offset: int | None) -> None:
        found = checkpoints(self.log_dir, file)
        found = {log: at for log, at in {**found, self.log: offset}.items() if at is not None}
        lines = [f"{' '.join(log.rsplit('-', 1))} {at}\n" for log, at in found.items()]
        (self.log_dir / OFFSET_FILES[file]).write_text(f"0\n{len(lines)}\n{''.join(lines)}", encoding="utf-8")

    def _roll(self, opening: Opening) -> int | None:
        """Rolls the last segment, without changing its modification time; returns the base offset of the new, empty one."""
        last = max(self.partition.glob("*.log"))
        if not last.stat().st_size:
            return None
        mtime_ns = last.stat().st_mtime_ns
        with KafkaLog(self.gateway, self.partition, opening) as log:
            log.roll()
            end_offset = log.end_offset
        os.utime(last, ns=(mtime_ns, mtime_ns))
        return end_offset


@dataclass
class Compared:
    """The rounds of scenarios as Kafka leaves them, and by name and round what is different in ours.

    ``judge`` is the version whose cleaner is compared; ``ours`` cleans by the same rules.
    """

    judge: Gateway
    ours: Way
    include_active: bool = False
    rounds: list[Left] = field(default_factory=list)
    problems: dict[tuple[str, int], list[str]] = field(default_factory=lambda: defaultdict(list))

    def run(self, root: Path, found: Mapping[str, Scenario]) -> Compared:
        """All scenarios, side by side under ``root``."""
        # a run deletes segments or cleans
        for expires in sorted({each.expires for each in found.values()}):
            some = {name: each for name, each in found.items() if each.expires is expires}
            write = by_kafka if not self.include_active else _not_killed
            self.rounds += rounds_of(root / f"{expires}", some, self._way(some, expires=expires), write)
        return self

    @property
    def failed(self) -> dict[str, list[str]]:
        """What is different, by the names of scenarios."""
        found: dict[str, list[str]] = {}
        for (name, number), problems in self.problems.items():
            found.setdefault(name, []).extend(f"round {number}: {problem}" for problem in problems)
        return {name: problems for name, problems in found.items() if problems}

    @property
    def cleaned(self) -> int:
        """The number of rounds in which Kafka cleaned a log."""
        return sum(each.outcome.end_offset is not None for each in self.rounds)

    def __str__(self) -> str:
        refused = sum(bool(each.outcome.refused) for each in self.rounds)
        deleted = sum(each.outcome.deleted for each in self.rounds)
        return (
            f"{len(self.rounds)} rounds, {self.cleaned} of them cleaned, {refused} logs refused by both,"
            f" {deleted} segments expired, {len(self.failed)} logs differ"
        )

    def _way(self, found: Mapping[str, Scenario], *, expires: bool) -> Way:
        theirs = cleaned_by(self.judge, include_active=self.include_active, expires=expires)

        def clean(log_dir: Path, now_ms: int, topics: TopicConfigs) -> tuple[Outcomes, Path]:
            before, ours = log_dir.with_name("before"), log_dir.with_name("ours")
            numbers = {name: [each.now_ms for each in found[name].rounds].index(now_ms) for name in topics}
            shutil.copytree(log_dir, ours)
            for name, number in numbers.items():
                for lost in found[name].rounds[number].lost_ours:
                    lose(ours / f"{name}-0", lost)
            shutil.copytree(ours, before)
            mine, ours = self.ours(ours, now_ms, topics)
            kafkas, _ = theirs(log_dir, now_ms, topics)
            refuted = self._refuted(before, ours, now_ms, topics, found)
            for name, number in numbers.items():
                sides = _Sides(self, found[name], number, before, ours, log_dir)
                if problems := list(sides.differences(name, mine[name], kafkas[name])):
                    self.problems[name, number] += problems
            for name, text in refuted.items():
                self.problems[name, numbers[name]].append(text)
            return kafkas, log_dir

        return clean

    def _refuted(
        self, before: Path, ours: Path, now_ms: int, topics: TopicConfigs, found: Mapping[str, Scenario]
    ) -> dict[str, str]:
        """What ``verify`` rejects. Logs whose checkpoint is past what was cleaned are left out: it names what they lose."""
        logs = frozenset(
            TopicPartition(name, 0) for name in topics if found[name].knows_what_was_cleaned and not found[name].expires
        )
        options = {"logs": logs, "kafka_version": self.judge.version, "include_active": self.include_active}
        reports = certify_copy(before, ours, now_ms, topics, **options).logs if logs else ()
        return {log.topic: f"verify: {log}" for log in reports if log.status is not Status.HOLDS}


def _not_killed(partition: Path, scenario: Scenario, number: int) -> tuple[Shutdown, int]:
    # if segments are rolled first, Kafka starts twice, and recovers only the first time
    rounds = [replace(each, killed=False) for each in scenario.rounds]
    return by_kafka(partition, replace(scenario, rounds=rounds), number)


@dataclass(frozen=True)
class _Sides:
    """A log after a round: the directories before it, ours and Kafka's."""

    compared: Compared
    scenario: Scenario
    number: int
    before: Path
    ours: Path
    kafkas: Path

    def differences(self, name: str, mine: Outcome, theirs: Outcome) -> Iterator[str]:
        partition = f"{name}-0"
        ours, kafkas = self.ours / partition, self.kafkas / partition
        _same_age_where_empty(kafkas, ours)
        if theirs.refused:
            if _FULL_INDEX in theirs.refused:
                if mine.deleted != theirs.deleted:
                    yield f"{mine.deleted} segments deleted, Kafka's {theirs.deleted}"
                return
            if not mine.refused:
                yield f"Kafka refuses ({theirs.refused}), the job: {mine}"
            # a broker deletes segments before it fails to clean the log, which the job does not change at all
            if contents(ours) != contents(self.before / partition):
                yield "Kafka refuses, and the job changed the log"
            return
        if (seen := mine.seen_by(theirs)) != theirs:
            yield f"{seen}, Kafka's {theirs}"
        self._normalize(ours, kafkas, checkpoints(self.kafkas, "log_starts").get(partition, 0))
        interval = int(self.scenario.config.get("index.interval.bytes", "4096"))
        yield from different_logs(self.compared.judge, self.ours, self.kafkas, partition, interval)
        # a broker that loads an empty log forgets its leader epoch
        if self.scenario.deletes and any(file.stat().st_size for file in (self.before / partition).glob("*.log")):
            yield from state_differences(ours, kafkas)

    def _normalize(self, ours: Path, kafkas: Path, log_start: int) -> None:
        """Removes what does not depend on cleaning."""
        rounds, state = self.scenario.rounds, self.scenario.rounds[self.number]
        if self.compared.include_active:
            for made in kafkas.glob("*.snapshot"):
                if not (ours / made.name).exists() and not (self.before / kafkas.name / made.name).exists():
                    shutil.copy2(made, ours)
        forget_snapshots(ours, kafkas, last_offset=log_start)
        replayed = "newest.snapshot" in state.lost and self.compared.judge.release < (3,)
        if replayed or any(name[0].isdecimal() for each in rounds for name in each.lost):
            # when Kafka rebuilds an index it replays producers: it removes snapshots and writes others; 2.8 also without one
            forget_snapshots(ours, kafkas)
        if state.was_killed and not self.compared.include_active:
            forget_active_indexes(ours, kafkas)


def _same_age_where_empty(partition: Path, other: Path) -> None:
    """If everything expired, each side has just created an empty segment."""
    last = max(partition.glob("*.log"))
    if not last.stat().st_size and (other / last.name).exists():
        mtime_ns = last.stat().st_mtime_ns
        os.utime(other / last.name, ns=(mtime_ns, mtime_ns))


def forget_active_indexes(*partitions: Path) -> None:
    """After a kill indexes are preallocated; how much of that the next start truncates does not depend on cleaning."""
    for partition in partitions:
        active = max(partition.glob("*.log"))
        for kind in (".index", ".timeindex"):
            active.with_suffix(kind).unlink(missing_ok=True)


def forget_snapshots(*partitions: Path, last_offset: int = LONG_MAX) -> None:
    """Removes snapshots up to an offset: up to the log start as Kafka does when it loads a log."""
    for partition in partitions:
        for file in partition.glob("*.snapshot"):
            if int(file.stem) <= last_offset:
                file.unlink()


def contents(partition: Path) -> dict[str, bytes]:
    """The files of its segments, by name."""
    return {file.name: file.read_bytes() for file in partition.iterdir() if file.suffix in (".log", ".index", ".timeindex")}


def logs_of(log_dir: Path) -> list[str]:
    """The logs that may be cleaned."""
    return sorted(path.name for path in log_dir.iterdir() if path.is_dir() and path.name != "__cluster_metadata-0")


def clean_as_broker(gateway: Gateway, log_dir: Path, log: str, config: Mapping[str, str], as_of_ms: int) -> Outcome:
    """Segment deletion, if the policy includes it, then cleaning.

    :param config: topic-level settings, ``cleanup.policy`` among them
    """
    return _Broker(gateway, log_dir, log, Opening(as_of_ms, config)).run()


class Both(NamedTuple):
    """A log directory cleaned by the job, and its copy by Kafka: reports and Kafka's outcomes by log, and what is different."""

    reports: Mapping[str, LogReport]
    outcomes: Mapping[str, Outcome]
    problems: list[str]


def cleaned_by_both(judge: Gateway, ours: Path, kafkas: Path, configs: TopicConfigs, as_of_ms: int, **options: Any) -> Both:
    """``configs`` are those of the topics as the broker has them, ``options`` more of the job's."""
    report = compact(ours, as_of=as_of_ms, kafka_version=judge.version, allow_keyless=True, **options)
    reports, outcomes, found = {log.name: log for log in report.logs}, dict[str, Outcome](), list[str]()
    for log in logs_of(kafkas):
        theirs = clean_as_broker(judge, kafkas, log, configs.get(log.rsplit("-", 1)[0], INTERNAL), as_of_ms)
        outcomes[log], mine = theirs, outcome_of(reports[log])
        found += [f"{log}: {mine}, Kafka's {theirs}"] if mine.seen_by(theirs) != theirs else []
        found += different_logs(judge, ours, kafkas, log)
    return Both(reports, outcomes, found)


def different_logs(judge: Gateway, ours: Path, kafkas: Path, log: str, interval: int = 4096) -> Iterator[str]:
    """Of one log in two directories: its checkpoints, and its files."""
    for file in ("log_starts", "cleaner_offsets"):
        found = [checkpoints(side, file).get(log) for side in (ours, kafkas)]
        if found[0] != found[1]:
            yield f"{log}: {file}: {found[0]}, Kafka's {found[1]}"
    yield from differences(judge, ours / log, kafkas / log, interval)


def soon_after(log_dir: Path) -> int:
    """A minute after a broker wrote to its logs."""
    return max(file.stat().st_mtime_ns for file in log_dir.rglob("*.log")) // 10**6 + 60_000


def checkpoints(log_dir: Path, file: str) -> dict[str, int]:
    """The entries of an offset checkpoint (``cleaner_offsets``) by log name; none if there is no such file."""
    path = log_dir / OFFSET_FILES[file]
    lines = path.read_text(encoding="utf-8").splitlines()[2:] if path.exists() else []
    entries = (line.split() for line in lines)
    return {f"{topic}-{partition}": int(offset) for topic, partition, offset in entries}
