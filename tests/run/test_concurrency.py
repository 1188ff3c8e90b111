"""Many works of the driver at once: order, ends and interruptions."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from compaction.run.clean_waves import change_logs
from compaction.run.passes import run_concurrently
from compaction.storage.durable import DurableSteps
from compaction.storage.local import LocalFileSystem


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


def test_an_interrupt_lets_the_logs_in_step_complete_and_starts_no_others() -> None:
    begun: list[int] = []
    ended: list[int] = []

    def work(number: int) -> DurableSteps[None]:
        begun.append(number)
        if number == 1:
            # the caller waits by now
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGINT)
        yield ()
        time.sleep(0.2)
        ended.append(number)

    # a shell's background jobs ignore it
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            change_logs(LocalFileSystem(), [(f"/{number}", work(number)) for number in range(6)], 2)
    finally:
        signal.signal(signal.SIGINT, usual)
    assert begun == ended == [0, 1]


def test_logs_are_changed_in_order_one_by_one_inline_and_several_in_one_thread() -> None:
    threads: list[threading.Thread] = []

    def work(number: int) -> DurableSteps[int]:
        yield ()
        threads.append(threading.current_thread())
        return number

    def changed(logs: int, most: int) -> list[int]:
        threads.clear()
        return change_logs(LocalFileSystem(), [(f"/{number}", work(number)) for number in range(logs)], most)

    assert changed(5, 2) == list(range(5))
    assert len(set(threads)) == 1 and threads[0] is not threading.main_thread()
    for logs, most in ((1, 2), (5, 1)):
        assert changed(logs, most) == list(range(logs))
        assert set(threads) == {threading.main_thread()}
    assert changed(0, 2) == []
