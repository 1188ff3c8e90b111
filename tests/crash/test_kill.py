"""Kills at fixed points; ``make search`` kills at random ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.crash.kill import ROOT, Chains, Kill, OnSpark, kill_chains

pytestmark = [pytest.mark.crash, pytest.mark.spark]

WORKERS = (("worker", 0.0, 0), ("worker", 0.0, 1))
#: three kills on each of two directories; the runs on the second one have separate executors
KILLS = (
    Kill("writing", "driver", tasks=WORKERS), Kill("swapping", "all", wait=False), Kill("swapping", "jvm"),
    Kill("writing", "jvm", tasks=(("executor", 0.0, 0), *WORKERS)), Kill("writing", "all"),
    Kill("swapping", "driver", wait=False),
)  # fmt: skip


def test_the_run_after_a_killed_one_finishes_its_work() -> None:
    kills = kill_chains(OnSpark(lambda _: iter(KILLS), length=3, cluster_every=2), Chains(len(KILLS), least=2))
    assert kills.total() >= 6


@pytest.mark.parametrize("options", [(), ("--waves",)], ids=["one wave", "six waves"])
def test_the_run_after_many_killed_drivers_finishes_their_work(options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.crash.kill", "--driver", "--fixed", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "nothing lost" in done.stdout
