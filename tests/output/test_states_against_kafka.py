"""A real ``UnifiedLog`` loads the log after every interruption of a swap or a split, and after failed operations of a run (a
sample of the error loop), and serves every survivor."""

from __future__ import annotations

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
from tests.log.logs import NOW_MS, location, served
from tests.output import test_swap
from tests.recovery import test_split
from tests.recovery.small_logs import HERE
from tests.trust.checks import not_as_served, undisturbed
from tests.trust.error_loop import Search, faults, sample
from tests.trust.scenes import KINDS, Kind, log_path

pytestmark = [
    pytest.mark.kafka, pytest.mark.crash,
    pytest.mark.parametrize("clean", [True, False], ids=["after a clean shutdown", "after a crash"]),
]  # fmt: skip

FS = LocalFileSystem()
_FAULTS = 12
_KINDS = [
    kind for kind in KINDS
    if kind.name in ("compact in place", "expire", "compact after a run that was killed in its swaps")
]  # fmt: skip


def stopped_split(step: int | None) -> FaultyFileSystem:
    fs = test_split.overflowing_log()
    return fs.run_until(step, lambda fs: recover_log(fs, HERE))


def load(gateway: Gateway, path: str, *, clean: bool) -> None:
    """Load the log as a broker does, and close it cleanly."""
    with KafkaLog(gateway, Path(path), Opening(NOW_MS, clean_shutdown=clean, recovery_point=0)):
        pass


def judge(
    gateway: Gateway,
    log_dir: Path,
    make: Callable[[int | None], FaultyFileSystem],
    bounds: tuple[set[int], set[int]],
    *,
    clean: bool,
) -> None:
    (survivors, originals), here = bounds, location(str(log_dir))
    for name, fs in crash_states(make, seeds=1):
        fs.copy_out(test_swap.HERE.path, Path(here.path))
        checkpoint = f"{test_swap.LOG_DIR}/{CLEANER_OFFSETS}"
        if fs.stat(checkpoint) is not None:
            (log_dir / CLEANER_OFFSETS).write_bytes(fs.read_bytes(checkpoint))
        load(gateway, here.path, clean=clean)
        assert survivors <= set(served(FS, here.path)) <= originals, name
        recover_log(FS, here)
        assert survivors <= set(served(FS, here.path)) <= originals, name
        load(gateway, here.path, clean=clean)
        assert survivors <= set(served(FS, here.path)) <= originals, name
        shutil.rmtree(log_dir)


@pytest.mark.parametrize("case", ["both groups keep something", "the first group is emptied"])
def test_a_broker_serves_every_survivor_of_a_swap(gateway: Gateway, tmp_path: Path, case: str, clean: bool) -> None:
    kept = test_swap.CASES[case]
    survivors = {400, 401}.union(*(offsets for offsets, _ in kept.values()))
    originals = set(served(test_swap.dirty_log(), test_swap.HERE.path))
    judge(gateway, tmp_path / "logs", test_swap.stopped_run(kept), (survivors, originals), clean=clean)


def test_a_broker_serves_every_record_of_a_split(gateway: Gateway, tmp_path: Path, clean: bool) -> None:
    everything = {*test_split.OFFSETS, 3 * test_split.FAR}
    judge(gateway, tmp_path / "logs", stopped_split, (everything, everything), clean=clean)


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_a_broker_serves_every_survivor_after_an_operation_has_failed(
    gateway: Gateway, tmp_path: Path, kind: Kind, clean: bool
) -> None:
    search = Search(kind)
    found = [
        f"{fault}: {name}: {problem}"
        for fault in sample(faults(kind), _FAULTS)
        for name, state in search.states_after(fault)
        for problem in problems(gateway, tmp_path, kind, state, clean=clean)
    ]
    assert search.states > _FAULTS
    assert found == []


def problems(gateway: Gateway, tmp_path: Path, kind: Kind, state: FaultyFileSystem, *, clean: bool) -> list[str]:
    """The violations in the logs after a broker's start and stop."""
    wanted = undisturbed(kind)
    problems: list[str] = []
    for topic in kind.topics:
        place = tmp_path / Path(log_path(topic)).name
        state.copy_out(log_path(topic), place)
        load(gateway, str(place), clean=clean)
        problems += not_as_served(topic, served(FS, str(place)), wanted)
        shutil.rmtree(place)
    return problems
