"""Two jobs and a broker, interleaved at every file operation; see ``simulation`` for the guarantees."""

from __future__ import annotations

from functools import cache

import pytest

from tests.trust.simulation import ADVISORY, LOST, MODES, UNGUARDED, WORKING, Scenario, Verdict, World

SAMPLE, SUITE = 60, 200
#: a seed by which a broker without locks loses a record
LOSING = 1302


@cache
def play(seed: int, mode: str) -> Verdict:
    return World(Scenario.draw(seed, mode)).play()


@pytest.mark.parametrize("mode", MODES)
def test_no_order_of_operations_loses_a_record(mode: str) -> None:
    assert {seed: found for seed in range(SAMPLE) if (found := play(seed, mode).problems)} == {}


@pytest.mark.crash
@pytest.mark.parametrize("mode", MODES)
def test_none_of_many_orders_of_operations_loses_a_record(mode: str) -> None:
    assert {seed: found for seed in range(SAMPLE, SUITE) if (found := play(seed, mode).problems)} == {}


def test_a_seed_gives_the_same_order_every_time() -> None:
    traces = []
    for _ in range(2):
        world = World(Scenario.draw(9, LOST), trace=True)
        world.play()
        traces.append([line.split("/")[0] for line in world.last_schedule.trace or []])
    assert traces[0] == traces[1]


def test_the_simulation_reaches_every_outcome() -> None:
    """Every outcome occurs in each mode: kills, refusals, swaps of either job, brokers at the same time."""
    for mode in (ADVISORY, LOST, WORKING):
        ends = {outcome for seed in range(SAMPLE) for outcome in play(seed, mode).outcomes}
        wanted = {("first", "cleaned"), ("second", "cleaned"), ("first", "killed"), ("second", "kept out")}
        assert {*wanted, ("broker", "served")} <= ends, mode


def test_the_simulation_detects_records_lost_by_a_broker_without_locks() -> None:
    """The limit of the guarantees, and a proof that the simulation detects a loss."""
    assert any("is lost" in problem for seed in range(LOSING, LOSING + 2_000) for problem in play(seed, UNGUARDED).problems)
