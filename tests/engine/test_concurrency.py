"""Many works of the driver at once: order, ends and interruptions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from compaction.engine.concurrency import run_concurrently


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_results_are_in_the_order_of_the_calls(threads: int) -> None:
    def work(number: int) -> Callable[[], int]:
        def done() -> int:
            time.sleep(0.001 * (7 - number % 7))
            return number

        return done

    assert run_concurrently([work(number) for number in range(40)], threads) == list(range(40))


def test_a_single_call_runs_inline() -> None:
    assert run_concurrently([threading.current_thread], 16) == [threading.main_thread()]
    assert run_concurrently([], 16) == []


def test_after_an_interruption_running_calls_complete_and_no_others_start() -> None:
    begun: list[int] = []
    ended: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        time.sleep(0.05)
        if number == 1:
            raise KeyboardInterrupt
        ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        run_concurrently([lambda number=number: work(number) for number in range(100)], 4)  # type: ignore[misc]
    assert len(begun) < 20
    assert sorted({*ended, 1}) == sorted(begun)
