"""Many works of the driver at once: order, ends and interruptions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from compaction.engine.concurrency import change_logs, run_concurrently
from compaction.fs.durable import Steps
from compaction.fs.local import LocalFileSystem


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


def test_several_logs_change_in_one_thread_which_an_interrupt_does_not_stop_halfway() -> None:
    threads: list[threading.Thread] = []

    def work() -> Steps[int]:
        threads.append(threading.current_thread())
        yield ()
        threads.append(threading.current_thread())
        return 1

    assert change_logs(LocalFileSystem(), [("/a", work()), ("/b", work()), ("/c", work())], 2) == [1, 1, 1]
    assert len(set(threads)) == 1 and threads[0] is not threading.main_thread()
    threads.clear()
    assert change_logs(LocalFileSystem(), [("/a", work())], 2) == [1]
    assert change_logs(LocalFileSystem(), [("/a", work()), ("/b", work())], 1) == [1, 1]
    assert set(threads) == {threading.main_thread()}
