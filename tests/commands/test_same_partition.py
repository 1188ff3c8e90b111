"""A partition that is in two log directories of a call: every command says so, and counts, keeps and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from compaction.commands import compact, count, doctor, dry_run, erase, expire, verify
from compaction.errors import UsageError
from compaction.files.local import LocalFileSystem
from compaction.source.read_plan import ReadRequest, plan_read, read_ends
from tests.log.logs import data_segment

Main = Callable[[list[str]], int]
COPY = ["--output-dir", "OUT"]
COMMANDS: list[tuple[Main, list[str]]] = [
    (compact.main, []),
    (compact.main, COPY),
    (compact.main, ["--dry-run"]),
    (expire.main, []),
    (expire.main, COPY),
    (erase.main, ["--where", "prefix=k"]),
    (erase.main, ["--where", "prefix=k", *COPY]),
    (dry_run.main, ["--policy", "cleanup.policy=compact"]),
    (count.main, []),
    (doctor.main, ["--quick"]),
    (verify.main, ["--in-place"]),
    (verify.main, ["--before"]),
]


@pytest.fixture
def dirs(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        log = tmp_path / name / "orders-0"
        log.mkdir(parents=True)
        data_segment(0, range(3)).put(LocalFileSystem(), str(log))
    return [f"{tmp_path}/a", f"{tmp_path}/b"]


def tree(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.mark.parametrize(
    ("main", "options"), COMMANDS, ids=lambda given: given.__module__ if callable(given) else " ".join(given)
)
def test_every_command_refuses_it(
    main: Main, options: list[str], dirs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, where = tree(tmp_path), ["--log-dir", *dirs]
    if main is verify.main:
        where, options = [*options, *dirs], (["--after", dirs[0]] if "--before" in options else [])
    assert main([*where, *(f"{tmp_path}/out" if each == "OUT" else each for each in options)]) == 2
    told = capsys.readouterr().err
    assert f"{dirs[0]}/orders-0: this partition is also in {dirs[1]}/orders-0; a broker starts on neither" in told
    assert told.count("\n") == 1
    assert tree(tmp_path) == before


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
