"""Tasks exchange items the same way on every engine: all items of a place meet in one call, and none is lost."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pytest

from compaction import engine
from compaction.engine import ByPlace, Engine, Item, Job, Place, exchange, pack
from compaction.engines.local import LocalEngine
from tests.local_passes import LocalPasses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: what each task emits: places, most of which several tasks have
TASKS = [[(log, part) for log in (0, 1) for part in range(-1, each)] for each in range(5)]
#: of a place, the process that joined it, and what the tasks emitted
Joined = tuple[Place, int, list[bytes]]


def emit(task: list[Place]) -> Iterator[Item]:
    return ((place, b"%d of %d" % (place[1], len(task))) for place in task)


def join(items: Iterable[Item]) -> Iterator[Joined]:
    found: dict[Place, list[bytes]] = defaultdict(list)
    for place, value in items:
        found[place].append(value)
    return ((place, os.getpid(), sorted(values)) for place, values in found.items())


def exchanged(engine: Engine, job: Job, reducers: int) -> list[Joined]:
    return sorted(exchange(engine, job, TASKS, emit, join, reducers))


def values(found: list[Joined]) -> list[tuple[Place, list[bytes]]]:
    return [(place, each) for place, _, each in found]


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalEngine]:
    with LocalEngine(2, inline_bytes=0) as passes:
        yield passes


@pytest.mark.parametrize("reducers", [1, 2, 50])
def test_worker_processes_exchange_what_plain_calls_do(workers: LocalEngine, reducers: int) -> None:
    found = exchanged(workers, Job("test"), reducers)
    assert values(found) == values(exchanged(LocalPasses(), Job("test"), reducers))
    assert [len(each) for _, each in values(found)] == [5, 4, 3, 2, 1] * 2
    assert os.getpid() not in {process for _, process, _ in found}


def test_a_small_exchange_starts_no_worker() -> None:
    with LocalEngine(2) as passes:
        assert {process for _, process, _ in exchanged(passes, Job("test", task_bytes=[1] * len(TASKS)), 2)} == {os.getpid()}


def test_no_tasks_exchange_nothing(workers: LocalEngine) -> None:
    assert exchange(workers, Job("test"), [], emit, join, 3) == []


@pytest.mark.spark
@pytest.mark.parametrize("reducers", [1, 5])
def test_spark_exchanges_what_plain_calls_do(spark: SparkSession, reducers: int) -> None:
    from compaction.engines.spark import SparkEngine

    passes = SparkEngine(spark.sparkContext)
    assert values(exchanged(passes, Job("test"), reducers)) == values(exchanged(LocalPasses(), Job("test"), reducers))
    assert exchange(passes, Job("test"), [], emit, join, 3) == passes.run(Job("test"), [], abs) == []


def test_consecutive_parts_go_to_different_reducers() -> None:
    assert sorted(ByPlace(5)((7, part)) for part in range(-1, 4)) == [0, 1, 2, 3, 4]
    assert ByPlace(3)((-1, 0)) in range(3)


@pytest.mark.parametrize(("size", "name"), [(engine.SHOWN_BYTES, "pass"), (engine.SHOWN_BYTES - 1, None)])
def test_only_a_job_that_reads_much_is_shown(size: int, name: str | None) -> None:
    assert Job.sized("pass", "work", [size - 1, 1]).name == name


@pytest.mark.parametrize(("items", "packs"), [([3, 3, 3, 9, 1, 1], [[3, 3], [3, 9], [1, 1]]), ([], [])])
def test_adjacent_items_are_packed_until_the_target_is_reached(items: list[int], packs: list[list[int]]) -> None:
    as_it_is: Callable[[int], int] = int
    assert pack(items, as_it_is, 6) == packs


def test_only_the_first_task_of_a_worker_freezes_what_exists() -> None:
    """These objects are not collected again."""
    engine.freeze_gc.cache_clear()
    before = gc.get_freeze_count()
    try:
        engine.freeze_gc()
        frozen = gc.get_freeze_count()
        assert frozen > before
        later = [[object()] for _ in range(1_000)]
        engine.freeze_gc()
        assert gc.get_freeze_count() < frozen + len(later)
    finally:
        gc.unfreeze()
        engine.freeze_gc.cache_clear()
