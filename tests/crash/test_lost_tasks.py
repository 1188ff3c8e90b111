"""Tasks that fail or run twice, and executors of a cluster that die while commands run: the result is that of an undisturbed
run, and no file is left; or, if the repeated task cannot read a log, this log fails and is unchanged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.standalone import standalone
from tests.crash.faulty_spark import CASES, Case, results
from tests.crash.kill import CLUSTER, LOCAL
from tests.passes.test_repeated_tasks import LOG, compact_in_place

pytestmark = [pytest.mark.crash, pytest.mark.spark]

LOST = [case for case in CASES if case.at not in ("tasks", "twice")]


def is_undisturbed(found: dict[str, Any]) -> bool:
    return (found["equal"], found["errors"]) == (True, [])


def test_failed_tasks_are_retried(tmp_path: Path) -> None:
    """Between the passes, the shuffle files of the first are lost, too."""
    (found,) = results(tmp_path, LOCAL, [Case(compact_in_place, "tasks")]).values()
    assert set(found["faults"]) == {"half.0", "half.1", "half.2", "done.0", "done.1", "done.2", "worker.0", "worker.1"}
    assert is_undisturbed(found)


def test_an_output_part_written_by_two_tasks_is_used_once(tmp_path: Path) -> None:
    # Spark starts a speculative attempt only on another host
    with standalone(tmp_path / "cluster", os.environ, ("127.0.0.1", "127.0.0.2")) as cluster:
        (found,) = results(tmp_path, cluster.url, [Case(compact_in_place, "twice")]).values()
    assert found["faults"] == ["again.0", "slow.0"]
    assert is_undisturbed(found)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, dict[str, Any]]:
    return results(tmp_path_factory.mktemp("lost-executors"), CLUSTER, LOST)


@pytest.mark.cluster
@pytest.mark.parametrize("case", LOST, ids=str)
def test_no_record_is_lost_when_all_executors_die(found: dict[Case, dict[str, Any]], case: Case) -> None:
    result = found[case]
    assert ("executor.0" if case.at == "executor" else "killed") in result["faults"]
    assert ("failed.0" in result["faults"]) == case.fails
    if not case.fails:
        assert is_undisturbed(result)
        return
    # the places of an exchange that need the log may have all of its items before
    assert result["errors"] or (case.at == "join" and result["equal"])
    assert all(LOG in error for error in result["errors"])
    assert result.get("unchanged", True)
    assert result.get("others", True)
