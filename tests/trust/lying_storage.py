"""Lying storage: once in a run, the disk silently returns or stores wrong bytes.

A seed chooses the kind of run, the fault ("lie"), and the operation at or after which it occurs. Invariants:

1. After exit code 0, and for each log reported as cleaned, the bytes are those of an undisturbed run; ``.deleted`` files do not
   count. Two cases cannot be detected and are counted separately:

   * *past the horizon*: a file was damaged on disk after the last operation of the run that reads it (if its size is unchanged:
     that reads the damaged bytes). Then this file alone may differ. The same holds for an input that the run does not replace.
     The horizon of a log is the run's last operation on any of its files.
   * *as if it had always been so*: the disk returned the same bytes of an input during the whole run. Then the result must be
     that of an undisturbed run over a disk with these bytes.

2. After any run, a broker's start or the next run serves every survivor, unless the lie has destroyed its only copy in the
   damaged file.

``python -m tools.search --turn 'lying storage'`` tries many seeds.
"""

from __future__ import annotations

import enum
import random
import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeVar

from compaction.errors import StorageError
from compaction.files.filesystem import File, base_name, join, parent
from compaction.formats.primitives import FormatError
from compaction.names import DELETED, LEADER_EPOCHS, LOG, META_PROPERTIES
from compaction.output.journal import JOURNAL
from tests.damage.harm import flipped
from tests.disk import FaultyFileSystem, Operation, WatchedFileSystem
from tests.log.broker_model import start_broker
from tests.log.logs import iter_batches
from tests.trust.checks import Tree, below, difference, tree, undisturbed
from tests.trust.scenes import KINDS, LOG_DIR, Ended, Kind, log_path, operations

T = TypeVar("T")
_READS = frozenset(("read", "pread"))
_WRITES = frozenset(("append", "write_file", "copy", "link"))
_SYNCS = frozenset(("fsync", "close", "fsync_dir"))


class Lie(enum.Enum):
    """A fault of the disk: a text, and the operations in which it occurs; ``None``: between any two."""

    FLIPPED_READ = "a read has a flipped bit", _READS
    SHORT_READ = "a read is cut short", _READS
    STALE_READ = "a read returns older content", _READS
    FLIPPED_WRITE = "a write stores a flipped bit", _WRITES
    SHORT_WRITE = "a write stores only a part", _WRITES
    LOST_SYNC = "a flush does nothing, then the power fails", _SYNCS
    FLIPPED_BIT = "a bit of a file flips", None
    ZEROED = "a file is zeroed", None
    CUT = "a file is truncated", None
    REMOVED = "a file vanishes", None
    EXCHANGED = "two files are exchanged", None

    def __init__(self, text: str, names: frozenset[str] | None) -> None:
        self.text, self.names = text, names


class Outcome(enum.Enum):
    """The outcome of a run."""

    NOTICED = "noticed"
    HARMLESS = "harmless"
    PAST_HORIZON = "past the horizon"
    AS_IF = "as if it had always been so"
    VIOLATION = "VIOLATION"


@dataclass
class Harm:
    """The damage: the files before it, by number, and the content of a disk that had always had it."""

    operation: str = "nothing"
    before: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    always: dict[str, bytes | None] = field(default_factory=dict)
    on_disk: bool = False
    #: a file has another size or is missing: names and sizes show it
    other_size: bool = False
    #: its log had a journal: the damaged file is not just an input
    in_swap: bool = False
    #: those of ``always`` that the run has read since
    looked: set[str] = field(default_factory=set)


class LyingFileSystem(WatchedFileSystem):
    """Injects one lie at the first matching operation from number ``at`` on."""

    def __init__(self, disk: FaultyFileSystem, lie: Lie, at: int, chance: random.Random) -> None:
        super().__init__(disk)
        self.disk, self.lie, self.harm = disk, lie, Harm()
        self._at, self._chance, self._injected = at, chance, False
        self._past: dict[str, list[bytes]] = {}

    def carry_out(self, operation: Operation, action: Callable[[], T]) -> T:
        self._remember(operation)
        if self._injected or operation.number < self._at:
            self._notice(operation)
            return action()
        if self.lie.names is None:
            self._injected = self._harm_a_file(operation)
            self._notice(operation)
            return action()
        if operation.name not in self.lie.names:
            return action()
        if self.lie is Lie.LOST_SYNC:
            self._injected = True
            self.harm.operation = str(operation)
            return self._without_sync(operation, action)
        if operation.name in _WRITES:
            return self._write_badly(operation, action)
        result = action()
        changed = self._changed_read(operation, result, None) if isinstance(result, bytes) else None
        return result if changed is None else changed  # type: ignore[return-value]

    def pread(self, path: str, source: File, view: memoryview, position: int) -> int:
        injected = self._injected
        n = super().pread(path, source, view, position)
        if injected and self.harm.on_disk:
            self._notice_bytes(path, bytes(view[:n]), position)
        if injected or self.log[-1].number < self._at or self.lie.names != _READS:
            return n
        changed = self._changed_read(self.log[-1], bytes(view[:n]), position)
        if changed is None:
            return n
        view[: len(changed)] = changed
        return len(changed)

    def _changed_read(self, operation: Operation, data: bytes, position: int | None) -> bytes | None:
        """The bytes to return for a read; ``None`` if the lie does not apply."""
        if not data:
            return None
        if self.lie is Lie.STALE_READ:
            past = self._past.get(operation.path)
            if not past:
                return None
            old = self._chance.choice(past[-2:])
            changed = old[position or 0 :][: len(data)]
        else:
            changed = self._turned(data) if self.lie is Lie.FLIPPED_READ else data[: self._chance.randrange(len(data))]
        if changed == data:
            return None
        self._injected, self.harm.operation = True, str(operation)
        self.harm.looked.add(operation.path)
        whole, path = self.disk.inode(operation.path).data, operation.path
        at = whole.find(data) if position is None else position
        self.harm.always[path] = whole[:at] + changed + (whole[at + len(data) :] if len(changed) == len(data) else b"")
        return changed

    def _write_badly(self, operation: Operation, action: Callable[[], T]) -> T:
        path = operation.target or operation.path
        before = len(self.disk.inode(path).data) if self.disk.stat(path) is not None else 0
        result = action()
        if self.disk.stat(path) is not None and len(self.disk.inode(path).data) > before:
            file = self.disk.inode(path)
            new = file.data[before:]
            short = self.lie is Lie.SHORT_WRITE
            file.data = file.data[:before] + (new[: self._chance.randrange(len(new))] if short else self._turned(new))
            if file.synced:
                file.safe = file.data
            self._injected, self.harm.operation = True, str(operation)
        return result

    def _without_sync(self, operation: Operation, action: Callable[[], T]) -> T:
        if operation.name == "fsync_dir":
            return None  # type: ignore[return-value]
        file = self.disk.inode(operation.path)
        file.poisoned = True
        result = action()
        # the next flush works
        file.poisoned = False
        return result

    def _harm_a_file(self, operation: Operation) -> bool:
        paths = [path for path in self.disk.paths() if self.disk.inode(path).data or self.lie is Lie.REMOVED]
        path = self._chance.choice(paths)
        chosen = [path]
        if self.lie is Lie.EXCHANGED:
            data, kind = self.disk.inode(path).data, path.rpartition(".")[2]
            beside = [other for other in paths if parent(other) == parent(path) and other.endswith(kind)]
            alike = [other for other in beside if self.disk.inode(other).data != data]
            if not alike:
                return False
            chosen.append(self._chance.choice(alike))
        for each in chosen:
            self.harm.in_swap |= self.disk.stat(f"{parent(each)}/{JOURNAL}") is not None
            self.harm.before[self.disk.inode(each).number] = each, self.disk.inode(each).data
        contents: dict[str, bytes | None] = {each: self._harmed(self.disk.inode(each).data) for each in chosen}
        if self.lie is Lie.EXCHANGED:
            contents = {each: self.disk.inode(other).data for each, other in zip(chosen, reversed(chosen), strict=True)}
        for each, harmed in contents.items():
            self.harm.other_size |= harmed is None or len(harmed) != len(self.disk.inode(each).data)
            _put(self.disk, each, harmed)
            self.harm.always[each] = harmed
        self.harm.operation, self.harm.on_disk = f"{', '.join(chosen)} before {operation}", True
        return True

    def _harmed(self, data: bytes) -> bytes | None:
        if self.lie is Lie.REMOVED:
            return None
        if self.lie is Lie.CUT:
            return data[: self._chance.randrange(len(data))]
        return bytes(len(data)) if self.lie is Lie.ZEROED else self._turned(data)

    def _turned(self, data: bytes) -> bytes:
        return flipped(data, self._chance.randrange(len(data)), self._chance.randrange(8))

    def _remember(self, operation: Operation) -> None:
        """Keep the content of the files that this operation changes."""
        if self.lie is Lie.STALE_READ and operation.name not in _READS:
            for path in (operation.path, operation.target):
                if path and (found := self.disk.stat(path)) is not None and found.is_file:
                    data = self.disk.inode(path).data
                    past = self._past.setdefault(path, [])
                    if past[-1:] != [data]:
                        past.append(data)

    def _notice(self, operation: Operation) -> None:
        """Record reads of the damaged file."""
        if self._injected and self.harm.on_disk:
            found = self.disk.stat(operation.path)
            path = operation.path if found is None else self.harm.before.get(found.inode, ("", b""))[0]
            looks = operation.name in ("read", "copy") or (operation.name == "stat" and self.harm.other_size)
            if looks and path in self.harm.always:
                self.harm.looked.add(path)
            if operation.name == "listdir" and self.lie is Lie.REMOVED:
                self.harm.looked |= {each for each in self.harm.always if parent(each) == operation.path}

    def _notice_bytes(self, path: str, data: bytes, position: int) -> None:
        """Record whether the damaged bytes were read, not just another part of the file."""
        found = self.disk.stat(path)
        harmed = None if found is None else self.harm.before.get(found.inode)
        if harmed is not None and (self.harm.other_size or harmed[1][position : position + len(data)] != data):
            self.harm.looked.add(harmed[0])


class Result(NamedTuple):
    """One run with a lie: its outcome, and the violations."""

    seed: int
    kind: Kind
    lie: Lie
    outcome: Outcome
    harm: str
    problem: str = ""

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.kind.name}: {self.lie.text}: {self.harm}: {self.outcome.value} {self.problem}"


def draw(seed: int) -> tuple[Kind, Lie, int]:
    """A kind of run, a lie, and the operation at or after which it occurs."""
    chance = random.Random(seed)
    kind, lie = chance.choice(KINDS), chance.choice(list(Lie))
    return kind, lie, chance.randrange(len(operations(kind)))


def run_seed(seed: int) -> Result:
    """One run with one lie."""
    return run_with_lie(*draw(seed), seed)


def run_with_lie(kind: Kind, lie: Lie, at: int, seed: int) -> Result:
    """One run with a lie at or after an operation."""
    disk = kind.start()
    fs = LyingFileSystem(disk, lie, at, random.Random(seed))
    try:
        ended = kind.run(fs)
    except Exception:
        return Result(seed, kind, lie, Outcome.VIOLATION, fs.harm.operation, traceback.format_exc())
    harm = fs.harm
    outcome, problem = _judge(kind, ended, disk, fs)
    if not problem:
        problem = _lost(kind, disk.after_power_loss(None) if lie is Lie.LOST_SYNC else disk.after_kill(), fs, outcome)
    return Result(seed, kind, lie, Outcome.VIOLATION if problem else outcome, harm.operation, problem)


def _judge(kind: Kind, ended: Ended, disk: FaultyFileSystem, fs: LyingFileSystem) -> tuple[Outcome, str]:
    """The first invariant, for the run or for the logs reported as cleaned."""
    harm, found = fs.harm, tree(disk, deleted=False)
    wanted: Tree = {path: data for path, data in undisturbed(kind).end.items() if not path.endswith(DELETED)}
    if ended.code != 0:
        wanted, found = (below(files, *_done(kind, ended)) for files in (wanted, found))
    if found == wanted:
        return (Outcome.NOTICED if ended.code else Outcome.HARMLESS), ""
    harmed = {path for path in wanted.keys() | found.keys() if _is_harmed(path, disk, harm)}
    lost = [path.removeprefix(f"{LOG_DIR}/") for path in harm.always if _is_lost(kind, path, harm)]
    harmed |= {join(kind.output_dir or "", path) for path in lost}
    rest = ({path: data for path, data in each.items() if path not in harmed} for each in (wanted, found))
    inputs = {path for path in harm.looked if kind.half_done or path in undisturbed(kind).start}
    left_alone = _left_alone(kind) if harm.in_swap else inputs
    if harm.on_disk and harm.looked <= left_alone and next(rest) == next(rest):
        return Outcome.PAST_HORIZON, ""
    if _is_as_if(kind, ended, found, harm):
        return Outcome.AS_IF, ""
    return Outcome.VIOLATION, f"exit code {ended.code}, but {difference(wanted, found)}"


@cache
def _left_alone(kind: Kind) -> frozenset[str]:
    """The files that a run does not change."""
    disk = kind.start()
    numbers = {path: disk.inode(path).number for path in disk.paths()}
    kind.run(disk)
    return frozenset(path for path in disk.paths() if numbers.get(path) == disk.inode(path).number)


def _done(kind: Kind, ended: Ended) -> list[str]:
    """The logs that are reported as cleaned."""
    return [log_path(topic, kind.output_dir or LOG_DIR) for topic, status in ended.statuses.items() if status != "failed"]


def _is_harmed(path: str, disk: FaultyFileSystem, harm: Harm) -> bool:
    found = disk.stat(path)
    names = {re.sub(r"/\.cleaned\.[0-9a-f]{32}\.partial/data", "/cleaned", each) for each in harm.always}
    return path in names or (found is not None and found.inode in harm.before)


def _is_lost(kind: Kind, path: str, harm: Harm) -> bool:
    """Whether a file beside the records has vanished from the source of a copy: the copy lacks it, too. A run that never saw
    it would have made another one from the batches."""
    beside = path.rpartition("/")[2] in (LEADER_EPOCHS, META_PROPERTIES)
    return kind.output_dir is not None and harm.always[path] is None and beside and path.startswith(LOG_DIR + "/")


def _is_as_if(kind: Kind, ended: Ended, found: Tree, harm: Harm) -> bool:
    """Whether an undisturbed run over a disk with the bytes that were read has the same result."""
    disk = kind.start()
    if any(disk.stat(path) is None for path in harm.looked) or not harm.looked:
        return False
    for path in harm.looked:
        _put(disk, path, harm.always[path])
    always = kind.run(disk)
    if ended.code == 0 and always.code != 0:
        return False
    other = tree(disk, deleted=False)
    other = other if ended.code == 0 else below(other, *_done(kind, ended))
    names = (other.keys() | found.keys()) - harm.always.keys()
    return all(other.get(name) == found.get(name) for name in names)


def _lost(kind: Kind, disk: FaultyFileSystem, fs: LyingFileSystem, outcome: Outcome) -> str:
    """The second invariant; empty if it holds."""
    wanted = undisturbed(kind).survivors
    if outcome is Outcome.AS_IF:
        return ""
    broker, again = disk.clone(), disk.clone()
    kind.run(again)
    for topic in kind.topics:
        path = log_path(topic)
        alive = _records_of(again, path)
        if wanted[topic].items() <= alive.items():
            continue
        try:
            start_broker(broker, path)
        except (FormatError, StorageError, ValueError) as error:
            return f"{topic}: the next run has lost {_missing(wanted[topic], alive)}; a broker finds {error}"
        served = _records_of(broker, path)
        only = _records(*(data for _, data in fs.harm.before.values()))
        lost = [offset for offset in _missing(wanted[topic], served) if offset not in only]
        if lost and not (fs.lie is Lie.LOST_SYNC and outcome is Outcome.HARMLESS):
            return f"{topic}: {lost} are lost to the next run and to a broker"
    return ""


def _missing(wanted: Mapping[int, bytes | None], found: Mapping[int, bytes | None]) -> list[int]:
    return sorted(offset for offset, value in wanted.items() if found.get(offset, b"none") != value)


def _records(*segments: bytes) -> dict[int, bytes | None]:
    """The records that a consumer reads, up to the first damage of each segment."""
    found: dict[int, bytes | None] = {}
    for data in segments:
        with suppress(FormatError, ValueError):
            for batch in iter_batches(data, torn_tail=True):
                found.update({record.offset: record.value for record in batch.records()})
    return found


def _records_of(disk: FaultyFileSystem, path: str) -> dict[int, bytes | None]:
    return _records(*(disk.read_bytes(f"{path}/{name}") for name in disk.listdir(path) if name.endswith(LOG)))


def _put(disk: FaultyFileSystem, path: str, data: bytes | None) -> None:
    """Change a file below the file system: mtime and inode do not change."""
    if data is None:
        for names in (disk._dir(parent(path)).names, disk._dir(parent(path)).safe):
            names.pop(base_name(path), None)
        return
    file = disk.inode(path)
    file.data = data
    file.safe = data if file.synced else file.safe
