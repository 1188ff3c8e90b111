"""Repairs made in memory are carried out on the disk as recovery itself would have made them there."""

from __future__ import annotations

import pytest

from compaction.errors import StorageError
from compaction.files.durable import run_alone
from compaction.files.overlay import OverlayFileSystem
from compaction.recovery.recover import recover_log, write_repairs
from compaction.rules.log_view import Segment
from tests.disk import FaultyFileSystem
from tests.log.logs import data_batch, tree
from tests.recovery.test_split import FAR, HERE, log_with, overflowing


def repaired_in_memory(fs: FaultyFileSystem) -> tuple[OverlayFileSystem, tuple[Segment, ...]]:
    overlay = OverlayFileSystem(fs)
    return overlay, recover_log(overlay, HERE).segments


def test_the_disk_is_then_as_after_a_recovery_on_it() -> None:
    fs, directly = log_with(overflowing()), log_with(overflowing())
    before = tree(fs, HERE.path)
    overlay, segments = repaired_in_memory(fs)
    repaired = tree(overlay, HERE.path)
    assert tree(fs, HERE.path) == before
    run_alone(fs, write_repairs(overlay, fs, HERE.path, segments))
    recover_log(directly, HERE)
    assert tree(fs, HERE.path) == tree(directly, HERE.path) == repaired


def test_the_operations_and_their_order_are_the_same() -> None:
    fs, directly = log_with(overflowing()), log_with(overflowing())
    fs.log.clear()
    directly.log.clear()
    overlay, segments = repaired_in_memory(fs)
    run_alone(fs, write_repairs(overlay, fs, HERE.path, segments))
    recover_log(directly, HERE)

    def changes(log: list[str]) -> list[str]:
        return [each for each in log if ".tmp" not in each]

    assert changes(fs.log) == changes(directly.log) != []


def test_a_log_that_needs_no_repair_has_no_operations() -> None:
    fs = log_with(overflowing())
    recover_log(fs, HERE)
    assert repaired_in_memory(fs)[0].operations(HERE.path) == ()


@pytest.mark.parametrize("failing", ["fsync", "rename"])
def test_an_error_leaves_the_log_as_it_was(failing: str) -> None:
    fs = log_with(overflowing())
    (overlay, segments), before = repaired_in_memory(fs), tree(fs, HERE.path)
    fs.fail = lambda operation, path: "no space" if operation == failing else None
    with pytest.raises(StorageError, match="no space"):
        run_alone(fs, write_repairs(overlay, fs, HERE.path, segments))
    fs.fail = lambda operation, path: None
    left = {name: data for name, data in tree(fs, HERE.path).items() if ".cleaned" not in name}
    assert left == before
    recover_log(fs, HERE)
    assert tree(fs, HERE.path) == tree(repaired_in_memory(log_with(overflowing()))[0], HERE.path)


def test_a_segment_that_has_grown_since_is_not_split() -> None:
    fs = log_with(overflowing())
    overlay, segments = repaired_in_memory(fs)
    name = f"{HERE.path}/{0:020d}.log"
    grown = fs.read_bytes(name) + data_batch(2 * FAR + 1)
    fs.unlink(name)
    fs.write_file(name, grown)
    before = tree(fs, HERE.path)
    with pytest.raises(StorageError, match="has changed since it was read"):
        run_alone(fs, write_repairs(overlay, fs, HERE.path, segments))
    assert tree(fs, HERE.path) == before


def test_a_file_that_has_the_name_of_a_new_one_is_not_removed() -> None:
    fs = log_with(overflowing())
    overlay, segments = repaired_in_memory(fs)
    fs.write_file(f"{HERE.path}/{FAR:020d}.log.cleaned", b"another's")
    with pytest.raises(StorageError):
        run_alone(fs, write_repairs(overlay, fs, HERE.path, segments))
    assert fs.read_bytes(f"{HERE.path}/{FAR:020d}.log.cleaned") == b"another's"
