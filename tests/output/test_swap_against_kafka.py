"""A real ``UnifiedLog`` loads the log after every interruption of a swap or a split, and serves every survivor."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.files.local import LocalFileSystem
from compaction.names import CLEANER_OFFSETS
from compaction.recovery.recover import recover_log
from tests.disk import FaultyFileSystem, crash_states
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening
from tests.log.logs import NOW_MS, location, served, tree
from tests.output import test_swap
from tests.recovery import test_split
from tests.recovery.small_logs import HERE

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

FS = LocalFileSystem()


def stopped_split(step: int | None) -> FaultyFileSystem:
    fs = test_split.overflowing_log()
    return fs.run_until(step, lambda fs: recover_log(fs, HERE))


def load(gateway: Gateway, path: str, *, clean: bool) -> None:
    """Load the log as a broker does, and close it cleanly."""
    opening = Opening(NOW_MS, clean_shutdown=clean, recovery_point=0)
    with KafkaLog(gateway, Path(path), opening):
        pass


def put_on_disk(fs: FaultyFileSystem, log_dir: Path) -> str:
    here = location(str(log_dir))
    Path(here.path).mkdir(parents=True)
    for name, data in tree(fs, test_swap.HERE.path).items():
        (Path(here.path) / name).write_bytes(data)
        found = fs.stat(f"{test_swap.HERE.path}/{name}")
        assert found is not None
        os.utime(Path(here.path) / name, ns=(found.mtime_ns, found.mtime_ns))
    checkpoint = f"{test_swap.LOG_DIR}/{CLEANER_OFFSETS}"
    if fs.stat(checkpoint) is not None:
        (log_dir / CLEANER_OFFSETS).write_bytes(fs.read_bytes(checkpoint))
    return here.path


def judge(
    gateway: Gateway,
    tmp_path: Path,
    make: Callable[[int | None], FaultyFileSystem],
    bounds: tuple[set[int], set[int]],
    *,
    clean: bool,
) -> None:
    survivors, originals = bounds
    for name, fs in crash_states(make, seeds=1):
        path = put_on_disk(fs, tmp_path / "logs")
        load(gateway, path, clean=clean)
        assert survivors <= set(served(FS, path)) <= originals, name
        recover_log(FS, location(str(tmp_path / "logs")))
        assert survivors <= set(served(FS, path)) <= originals, name
        load(gateway, path, clean=clean)
        assert survivors <= set(served(FS, path)) <= originals, name
        shutil.rmtree(tmp_path / "logs")


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean shutdown", "after a crash"])
@pytest.mark.parametrize("case", ["both groups keep something", "the first group is emptied"])
def test_a_broker_serves_every_survivor_of_a_swap(gateway: Gateway, tmp_path: Path, case: str, clean: bool) -> None:
    kept = test_swap.CASES[case]
    survivors = {400, 401}.union(*(offsets for offsets, _ in kept.values()))
    originals = set(served(test_swap.dirty_log(), test_swap.HERE.path))
    judge(gateway, tmp_path, test_swap.stopped_run(kept), (survivors, originals), clean=clean)


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean shutdown", "after a crash"])
def test_a_broker_serves_every_record_of_a_split(gateway: Gateway, tmp_path: Path, clean: bool) -> None:
    everything = {*test_split.OFFSETS, 3 * test_split.FAR}
    judge(gateway, tmp_path, stopped_split, (everything, everything), clean=clean)
