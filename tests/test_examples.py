"""The command examples of the documents and of the help end with 0: on the sample logs, and with a log that needs workers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compaction.cli import console
from tests.cli.test_help import PARSERS, ROOT
from tests.example_calls import NOT_HERE, Places, copied, examples, runs_here
from tests.golden import unpack_sample
from tests.large_log import replace_log, write_large_log

_EXAMPLES = [each for each in examples() if runs_here(each[1])]
#: objects are in local directories here
_PATH = re.compile(r'(?<!\S)(?:(?:s3:/)?/\S+|"\$\w+"\S*)')
#: those that differ in more than their paths
_DIFFERENT = {_PATH.sub("PATH", call): (source, call) for source, call in reversed(_EXAMPLES)}
#: their commands read whole logs, unless an option in _READS_LITTLE is given
_READ_LOGS = ("compact", "count", "dry-run", "erase", "verify")
#: an unchanged log is not read, and an explanation reads segments
_READS_LITTLE = re.compile(r"--since|--explain")
#: of one command
_LIMIT_S = 120


def _cases(chosen: list[tuple[str, str]]) -> list[object]:
    return [pytest.param(call, id=f"{source}: {call[21:70]}") for source, call in chosen]


def test_no_example_is_left_out_without_a_reason() -> None:
    left_out = [call for _, call in examples() if not runs_here(call)]
    assert [sum(part in call for call in left_out) for part in NOT_HERE] == [1] * len(NOT_HERE) == [1] * len(left_out)
    for chosen in (_EXAMPLES, list(_DIFFERENT.values())):
        assert {shlex.split(call)[1] for _, call in chosen} == set(PARSERS)
    assert len(_EXAMPLES) > 75
    assert len(_DIFFERENT) > 60


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """The sample."""
    place = tmp_path_factory.mktemp("small")
    logs = unpack_sample(place)
    return Places(lambda _: logs, place, _run_here)


@pytest.mark.parametrize("call", _cases(_EXAMPLES))
def test_an_example_runs(call: str, small: Places, tmp_path: Path) -> None:
    assert _run_here(small.arguments(call, tmp_path), tmp_path) == 0


def _run_here(arguments: list[str], place: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("COLUMNS", "80")
        return console.main(arguments)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """The sample, in which the first log of an example's topic is replaced by one that needs worker processes."""
    place = tmp_path_factory.mktemp("large")
    sample, log = unpack_sample(place), write_large_log(place / "log", step_ms=60_000) / "orders-0"

    def logs(topic: str) -> Path:
        made = place / topic
        if not made.exists():
            copied(sample, made)
            replace_log(made, topic, log)
        return made

    return Places(logs, place, lambda *call: _run_as_a_user(*call)[0])


@pytest.mark.slow
@pytest.mark.parametrize("call", _cases(list(_DIFFERENT.values())))
def test_an_example_runs_as_its_user_runs_it_on_a_log_that_needs_workers(call: str, large: Places, tmp_path: Path) -> None:
    """Of examples that differ only in their paths, one runs: all take two and a half minutes of processor time."""
    arguments = large.arguments(call, tmp_path)
    code, workers = _run_as_a_user(arguments, tmp_path)
    assert code == 0
    assert workers == (arguments[0] in _READ_LOGS and not _READS_LITTLE.search(call))


def _run_as_a_user(arguments: list[str], place: Path) -> tuple[int, bool]:
    """The exit code of a command, and whether it had processes of its own."""
    workers, until = False, time.monotonic() + _LIMIT_S
    command = [sys.executable, "-m", "compaction", *arguments]
    with subprocess.Popen(command, cwd=place, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL) as process:
        while process.poll() is None:
            if time.monotonic() > until:
                process.kill()
                pytest.fail(f"takes more than {_LIMIT_S} s: {arguments}")
            workers = workers or _has_children(process.pid)
            time.sleep(0.02)
    return process.returncode, workers


def _has_children(process: int) -> bool:
    try:
        return any(file.read_text() for file in Path(f"/proc/{process}/task").glob("*/children"))
    except OSError:
        return False  # a thread, or the process, has just ended
