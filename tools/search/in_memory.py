"""Case files: what a search has found, in a form that one quick test replays in memory (``tests/search/test_searches.py``).

A file holds the search and the values that it had drawn, not its seed: a search may draw others from it later.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from tests.damage import fuzz as damage
from tests.trust import error_loop, lying_storage, scenes, simulation
from tools.search.turns import Failure, Turn, repeat

CASES = Path(__file__).resolve().parents[2] / "tests/search/cases"
#: a case's values, as JSON has them
Values = Mapping[str, Any]


class InMemory(NamedTuple):
    """A search whose cases are replayed: draws a case from a seed, says what is wrong with it, and makes it smaller in some
    ways."""

    draw: Callable[[int], Values]
    problems: Callable[[Values], list[str]]
    smaller: Callable[[Values], Iterator[Values]]

    def run(self, name: str, turn: Turn) -> Iterator[Failure]:
        """Reduces what fails and writes it."""
        for seed in turn.seeds():
            if self.problems(values := self.draw(seed)):
                small = reduced(values, self)
                path = write(name, small, turn.cases or CASES)
                yield Failure("\n".join(self.problems(small)), repeat(name, seed), path)


def reduced(values: Values, how: InMemory) -> Values:
    """The smallest case found that still fails."""
    for smaller in how.smaller(values):
        if how.problems(smaller):
            return reduced(smaller, how)
    return values


def write(search: str, values: Values, directory: Path) -> Path:
    """Writes a case; to be renamed to what it shows."""
    text = json.dumps({"search": search, **values}, indent=1)
    path = directory / f"{search.replace(' ', '-')}-{sha256(text.encode()).hexdigest()[:8]}.json"
    directory.mkdir(exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def replay(path: Path) -> list[str]:
    """What is wrong with a case: nothing, unless the fault has come back."""
    values = json.loads(path.read_text(encoding="utf-8"))
    return REPLAYED[values.pop("search")](values)


def _scenario(values: Values) -> simulation.Scenario:
    lists = {name: tuple(values[name]) for name in ("starts", "kills")}
    broker = None if values["broker"] is None else simulation.Habits(**values["broker"])
    return simulation.Scenario(**{**values, **lists, "broker": broker})


def _simpler_scenarios(values: Values) -> Iterator[Values]:
    """Without one of the actors, or of the events that it does not need."""
    simplest = {"jobs": 2, "broker": None, "copies": False, "left_claim": False, "delay_ms": 0}
    yield from ({**values, name: least} for name, least in simplest.items() if values[name] != least)
    for name, least in (("kills", None), ("starts", 0)):
        for at, value in enumerate(values[name]):
            if value != least:
                yield {**values, name: [*values[name][:at], least, *values[name][at + 1 :]]}


def _play(values: Values) -> list[str]:
    return list(simulation.World(_scenario(values)).play().problems)


def _draw_scenario(seed: int) -> Values:
    scenario = simulation.Scenario.draw(seed)
    broker = None if scenario.broker is None else asdict(scenario.broker)
    return {**vars(scenario), "starts": [*scenario.starts], "kills": [*scenario.kills], "broker": broker}


def _kind(values: Values) -> scenes.Kind:
    return next(kind for kind in scenes.KINDS if kind.name == values["kind"])


def _draw_lie(seed: int) -> Values:
    kind, lie, at = lying_storage.draw(seed)
    return {"kind": kind.name, "lie": lie.name, "at": at, "seed": seed}


def _lie(values: Values) -> list[str]:
    result = lying_storage.run_with_lie(_kind(values), lying_storage.Lie[values["lie"]], values["at"], values["seed"])
    return [str(result)] if result.outcome is lying_storage.Outcome.VIOLATION else []


def _draw_fault(seed: int) -> Values:
    chance = random.Random(seed)
    kind = chance.choice(scenes.KINDS)
    faults = error_loop.faults(kind)
    fault = chance.choice(faults)
    stop_at = chance.randrange(fault.at + 1, faults[-1].at + 2) if chance.random() < 0.5 else None
    return {"kind": kind.name, "mode": fault.mode.name, "at": fault.at, "stop_at": stop_at, "losses": chance.randrange(10**6)}


def _fail(values: Values) -> list[str]:
    fault = error_loop.Fault(error_loop.Mode[values["mode"]], values["at"], values["stop_at"])
    return list(error_loop.Search(_kind(values), values["losses"]).look(fault))


def _no_smaller(_: Values) -> Iterator[Values]:
    yield from ()


IN_MEMORY = {
    "simulation": InMemory(_draw_scenario, _play, _simpler_scenarios),
    "lying storage": InMemory(_draw_lie, _lie, _no_smaller),
    "error loop": InMemory(_draw_fault, _fail, _no_smaller),
}
REPLAYED: Mapping[str, Callable[[Values], list[str]]] = {
    **{name: search.problems for name, search in IN_MEMORY.items()},
    "damage": damage.problems,
}
