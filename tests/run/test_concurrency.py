"""Many works of the driver at once: order, ends and interruptions."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from compaction.files.durable import DurableSteps
from compaction.files.local import LocalFileSystem
from compaction.passes.merge import run_concurrently
from compaction.run.run import change_logs


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


@contextmanager
def interrupted_by(number: signal.Signals) -> Iterator[None]:
    """The signal is not ignored, as by a shell's background jobs, and ends what is below."""
    usual = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.signal(number, usual)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_logs_in_step_complete_and_starts_no_others(number: signal.Signals) -> None:
    begun: list[int] = []
    ended: list[int] = []

    def work(log: int) -> DurableSteps[None]:
        begun.append(log)
        if log == 0:
            signal.raise_signal(number)
        yield ()
        ended.append(log)

    with interrupted_by(number):
        change_logs(LocalFileSystem(), [(f"/{log}", work(log)) for log in range(6)], 2)
    assert begun == ended == [0, 1]


def test_a_signal_stops_a_copy_at_once() -> None:
    ended: list[int] = []

    def work() -> DurableSteps[None]:
        signal.raise_signal(signal.SIGINT)
        ended.append(0)
        yield ()

    with interrupted_by(signal.SIGINT):
        change_logs(LocalFileSystem(), [("/0", work())], 1)
    assert ended == []


@pytest.mark.parametrize(("logs", "most"), [(5, 2), (1, 2), (5, 1), (0, 2)])
def test_the_results_of_changed_logs_are_in_their_order(logs: int, most: int) -> None:
    def work(log: int) -> DurableSteps[int]:
        yield ()
        return log

    assert change_logs(LocalFileSystem(), [(f"/{log}", work(log)) for log in range(logs)], most) == list(range(logs))
