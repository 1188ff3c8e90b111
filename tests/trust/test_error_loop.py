"""The error loop: a sample in every test run, more in the suites, everything with ``python -m``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import PurePath

import pytest

from compaction.errors import StorageError
from compaction.files.filesystem import join
from compaction.output.journal import JOURNAL
from tests.disk import Operation, WatchedFileSystem
from tests.log.logs import served
from tests.side_by_side import in_processes
from tests.trust.checks import below, tree, undisturbed
from tests.trust.error_loop import FailingFileSystem, Fault, Mode, Search, faults, look, sample
from tests.trust.scenes import KINDS, Kind, kind_of, log_path, operations

_NAMES = [kind.name.replace(" ", "-") for kind in KINDS]
#: failing operations of each kind in the suites; ``python -m tests.trust.error_loop --all`` tries all, in half an hour
_MANY = 10


def violations(kind: Kind, count: int) -> list[str]:
    search = Search(kind)
    return [finding for fault in sample(faults(kind), count) for finding in search.look(fault)]


@pytest.mark.parametrize("kind", KINDS, ids=_NAMES)
def test_no_failing_operation_loses_or_changes_a_record(kind: Kind) -> None:
    assert violations(kind, 3) == []


@pytest.mark.crash
def test_none_of_many_failing_operations_loses_or_changes_a_record() -> None:
    # neighbours leave the same states, which a process checks once
    cases = [(kind, fault) for kind in KINDS for fault in sorted(sample(faults(kind), _MANY), key=lambda fault: fault.at)]
    assert len(cases) > 5 * _MANY
    assert [finding for findings in in_processes(look, cases) for finding in findings] == []


@pytest.mark.parametrize("kind", KINDS, ids=_NAMES)
def test_an_undisturbed_run_changes_the_log_unless_it_is_dry(kind: Kind) -> None:
    found = undisturbed(kind)
    assert (found.start == found.end) is kind.dry_run
    for topic, kept in found.survivors.items():
        assert kept.items() <= found.records_before[topic].items()


def is_commit(before: Operation, operation: Operation) -> bool:
    """Whether this is the directory's fsync just after the journal was renamed."""
    return operation.name == "fsync_dir" and before.target == join(operation.path, JOURNAL)


#: a kind of run, which operations fail, given each with the one before it, how, and how many they are
TARGETED: dict[str, tuple[str, Callable[[Operation, Operation], bool], Mode, int]] = {
    "a segment deletion that fails leaves no index or snapshot without its log": (
        "expire", lambda _, each: each.name == "rename" and each.target.endswith(".deleted"), Mode.READ_ONLY, 21,
    ),
    # the sources of a log and its outputs have the same sizes
    "an error after the commit point removes no output and loses no record": ("compact in place", is_commit, Mode.ONCE, 3),
    "a split that fails between its renames is undone by the next run": (
        "compact a log that overflows and one without indexes",
        lambda _, each: each.name == "rename" and each.path.endswith(".cleaned"), Mode.ONCE, 9,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "fails", "mode", "count"), TARGETED.values(), ids=TARGETED)
def test_a_failure_of_each_operation_of_a_kind(
    name: str, fails: Callable[[Operation, Operation], bool], mode: Mode, count: int
) -> None:
    kind = kind_of(name)
    found = [each.number for before, each in pairwise(operations(kind)) if fails(before, each)]
    search = Search(kind)
    assert len(found) == count
    assert [finding for at in found for finding in search.look(Fault(mode, at))] == []


def test_a_journal_without_its_outputs_never_takes_a_source_for_one() -> None:
    """The state that an earlier version left after an error: a journal without outputs, with equal sizes."""
    kind = kind_of("compact in place")._replace(topics=("equal",))
    search, log = Search(kind), log_path("equal")
    swap = next(each.number for each in operations(kind) if each.name == "rename" and ".log.swap" in each.target)
    disk = dict(search.states_after(Fault(Mode.DEAD, swap)))["files as they are"]
    outputs = [path for path in disk.paths() if ".clean" in path]
    assert outputs
    for path in outputs:
        disk.unlink(path)
    assert kind.run(disk.settle()).code == 0
    assert served(disk, log) == undisturbed(kind).survivors["equal"]
    assert disk.stat(join(log, JOURNAL)) is None


@pytest.mark.parametrize("name", ["compact in place", "dry run"])
def test_a_bad_sector_is_one_logs_error(name: str) -> None:
    """Of each file and of the listing of a log that the driver reads: every read fails."""
    kind, log = kind_of(name), log_path("txns")

    def fail(found: Operation) -> None:
        if (found.name, found.path) == bad:
            raise StorageError("cannot read: Input/output error", path=found.path)

    reads = {(each.name, each.path) for each in operations(kind) if each.name in ("read", "listdir") and log in each.path}
    assert {PurePath(path).suffix for _, path in reads} >= {"", ".log", ".index", ".snapshot"}
    for bad in reads:
        disk = kind.start()
        ended = kind.run(WatchedFileSystem(disk, fail))
        failed = {topic for topic, status in ended.statuses.items() if status == "failed"}
        assert (ended.code, failed) == (1, {"txns"}), bad
        assert ended.reason.startswith("txns: ") and "Input/output error" in ended.reason, bad
        assert below(tree(disk), log) == below(tree(kind.start()), log), bad


def test_the_report_is_written_even_if_the_claim_cannot_be_removed() -> None:
    kind = kind_of("compact in place")
    unlink = [each.number for each in operations(kind) if each.name == "unlink" and "/.compaction-run." in each.path][-1]
    ended = kind.run(FailingFileSystem(kind.start(), Fault(Mode.ONCE, unlink)))
    assert (ended.code, len(ended.statuses)) == (0, 4)
