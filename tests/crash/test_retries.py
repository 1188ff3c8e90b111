"""Tasks that fail or run twice: the result has the same bytes, and no file is left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.standalone import standalone
from tests.crash.faulty_spark import Case, results, small
from tests.crash.kill import LOCAL

pytestmark = [pytest.mark.crash, pytest.mark.spark]

#: Spark starts a speculative attempt only on another host
HOSTS = ("127.0.0.1", "127.0.0.2")


def is_undisturbed(found: dict[str, Any]) -> bool:
    return (found["equal"], found["errors"]) == (True, [])


def test_failed_tasks_are_retried(tmp_path: Path) -> None:
    """Between the passes, the shuffle files of the first are lost, too."""
    (found,) = results(tmp_path, LOCAL, [Case(small, "tasks")]).values()
    assert set(found["faults"]) == {"half.0", "half.1", "half.2", "done.0", "done.1", "done.2", "worker.0", "worker.1"}
    assert is_undisturbed(found)


def test_an_output_part_written_by_two_tasks_is_used_once(tmp_path: Path) -> None:
    with standalone(tmp_path / "cluster", os.environ, HOSTS) as cluster:
        (found,) = results(tmp_path, cluster.url, [Case(small, "twice")]).values()
    assert found["faults"] == ["again.0", "slow.0"]
    assert is_undisturbed(found)
