"""All executors of a cluster die while commands run, and a task that Spark repeats cannot read a log: the result is that of an
undisturbed run, or this log fails and is unchanged."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.faulty_spark import CASES, Case, results
from tests.crash.kill import CLUSTER
from tests.crash.test_retries import is_undisturbed
from tests.passes.test_repeated_tasks import LOG

pytestmark = [pytest.mark.crash, pytest.mark.cluster, pytest.mark.spark]

LOST = [case for case in CASES if case.at not in ("tasks", "twice")]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, dict[str, Any]]:
    return results(tmp_path_factory.mktemp("lost-executors"), CLUSTER, LOST)


@pytest.mark.parametrize("case", LOST, ids=str)
def test_no_record_is_lost_when_tasks_are_repeated(found: dict[Case, dict[str, Any]], case: Case) -> None:
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
