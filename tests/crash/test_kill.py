"""A sample of the kills of ``tests.crash.kill`` and ``tests.crash.kill_driver``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.kill import run

pytestmark = [pytest.mark.crash, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]


def test_the_run_after_a_killed_one_finishes_its_work() -> None:
    """Every third chain runs on separate executors."""
    tally = run(seed=20, kills=9, chains=3, cluster_every=3)
    assert sum(tally.kills.values()) >= 9
    assert tally.reruns >= 3


def test_the_run_after_many_killed_drivers_finishes_their_work() -> None:
    command = [sys.executable, "-m", "tests.crash.kill_driver", "--seed", "3", "--kills", "100"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "nothing lost" in done.stdout
