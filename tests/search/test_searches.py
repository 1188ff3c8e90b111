"""Every search runs, and reports what it finds with a command that repeats it; cases are reduced, written and replayed. What
searches once found has no fault any more; random logs are in ``tests/scenarios/found.txt``."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compaction.errors import UnforeseenError
from tests.conformance import fuzz
from tests.conformance.growing_logs import GrowingLogs
from tests.crash import kill, snapshots
from tests.damage import fuzz as damage
from tests.exports import exchanged_uploads
from tests.policies import evenings
from tests.processes import ROOT
from tests.scenarios.language import Scenario, parse, sections
from tests.trust import error_loop, lying_storage, simulation
from tests.trust.simulation import Verdict, World
from tools.search import __main__ as command
from tools.search import searches, threads
from tools.search.in_memory import CASES, IN_MEMORY, replay
from tools.search.searches import SEARCHES, Search
from tools.search.turns import Failure, Turn

KNOWN = sorted(CASES.glob("*.json"))
BY_NAME = {search.name: search for search in SEARCHES}


def lost(*_: Any, **__: Any) -> Any:
    raise AssertionError("a record is lost")


def play_badly(world: World) -> Verdict:
    """A record is lost whenever a third job runs beside a broker."""
    bad = world.scenario.jobs == 3 and world.scenario.broker is not None
    return Verdict((), ("a record is lost",) if bad else ())


def lie_unnoticed(kind: Any, lie: Any, at: int, seed: int) -> lying_storage.Result:
    return lying_storage.Result(seed, kind, lie, lying_storage.Outcome.VIOLATION, "", "a record is lost")


def reads_badly(data: bytes) -> None:
    if len(data) > 3:
        raise UnforeseenError("a record is lost")


class Differing:
    """Logs of more than one round differ."""

    def __init__(self, *_: Any) -> None:
        self.failed: dict[str, list[str]] = {}

    def run(self, root: Path, found: Mapping[str, Scenario]) -> Differing:
        self.failed = {name: ["a record is lost"] for name, each in found.items() if len(each.rounds) > 1}
        return self


FOUND = ["a record is lost"]
#: by search: what it calls, and what does that in its place
Plants = Sequence[tuple[object, str, object]]
_NO_KAFKA = (searches, "shared_gateway", lambda: None)
_COPIES: Plants = (_NO_KAFKA, (GrowingLogs, "problems", lambda _: FOUND))
_FUZZER: Plants = (
    (fuzz, "shared_gateway", lambda version="4.4.0": SimpleNamespace(version=version, release=(4, 4))),
    (fuzz, "Compared", Differing),
    (fuzz, "on_spark", lambda *_: None),
    (searches, "LOGS", 2),
)
PLANTED: Mapping[str, Plants] = {
    "simulation": [(simulation.World, "play", play_badly)],
    "lying storage": [(lying_storage, "run_with_lie", lie_unnoticed)],
    "error loop": [(error_loop.Search, "look", lambda *_: FOUND)],
    "damage": [(damage, "walk", reads_badly)],
    "threads": [(threads, "differences", lambda *_: FOUND)],
    "repeated tasks": [(searches, "problems_of", lambda _: FOUND)],
    "killed drivers": [(kill, "kill_chains", lost)],
    "snapshots": [(snapshots, "check_snapshots", lost)],
    "kills": [(kill, "kill_chains", lost)],
    "dumps": [
        (searches, "Gateway", lambda *_, **__: SimpleNamespace(close=lambda: None)),
        (searches, "KafkaDump", lambda gateway: gateway),
        (searches, "agree_on_all", lost),
    ],
    "query sequences": [
        (searches, "source_session", lambda: SimpleNamespace(stop=lambda: None)),
        (searches, "drawn_sequence", lambda *_: FOUND),
    ],
    "incremental copies": _COPIES,
    "chains with damage": _COPIES,
    "policies through time": [_NO_KAFKA, (evenings.Drawn, "differences", lambda *_: FOUND)],
    "exchanged uploads": [(exchanged_uploads, "problems", lambda _: FOUND)],
    **{name: _FUZZER for name in BY_NAME if name.startswith("random logs")},
}


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Search]:
    """Has a search find something; returns it."""

    def planted(name: str) -> Search:
        for place, called, instead in PLANTED[name]:
            monkeypatch.setattr(place, called, instead)
        return BY_NAME[name]

    return planted


def first_failure(search: Search, cases: Path) -> Failure:
    """Seeds are tried until one fails."""
    seed = 1
    while True:
        for failure in search.run(Turn(seed, 0, cases)):
            return failure
        seed += 1


@pytest.mark.parametrize("name", BY_NAME)
def test_every_search_reports_a_planted_failure(
    name: str, tmp_path: Path, plant: Callable[[str], Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = first_failure(plant(name), tmp_path / "cases")
    assert "a record is lost" in failure.problem
    assert failure.command.startswith(("python -m tests.", "python -m tools."))
    written = list((tmp_path / "cases").iterdir()) if failure.case else []
    assert written == ([failure.case] if failure.case else [])
    if failure.case and not name.startswith("random logs"):
        assert any("a record is lost" in problem for problem in replay(failure.case))
        monkeypatch.undo()
        assert replay(failure.case) == []


@pytest.mark.parametrize("name", [*IN_MEMORY, "damage"])
def test_a_search_without_a_fault_reports_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills, snapshots and the fuzzer have tests of their own, on Spark and with Kafka."""
    monkeypatch.setattr(searches, "INPUTS", 5)
    turn = Turn(1, 0, tmp_path)
    assert list(BY_NAME[name].run(turn)) == []
    assert turn.tried == 1


def test_a_scenario_is_reduced_to_what_fails(tmp_path: Path, plant: Callable[[str], Search]) -> None:
    failure = first_failure(plant("simulation"), tmp_path)
    assert failure.case is not None
    text = failure.case.read_text()
    assert '"jobs": 3' in text
    assert '"copies": false' in text
    assert text.count("null") == 4, "no kill is needed"


def test_a_damaged_input_is_reduced(tmp_path: Path, plant: Callable[[str], Search]) -> None:
    failure = first_failure(plant("damage"), tmp_path)
    assert failure.case is not None
    assert len(failure.case.read_text()) < 2_000


def test_a_random_log_is_reduced_to_a_scenario_of_its_judge(tmp_path: Path, plant: Callable[[str], Search]) -> None:
    failure = first_failure(plant("random logs 3.9.1"), tmp_path)
    assert failure.case is not None
    ((_, lines),) = sections(failure.case.read_text())
    scenario = parse(lines)
    assert (len(scenario.rounds), scenario.version) == (2, "3.9.1")
    assert "--kafka-version 3.9.1" in failure.command


def test_turns_are_taken_in_order_with_the_seeds_printed_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken: list[str] = []

    def process_of(search: Search, seed: int, seconds: float) -> int:
        assert capsys.readouterr().out.endswith(f"{search.name}: seed {seed}\n")
        taken.append(search.name)
        return int(search.name == "kills")

    clock = iter(range(100))
    monkeypatch.setattr(command, "process_of", process_of)
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    failed = command.search_in_turns([BY_NAME["damage"], BY_NAME["kills"]], 5, random.Random(1))
    assert taken == ["damage", "kills", "damage", "kills"]
    assert dict(failed) == {"kills": 2}


def test_a_search_that_finds_something_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = replace_run(BY_NAME["kills"], [Failure("a record is lost", "python -m tools.search", Path("case.json"))])
    assert command.take_turn(found, 1, 0) == 1
    assert capsys.readouterr().out.splitlines() == [
        "FAILED: a record is lost", "repeat: python -m tools.search", "case: case.json", "kills: 0 tried, 1 failed",
    ]  # fmt: skip
    assert command.take_turn(replace_run(BY_NAME["kills"], []), 1, 0) == 0


@pytest.mark.parametrize(("seconds", "code"), [(600.0, 0), (0.01, 1)])
def test_a_turn_is_a_process_that_may_not_hang(seconds: float, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "HANGS_S", seconds)
    assert command.process_of(BY_NAME["simulation"], 1, 0) == code


def replace_run(search: Search, found: list[Failure]) -> Search:
    return search._replace(run=lambda _: iter(found))


@pytest.mark.parametrize("case", KNOWN, ids=[case.stem for case in KNOWN])
def test_a_case_that_a_search_once_found_has_no_fault_any_more(case: Path) -> None:
    if json.loads(case.read_text())["search"] == "damage":
        # some of these faults show only if the kernels check bounds
        command = [sys.executable, "-m", "tools.search", "--replay", str(case)]
        done = subprocess.run(command, cwd=ROOT, env=damage.bounds_checked(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert replay(case) == []
