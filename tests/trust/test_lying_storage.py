"""Lying storage: a sample in every test run, more in the suites, everything with ``python -m``."""

from __future__ import annotations

import pytest

from compaction.files.segment_file import SegmentReader
from tests.disk import FaultyFileSystem, Operation, WatchedFileSystem
from tests.kafka.encode import Batch, Record
from tests.side_by_side import in_processes
from tests.trust.lying_storage import Lie, Outcome, run_seed, run_with_lie
from tests.trust.scenes import Kind, kind_of, operations


def violations(seeds: range) -> list[str]:
    return [str(result) for result in map(run_seed, seeds) if result.outcome is Outcome.VIOLATION]


def test_no_disk_fault_ends_in_exit_code_0_and_other_bytes() -> None:
    assert violations(range(1, 61)) == []


@pytest.mark.crash
def test_none_of_many_disk_faults_ends_in_exit_code_0_and_other_bytes() -> None:
    found = in_processes(run_seed, range(1_000, 1_100))
    assert {result.outcome for result in found} > {Outcome.NOTICED, Outcome.HARMLESS}
    assert [str(result) for result in found if result.outcome is Outcome.VIOLATION] == []


def test_every_corrupted_write_is_detected() -> None:
    """The log is not replaced."""
    kind = kind_of("compact in place")
    writes = [each for each in operations(kind) if each.name == "append"]
    found = [run_with_lie(kind, Lie.FLIPPED_WRITE, each.number, each.number) for each in writes]
    assert {result.outcome for result in found} == {Outcome.NOTICED}


def test_a_stale_read_of_the_checkpoint_is_not_used() -> None:
    """Otherwise a run that has just finished an earlier swap cleans the log from the old checkpoint."""
    kind = kind_of("compact after a run that was killed in its swaps")
    reads = [each for each in operations(kind) if each.name == "read" and each.path.endswith("cleaner-offset-checkpoint")]
    found = [run_with_lie(kind, Lie.STALE_READ, each.number, each.number) for each in reads]
    assert [str(result) for result in found if result.outcome is Outcome.VIOLATION] == []


def test_recovery_does_not_remove_an_output_after_one_corrupted_read() -> None:
    """It may be the only copy, and the next read may be right."""
    kind = kind_of("compact after a run that was killed in its swaps")
    reads = [each for each in operations(kind) if each.name == "pread" and each.path.endswith((".log.swap", ".log.clean"))]
    found = [run_with_lie(kind, Lie.FLIPPED_READ, each.number, each.number) for each in reads]
    assert [str(result) for result in found if result.outcome is Outcome.VIOLATION] == []


@pytest.mark.crash
@pytest.mark.parametrize(
    "name", ["compact a log that overflows and one without indexes", "compact after a run that was killed in its swaps"]
)
def test_no_wrong_read_loses_a_record_in_recovery(name: str) -> None:
    kind = kind_of(name)
    reads = [each.number for each in operations(kind) if each.name in ("read", "pread")][::2]
    lies = [(Lie.FLIPPED_READ, 0), (Lie.SHORT_READ, 7)]
    found = [run_with_lie(kind, lie, number, seed) for number in reads for lie, seed in lies]
    assert [str(result) for result in found if result.outcome is Outcome.VIOLATION] == []


def test_a_short_read_of_a_transaction_index_does_not_hide_its_transactions() -> None:
    kind = kind_of("compact in place")
    reads = [each.number for each in operations(kind) if each.name == "read" and each.path.endswith(".txnindex")]
    found = [run_with_lie(kind, Lie.SHORT_READ, number, seed) for number in reads for seed in range(12)]
    assert {result.outcome for result in found} == {Outcome.HARMLESS}


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
