"""A partition that is in two log directories of a call: every command says so, and counts, keeps and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compaction.errors import UsageError
from compaction.files.local import LocalFileSystem
from compaction.source.read_plan import ReadRequest, plan_read, read_ends
from tests.log.logs import data_segment


@pytest.fixture
def dirs(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        log = tmp_path / name / "orders-0"
        log.mkdir(parents=True)
        data_segment(0, range(3)).put(LocalFileSystem(), str(log))
    return [f"{tmp_path}/a", f"{tmp_path}/b"]


@pytest.mark.parametrize("below", [[], [0], [0, 1]], ids=["log directories", "one log", "two logs"])
def test_the_data_source_refuses_it(dirs: list[str], below: list[int]) -> None:
    paths = [f"{path}/orders-0" if at in below else path for at, path in enumerate(dirs)]
    request = ReadRequest.parse({"paths": json.dumps(paths)})
    for read in (lambda: plan_read(request, 0), lambda: read_ends(request)):
        with pytest.raises(UsageError, match="this partition is also in "):
            read()


def test_a_log_that_is_given_twice_is_read_once(dirs: list[str]) -> None:
    request = ReadRequest.parse({"paths": json.dumps([dirs[0], f"{dirs[0]}/orders-0"])})
    assert sum(len(task.slices) for task in plan_read(request, 0)) == 1
