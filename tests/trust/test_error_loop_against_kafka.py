"""The error loop followed by a real broker: its ``UnifiedLog`` loads the files that a failed operation has left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compaction.files.local import LocalFileSystem
from tests.disk import FaultyFileSystem
from tests.kafka.gateway import Gateway
from tests.kafka.log import KafkaLog, Opening
from tests.log.logs import NOW_MS, served
from tests.trust.checks import not_as_served, undisturbed
from tests.trust.error_loop import Search, faults, sample
from tests.trust.scenes import KINDS, Kind, log_path

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

_FAULTS = 12
_KINDS = [
    kind for kind in KINDS
    if kind.name in ("compact in place", "expire", "compact after a run that was killed in its swaps")
]  # fmt: skip


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean shutdown", "after a crash"])
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
        with KafkaLog(gateway, place, Opening(NOW_MS, clean_shutdown=clean, recovery_point=0)):
            pass
        problems += not_as_served(topic, served(LocalFileSystem(), str(place)), wanted)
        shutil.rmtree(place)
    return problems
