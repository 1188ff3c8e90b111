"""All executors of a cluster die while commands run, and a task that Spark repeats cannot read a log: the result is that of an
undisturbed run, or this log fails and is unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.faulty_tasks import MARKS
from tests.crash.lost_executors import CASES, LOG
from tests.golden import unpack_sample

pytestmark = [pytest.mark.crash, pytest.mark.cluster, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    place = tmp_path_factory.mktemp("lost-executors")
    log_dir = unpack_sample(place)
    (place / "marks").mkdir()
    environment = {
        **os.environ,
        MARKS: str(place / "marks"),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-m", "tests.crash.lost_executors", str(log_dir)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    yield {line["case"]: line for line in lines}


@pytest.mark.parametrize(("command", "at", "fails"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_no_record_is_lost_when_tasks_are_repeated(
    results: dict[str, dict[str, Any]], command: Any, at: str, fails: bool
) -> None:
    found = results[f"{command.__name__}, {at}"]
    assert "killed" in found["faults"]
    assert ("failed.0" in found["faults"]) == fails
    if not fails:
        assert (found["equal"], found["errors"]) == (True, [])
        return
    # the places of an exchange that need the log may have all of its items before
    assert found["errors"] or (at == "join" and found["equal"])
    assert all(LOG in error for error in found["errors"])
    assert found.get("unchanged", True)
    assert found.get("others", True)
