"""The error loop: every file operation of a run fails, once or permanently, and the process continues with its error handlers.

After the run the files are checked as they are, after a power loss, and after a kill between the fault and the end; each time
with a broker's start and with the next run. ``tests.trust.checks`` has the invariants.

``python -m tests.trust.error_loop --all`` covers every operation of every kind of run;
without ``--all`` it is a fixed sample.
"""

from __future__ import annotations

import argparse
import enum
import errno
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple, TypeVar

from compaction.files.filesystem import storage_errors
from tests.disk import CHANGES, GROWS, FaultyFileSystem, Operation, Stopped, WatchedFileSystem
from tests.trust.checks import after_broker, after_next_run, after_run
from tests.trust.scenes import KINDS, Ended, Kind, operations

T = TypeVar("T")


class Mode(enum.Enum):
    """How operations fail: a text, the ``errno``, the operations (``None`` for all), and whether all later ones fail, too."""

    ONCE = "one operation fails with EIO", errno.EIO, None, False
    ONCE_FULL = "one operation fails with ENOSPC", errno.ENOSPC, GROWS, False
    LATE = "one operation is carried out, and fails with EIO", errno.EIO, CHANGES, False
    DEAD = "from one operation on all fail with EIO", errno.EIO, None, True
    READ_ONLY = "from one operation on all that change something fail with EROFS", errno.EROFS, CHANGES, True
    FULL = "from one operation on all that take space fail with ENOSPC", errno.ENOSPC, GROWS, True

    def __init__(self, text: str, error: int, names: frozenset[str] | None, lasts: bool) -> None:
        self.text, self.error, self.names, self.lasts = text, error, names, lasts


class Fault(NamedTuple):
    """The first operation that fails; before operation ``stop_at`` the process is killed."""

    mode: Mode
    at: int
    stop_at: int | None = None

    def hits(self, operation: Operation) -> bool:
        """Whether this operation fails."""
        if operation.number < self.at or (operation.number > self.at and not self.mode.lasts):
            return False
        return self.mode.names is None or operation.name in self.mode.names

    def __str__(self) -> str:
        return f"{self.mode.text} ({self.at}" + (f", killed at {self.stop_at})" if self.stop_at is not None else ")")


class FailingFileSystem(WatchedFileSystem):
    """Injects a fault. A failed operation may have taken effect in part, as on a disk."""

    def __init__(self, disk: FaultyFileSystem, fault: Fault) -> None:
        super().__init__(disk)
        self.disk, self.fault = disk, fault

    def carry_out(self, operation: Operation, action: Callable[[], T]) -> T:
        if operation.number == self.fault.stop_at:
            raise Stopped
        if not self.fault.hits(operation):
            return action()
        if operation.name == "remove":
            return None  # type: ignore[return-value]
        if self.fault.mode is Mode.LATE:
            action()
        else:
            self._leave_traces(operation, action)
        with storage_errors(operation.path, operation.name):
            raise OSError(self.fault.mode.error, os.strerror(self.fault.mode.error))

    def _leave_traces(self, operation: Operation, action: Callable[[], object]) -> None:
        name, path = operation.name, operation.path
        if name in ("fsync", "close") and self.disk.stat(path) is not None:
            self.disk.inode(path).poisoned = True
        elif name == "append" or (name in ("write_file", "copy") and self.fault.mode.lasts):
            # half of it is written; it remains if nothing can be removed any more
            path = operation.target or path
            before = 0 if self.disk.stat(path) is None else len(self.disk.inode(path).data)
            action()
            file = self.disk.inode(path)
            file.data = file.data[: before + (len(file.data) - before) // 2]


@cache
def faults(kind: Kind) -> list[Fault]:
    """Every fault of every operation of a run."""
    log = operations(kind)
    every = (Fault(mode, operation.number) for mode in Mode for operation in log)
    return [fault for fault in every if fault.hits(log[fault.at])]


class Search:
    """The error loop over one kind of run; each state is checked once.

    :param losses: chooses what a power loss leaves
    """

    def __init__(self, kind: Kind, losses: int = 0) -> None:
        self.kind, self._losses = kind, losses
        self.states = 0
        self._seen: set[frozenset[tuple[str, str, bytes]]] = set()

    def look(self, fault: Fault) -> Iterator[str]:
        """Try one fault, then the same fault with a kill after it; the violations, and how to reproduce them."""
        operations, disk, ended = self._run(fault)
        tried = f"{self.kind.name}: {fault} {operations[fault.at] if fault.at < len(operations) else '-'}"
        states = list(self._states(fault, disk))
        if ended is not None:
            for problem in (*([ended.reason] if ended.code < 0 else []), *after_run(self.kind, ended, disk)):
                yield f"{tried}: ended with {ended.code} ({ended.reason}): {problem}"
        if fault.stop_at is None and len(operations) > fault.at + 1:
            killed = fault._replace(stop_at=random.Random(fault.at).randrange(fault.at + 1, len(operations)))
            states += self._states(killed, self._run(killed)[1])
        for name, state in states:
            for problem in (*after_broker(self.kind, state.clone()), *after_next_run(self.kind, state)):
                yield f"{tried}: {name}: {problem}"

    def states_after(self, fault: Fault) -> list[tuple[str, FaultyFileSystem]]:
        """The states that the next process may find after one fault."""
        return list(self._states(fault, self._run(fault)[1]))

    def _run(self, fault: Fault) -> tuple[list[Operation], FaultyFileSystem, Ended | None]:
        disk = self.kind.start()
        fs = FailingFileSystem(disk, fault)
        try:
            return fs.log, disk, self.kind.run(fs)
        except Stopped:
            return fs.log, disk, None
        except Exception:
            return fs.log, disk, Ended(-1, {}, traceback.format_exc())

    def _states(self, fault: Fault, disk: FaultyFileSystem) -> Iterator[tuple[str, FaultyFileSystem]]:
        """The distinct states that the next process may find."""
        killed = "" if fault.stop_at is None else f"killed at {fault.stop_at}, "
        found = [(f"{killed}files as they are", disk.after_kill()), (f"{killed}nothing unsafe", disk.after_power_loss(None))]
        found += [(f"{killed}power loss {n}", disk.after_power_loss(self._losses + 1000 * fault.at + n)) for n in range(2)]
        for name, state in found:
            if (content := state.content()) not in self._seen:
                self._seen.add(content)
                self.states += 1
                yield name, state


_search = cache(Search)


def look(case: tuple[Kind, Fault]) -> list[str]:
    """The violations by one fault in a kind of run. States that this process has checked are not checked again."""
    kind, fault = case
    return list(_search(kind).look(fault))


def sample(every: list[Fault], count: int) -> list[Fault]:
    """A fixed sample of faults, spread over the modes and the run."""
    by_mode = [[fault for fault in every if fault.mode is mode] for mode in Mode]
    chosen = []
    for some in filter(None, by_mode):
        wanted = max(1, count * len(some) // len(every))
        chosen += [some[(2 * n + 1) * len(some) // (2 * wanted)] for n in range(min(wanted, len(some)))]
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every operation in every mode")
    parser.add_argument("--per-kind", type=int, default=100, help="faults of each kind of run, without --all")
    parser.add_argument("--kind", default="", help="the kinds of runs whose names begin so")
    options, findings = parser.parse_args(), 0
    for kind in (kind for kind in KINDS if kind.name.startswith(options.kind)):
        search, tried = Search(kind), faults(kind) if options.all else sample(faults(kind), options.per_kind)
        for finding in (finding for fault in tried for finding in search.look(fault)):
            findings += 1
            print(finding, flush=True)
        print(f"{kind.name}: {len(tried)} faults, {search.states} states", flush=True)
    print(f"{findings} violations")
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
