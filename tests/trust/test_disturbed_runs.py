"""Runs whose operations fail, whose disk lies, or that meet other runs and a broker: a sample in every test run, more in the
suites, everything with ``tests.trust.error_loop --all`` and ``tools.search``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import pairwise
from pathlib import PurePath

import pytest

from compaction.errors import StorageError
from compaction.files.filesystem import join
from compaction.files.segment_file import SegmentReader
from compaction.output.journal import JOURNAL
from tests.disk import FaultyFileSystem, Operation, WatchedFileSystem
from tests.kafka.encode import Batch, Record
from tests.log.logs import served
from tests.side_by_side import in_processes
from tests.trust.checks import below, tree, undisturbed
from tests.trust.error_loop import FailingFileSystem, Fault, Mode, Search, faults, look, sample
from tests.trust.lying_storage import Lie, Outcome, Result, run_seed, run_with_lie
from tests.trust.scenes import KINDS, Kind, kind_of, log_path, operations
from tests.trust.simulation import ADVISORY, LOST, MODES, UNGUARDED, WORKING, Scenario, Verdict, World

_NAMES = [kind.name.replace(" ", "-") for kind in KINDS]
#: failing operations of each kind in the suites; ``python -m tests.trust.error_loop --all`` tries all, in half an hour
_MANY = 10


@pytest.mark.parametrize("kind", KINDS, ids=_NAMES)
def test_no_failing_operation_loses_or_changes_a_record(kind: Kind) -> None:
    search = Search(kind)
    assert [finding for fault in sample(faults(kind), 3) for finding in search.look(fault)] == []


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
FAILURES: dict[str, tuple[str, Callable[[Operation, Operation], bool], Mode, int]] = {
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


@pytest.mark.parametrize(("name", "fails", "mode", "count"), FAILURES.values(), ids=FAILURES)
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


# a disk that lies

VALID = {*Outcome} - {Outcome.VIOLATION}


def violations(results: Iterable[Result]) -> list[str]:
    return [str(result) for result in results if result.outcome is Outcome.VIOLATION]


def test_no_disk_fault_ends_in_exit_code_0_and_other_bytes() -> None:
    assert violations(map(run_seed, range(1, 61))) == []


@pytest.mark.crash
def test_none_of_many_disk_faults_ends_in_exit_code_0_and_other_bytes() -> None:
    found = in_processes(run_seed, range(1_000, 1_100))
    assert {result.outcome for result in found} > {Outcome.NOTICED, Outcome.HARMLESS}
    assert violations(found) == []


HALF_DONE = "compact after a run that was killed in its swaps"
#: a kind of run, operations and the ends of their paths, a lie, seeds besides the operation's number, and the outcomes
LIES: dict[str, tuple[str, str, tuple[str, ...], Lie, range | None, set[Outcome]]] = {
    "every corrupted write is detected, and the log is not replaced": (
        "compact in place", "append", ("",), Lie.FLIPPED_WRITE, None, {Outcome.NOTICED},
    ),
    # otherwise a run that has just finished an earlier swap cleans the log from the old checkpoint
    "a stale read of the checkpoint is not used": (
        HALF_DONE, "read", ("cleaner-offset-checkpoint",), Lie.STALE_READ, None, VALID,
    ),
    # it may be the only copy, and the next read may be right
    "recovery does not remove an output after one corrupted read": (
        HALF_DONE, "pread", (".log.swap", ".log.clean"), Lie.FLIPPED_READ, None, VALID,
    ),
    "a short read of a transaction index does not hide its transactions": (
        "compact in place", "read", (".txnindex",), Lie.SHORT_READ, range(12), {Outcome.HARMLESS},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "operation", "ends", "lie", "seeds", "outcomes"), LIES.values(), ids=LIES)
def test_a_lie_in_every_operation_of_a_kind(
    name: str, operation: str, ends: tuple[str, ...], lie: Lie, seeds: range | None, outcomes: set[Outcome]
) -> None:
    kind = kind_of(name)
    numbers = [each.number for each in operations(kind) if each.name == operation and each.path.endswith(ends)]
    found = [run_with_lie(kind, lie, number, seed) for number in numbers for seed in seeds or (number,)]
    assert found
    assert [str(result) for result in found if result.outcome not in outcomes] == []


@pytest.mark.crash
@pytest.mark.parametrize("name", ["compact a log that overflows and one without indexes", HALF_DONE])
def test_no_wrong_read_loses_a_record_in_recovery(name: str) -> None:
    kind = kind_of(name)
    reads = [each.number for each in operations(kind) if each.name in ("read", "pread")][::2]
    lies = [(Lie.FLIPPED_READ, 0), (Lie.SHORT_READ, 7)]
    assert violations(run_with_lie(kind, lie, number, seed) for number in reads for lie, seed in lies) == []


def test_an_index_that_is_damaged_while_logs_are_copied_is_not_published() -> None:
    kind = kind_of("compact to another place")
    inactive = ("both-0/00000000000000000000", "idle-0/00000000000000000010", "idle-0/00000000000000000020")
    copies = [each for each in operations(kind) if each.name == "copy" and each.path.endswith("index")]
    copies = [each for each in copies if any(name in each.path for name in inactive)]
    assert {_zero_before(kind, each) for each in copies} == {1}


def _zero_before(kind: Kind, copy: Operation) -> int:
    def zero(operation: Operation) -> None:
        if (operation.name, operation.path) == ("copy", copy.path):
            file = disk.inode(copy.path)
            file.data = file.safe = bytes(len(file.data)) or b"\1"

    disk = kind.start()
    return kind.run(WatchedFileSystem(disk, zero)).code


def test_a_leader_epoch_that_changes_between_the_passes_is_detected() -> None:
    disk = FaultyFileSystem()
    disk.mkdir("/logs")
    for name, epoch in (("/logs/first", 3), ("/logs/second", 4)):
        disk.write_file(name, Batch([Record(0, 0, b"key", b"value")], leader_epoch=epoch).encode())
    assert _fingerprint(disk, "/logs/first") != _fingerprint(disk, "/logs/second")


def _fingerprint(disk: FaultyFileSystem, path: str) -> str:
    with SegmentReader(disk, path, 0, len(disk.read_bytes(path))) as reader:
        for _ in reader.blocks(check_crc=True):
            pass
        return reader.fingerprint()


# two jobs and a broker, interleaved at every file operation

SAMPLE, SUITE = 60, 200
#: a seed by which a broker without locks loses a record
LOSING = 1302


@cache
def play(seed: int, mode: str) -> Verdict:
    return World(Scenario.draw(seed, mode)).play()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seeds", [range(SAMPLE), pytest.param(range(SAMPLE, SUITE), marks=pytest.mark.crash)])
def test_no_order_of_operations_loses_a_record(seeds: range, mode: str) -> None:
    assert {seed: found for seed in seeds if (found := play(seed, mode).problems)} == {}


def test_a_seed_gives_the_same_order_every_time() -> None:
    worlds = [World(Scenario.draw(9, LOST)) for _ in range(2)]
    assert worlds[0].play() == worlds[1].play()
    # with the times of all changes
    assert worlds[0].disk.content() == worlds[1].disk.content()


def test_the_simulation_reaches_every_outcome() -> None:
    """Every outcome occurs in each mode: kills, refusals, swaps of either job, brokers at the same time."""
    for mode in (ADVISORY, LOST, WORKING):
        ends = {outcome for seed in range(SAMPLE) for outcome in play(seed, mode).outcomes}
        wanted = {("first", "cleaned"), ("second", "cleaned"), ("first", "killed"), ("second", "kept out")}
        assert {*wanted, ("broker", "served")} <= ends, mode


def test_the_simulation_detects_records_lost_by_a_broker_without_locks() -> None:
    """The limit of the guarantees, and a proof that the simulation detects a loss."""
    assert any("is lost" in problem for seed in range(LOSING, LOSING + 2_000) for problem in play(seed, UNGUARDED).problems)
