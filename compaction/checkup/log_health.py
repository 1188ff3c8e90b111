"""Checks of log directories at rest: locks, leftovers, free space, times, unreadable logs, and logs whose cleaner has died.

A broker keeps in memory which partitions it cannot clean. At rest there are three signs: its log names them
(``checkup.broker_log``); a batch in the cleanable range is damaged; and a log was cleanable long before the broker stopped. The
last two are signs, not proofs: a broker's cleaner does not verify checksums, and ``log.cleaner.enable`` may have been false.

``read_broker_log`` finds uncleanable partitions and dead cleaner threads in a broker's log.

Since Kafka 1.1 a cleaner marks a partition uncleanable when cleaning fails, keeps that in memory only, and writes one warning
(``LogCleaner.CleanerThread``, the same words from 2.8 to 4.4). Before, the thread ended with the first error. A restart of the
broker forgets both, so lines before its last start in this file are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from compaction.checkup.check import Check, State
from compaction.config.request import CompactionRequest
from compaction.errors import CompactionError
from compaction.files.filesystem import DiskFileSystem, FileSystem, join, storage_of
from compaction.files.local import free_space
from compaction.files.mixed import file_system
from compaction.files.overlay import OverlayFileSystem
from compaction.files.segment_file import SegmentFile
from compaction.log.settings import Settings
from compaction.names import CLEAN, CLEANED, DELETED, LOG, SWAP, TopicPartition, parse_partition_dir, segment_file
from compaction.output.journal import JOURNAL
from compaction.rules.log_to_clean import segments_between
from compaction.rules.log_view import LogView
from compaction.rules.plan import LogPlan, PolicyPlan, plan_log
from compaction.run.destination import Destination
from compaction.run.log import Log
from compaction.run.prepare import prepare
from compaction.screen.amounts import counted, decimal, duration

_MARKED = re.compile(r"Marking its partition \((?P<name>[^)]+)\) as uncleanable")
_ENDED = re.compile(r"kafka-log-cleaner-thread-(?P<number>\d+)\]?: (?:Error due to|Stopped)")
#: a thread that ends in a shutdown has not died
_SHUTDOWN = re.compile(r"Shutting down the log cleaner")
_STARTED = re.compile(r"Starting the log cleaner")
_CAUSE = re.compile(r"^(?:Caused by: )?(?P<cause>[\w.$]+(?:Exception|Error)\b.*)")
#: lines of a stack trace after the warning that are searched for its cause
_CAUSE_LINES = 60
_CAUSE_CHARACTERS = 300


@dataclass
class CleanerLog:
    """Uncleanable partitions with the first line of their errors, and the numbers of cleaner threads that died."""

    uncleanable: dict[TopicPartition, str] = field(default_factory=dict)
    dead_threads: set[int] = field(default_factory=set)


def read_broker_log(lines: Iterable[str]) -> CleanerLog:
    """The cleaner's state in the broker's last run, by the lines of ``log-cleaner.log`` or ``server.log``."""
    cleaner, marked, remaining, stopping = CleanerLog(), None, 0, False
    for line in lines:
        match = _MARKED.search(line)
        if match is not None:
            marked, remaining = parse_partition_dir(match["name"]), _CAUSE_LINES
            if marked is not None:
                cleaner.uncleanable[marked] = ""
            continue
        cause = _CAUSE.match(line.strip())
        if cause is not None and marked is not None and remaining > 0:
            # the last line of a chain is the root cause
            cleaner.uncleanable[marked] = cause["cause"][:_CAUSE_CHARACTERS]
        remaining -= 1
        if _STARTED.search(line):
            cleaner, marked, stopping = CleanerLog(), None, False
        stopping = stopping or _SHUTDOWN.search(line) is not None
        ended = _ENDED.search(line)
        if ended is not None and not stopping:
            cleaner.dead_threads.add(int(ended["number"]))
    return cleaner


#: a broker's cleaner looks for work every 15 seconds; longer than any queue
OVERDUE_MS = 24 * 3_600_000
_FUTURE_MS = 3_600_000
_LEFTOVER_SUFFIXES = (CLEAN, CLEANED, SWAP)
PROGRAM = "kafka-log-compaction"


def check_log_dirs(request: CompactionRequest, cleaner: CleanerLog | None, *, quick: bool) -> Iterator[Check]:
    """The checks of the log directories of a request, and of its logs.

    :param cleaner: the state by the broker's log, if given
    :param quick: do not read the cleanable ranges for damage
    """
    files = file_system(request.log_dirs)
    fs = OverlayFileSystem(files)

    def plan_for(view: LogView, settings: Settings) -> PolicyPlan:
        return PolicyPlan(plan_log(view, settings.topic, now_ms=request.as_of_ms, rules=settings.kafka.rules))

    logs = prepare(Destination(fs), request, plan_for)
    for log_dir in request.log_dirs:
        logs_of_dir = [log for log in logs if log.location.log_dir == log_dir]
        yield from _directory(files, log_dir, logs_of_dir, request.as_of_ms)
        for log in logs_of_dir:
            yield from _log(fs, log, cleaner, quick=quick)
    if cleaner is not None:
        yield from _broker_log(cleaner, logs)


def _directory(files: DiskFileSystem, log_dir: str, logs: Sequence[Log], now_ms: int) -> Iterator[Check]:
    size = sum(log.view.size_bytes for log in logs if log.view is not None)
    topics = frozenset(log.location.topic_partition.topic for log in logs)
    yield Check(log_dir, "logs", State.OK if logs else State.NOTE, f"{len(logs)} found, {decimal(size)}", topics=topics)
    yield from _leftovers(files, log_dir, logs, now_ms)
    if not storage_of(log_dir).locks:
        return
    holder = files.lock_holder(log_dir)
    if holder is None:
        yield Check(log_dir, "lock", State.OK, "free: no broker and no run holds it")
    else:
        fix = "stop it before a run in place; dry runs, and runs on a copy or a snapshot, need not wait"
        yield Check(log_dir, "lock", State.NOTE, f"held by {holder}", fix)
    yield from _space(log_dir, logs)


def _space(log_dir: str, logs: Sequence[Log]) -> Iterator[Check]:
    """A run in place needs free space for the output of one log at a time, at most the size of its cleanable range."""
    free = free_space(log_dir).free_bytes
    plans = [log.compaction for log in logs if log.is_planned and log.compaction.groups]
    largest = max(plans, key=lambda plan: plan.clean_bytes + plan.dirty_bytes, default=None)
    needed = 0 if largest is None else largest.clean_bytes + largest.dirty_bytes
    if largest is not None and free < needed:
        message = f"{decimal(free)} free, and {largest.view.topic_partition} may need up to {decimal(needed)}"
        fix = "free some, or clean to another file system with --output-dir; compact refuses logs that do not fit"
        yield Check(log_dir, "free space", State.NOTE, message, fix)
    else:
        message = f"{decimal(free)} free, at most {decimal(needed)} needed for a log"
        yield Check(log_dir, "free space", State.OK, message)


def _leftovers(files: FileSystem, log_dir: str, logs: Sequence[Log], now_ms: int) -> Iterator[Check]:
    """Files of an interrupted cleaning, ``.deleted`` files, and segments that were written in the future."""
    paths = [(name, join(log.location.path, name)) for log in logs for name in files.listdir(log.location.path)]
    interrupted = [path for name, path in paths if name.endswith(_LEFTOVER_SUFFIXES) or name == JOURNAL]
    statuses = [(name, path, status) for name, path in paths if (status := files.stat(path)) is not None]
    if interrupted:
        fix = f"{PROGRAM} compact --log-dir {log_dir} completes or undoes it; so does a broker's start"
        message = f"{counted(len(interrupted), 'file')}, e.g. {interrupted[0]}"
        yield Check(log_dir, "interrupted cleaning", State.NOTE, message, fix)
    deleted_bytes = sum(status.size for name, _, status in statuses if name.endswith(DELETED))
    if deleted_bytes:
        fix = "the next run or the broker's start removes them"
        yield Check(log_dir, ".deleted files", State.NOTE, decimal(deleted_bytes), fix)
    times = [(status.mtime_ns // 1_000_000, path) for name, path, status in statuses if name.endswith(LOG)]
    newest_ms, newest = max(times, key=lambda written: written[0], default=(0, ""))
    if newest_ms > now_ms + _FUTURE_MS:
        message = f"{newest} has a time in the future, in {duration(newest_ms - now_ms)}"
        yield Check(log_dir, "clock", State.BAD, message, "set the clock of this machine, or give --as-of")


def _log(fs: FileSystem, log: Log, cleaner: CleanerLog | None, *, quick: bool) -> Iterator[Check]:
    name, path, plan = log.location.topic_partition, log.location.path, log.compaction if log.is_planned else None
    damage = _damage(fs, log, None if quick else plan)
    if damage is not None:
        yield damage
    if cleaner is not None and name in cleaner.uncleanable:
        fix = _compact(log) if damage is None else f"repair the damage, then {_compact(log)}"
        cause = cleaner.uncleanable[name] or "no cause found"
        yield Check(path, "given up by the broker's cleaner", State.BAD, cause, fix)
    elif damage is None and plan is not None and (since_ms := overdue_ms(plan)) > OVERDUE_MS:
        message = (
            f"not cleaned, though cleanable for {duration(since_ms)} when it was written last: checkpoint"
            f" {plan.first_dirty_offset}, log end {plan.view.log_end_offset}, dirty ratio {plan.cleanable_ratio:.2f}"
        )
        fix = f"see the broker's log-cleaner.log (--broker-log) and log.cleaner.enable, or {_compact(log)}"
        yield Check(path, "cleaner may have died", State.BAD, message, fix)


def _damage(fs: FileSystem, log: Log, plan: LogPlan | None) -> Check | None:
    """The reason why the log cannot be read, or the first damage in the cleanable range of ``plan``."""
    if log.cause is not None:
        error = CompactionError(log.cause.message, path=log.cause.path, position=log.cause.position)
        fix = log.cause.hint or "restore the log from a replica or a backup"
        return Check(log.location.path, "readable", State.BAD, error.describe(), fix)
    batch_error = None if plan is None or not plan.config.cleanup_compact else first_damage(fs, plan)
    if batch_error is None:
        return None
    message = f"{batch_error}; compact refuses it, and a broker's cleaner fails there or copies it"
    fix = f"restore that segment from a replica or a backup, then {_compact(log)}"
    return Check(log.location.path, "damage in the cleanable range", State.BAD, message, fix)


def _compact(log: Log) -> str:
    location = log.location
    return f"{PROGRAM} compact --log-dir {location.log_dir} --partition {location.topic_partition} (first with --dry-run)"


def first_damage(fs: FileSystem, plan: LogPlan) -> str | None:
    """The first batch of the cleanable range that no cleaner can read, as one line."""
    for segment in segments_between(plan.view.segments, plan.first_dirty_offset, plan.first_uncleanable_offset):
        path = join(plan.view.path, segment_file(segment.base_offset, LOG))
        scan = SegmentFile(fs, path).scan(check_crc=True)
        try:
            for _ in scan:
                pass
        except CompactionError as error:
            return error.describe()
        if scan.error is not None:
            return f"{path} at byte {scan.position}: {scan.error}"
    return None


def overdue_ms(plan: LogPlan) -> int:
    """For a log that is due for cleaning, the time between the last writes to its oldest dirty segment, which is inactive, and
    to its newest segment. 0 if it is not due."""
    dirty = segments_between(plan.view.segments, plan.first_dirty_offset, plan.first_uncleanable_offset)
    if not plan.groups or not dirty:
        return 0
    return max(0, plan.view.segments[-1].mtime_ms - dirty[0].mtime_ms)


def _broker_log(cleaner: CleanerLog, logs: Sequence[Log]) -> Iterator[Check]:
    names = {log.location.topic_partition for log in logs}
    for name, cause in sorted(cleaner.uncleanable.items()):
        if name not in names:
            message = f"{name} is uncleanable: {cause or 'no cause found'}"
            fix, topics = "give the --log-dir that has this partition", frozenset([name.topic])
            yield Check("broker log", "uncleanable", State.BAD, message, fix, topics)
    for number in sorted(cleaner.dead_threads):
        message = f"cleaner thread {number} ended: it cleans nothing until the broker is restarted"
        yield Check("broker log", "cleaner thread", State.BAD, message, f"{PROGRAM} compact, then restart the broker")
    if not cleaner.uncleanable and not cleaner.dead_threads:
        yield Check("broker log", "cleaner", State.OK, "no partition given up, no cleaner thread ended since the last start")
