"""Lying storage: a sample in every test run, more in the suites, everything with ``python -m``."""

from __future__ import annotations

import pytest

from compaction.files.segment_file import SegmentReader
from tests.disk import FaultyFileSystem, Operation, WatchedFileSystem
from tests.kafka.encode import Batch, Record
from tests.side_by_side import in_processes
from tests.trust.lying_storage import Lie, Outcome, run_seed, run_with_lie
from tests.trust.scenes import Kind, kind_of, operations

VALID = {*Outcome} - {Outcome.VIOLATION}


def violations(seeds: range) -> list[str]:
    return [str(result) for result in map(run_seed, seeds) if result.outcome is Outcome.VIOLATION]


def test_no_disk_fault_ends_in_exit_code_0_and_other_bytes() -> None:
    assert violations(range(1, 61)) == []


@pytest.mark.crash
def test_none_of_many_disk_faults_ends_in_exit_code_0_and_other_bytes() -> None:
    found = in_processes(run_seed, range(1_000, 1_100))
    assert {result.outcome for result in found} > {Outcome.NOTICED, Outcome.HARMLESS}
    assert [str(result) for result in found if result.outcome is Outcome.VIOLATION] == []


HALF_DONE = "compact after a run that was killed in its swaps"
#: a kind of run, operations and the ends of their paths, a lie, seeds besides the operation's number, and the outcomes
TARGETED: dict[str, tuple[str, str, tuple[str, ...], Lie, range | None, set[Outcome]]] = {
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


@pytest.mark.parametrize(("name", "operation", "ends", "lie", "seeds", "outcomes"), TARGETED.values(), ids=TARGETED)
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
    found = [run_with_lie(kind, lie, number, seed) for number in reads for lie, seed in lies]
    assert [str(result) for result in found if result.outcome is Outcome.VIOLATION] == []


def test_an_index_that_is_damaged_while_logs_are_copied_is_not_published() -> None:
    kind = kind_of("compact to another place")
    inactive = ("both-0/00000000000000000000", "idle-0/00000000000000000010", "idle-0/00000000000000000020")
    copies = [each for each in operations(kind) if each.name == "copy" and each.path.endswith("index")]
    copies = [each for each in copies if any(name in each.path for name in inactive)]
    found = [_zero_before(kind, each) for each in copies]
    assert found
    assert set(found) == {1}


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
