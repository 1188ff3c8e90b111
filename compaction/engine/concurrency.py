"""Runs calls concurrently that wait for the disk more than for a processor, and changes logs in step.

Tested by ``tests/engine/test_concurrency.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from compaction.fs.durable import Steps, run_in_step
from compaction.fs.filesystem import FileSystem

T = TypeVar("T")

#: one group of logs computes while the other one waits for the disk
_GROUPS = 2


def run_concurrently(calls: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Runs the calls on up to ``threads`` threads, inline if one suffices; returns their results in order.

    If a call raises or the caller is interrupted, running calls complete and the others do not start.
    """
    threads = min(threads, len(calls))
    if threads <= 1:
        return [call() for call in calls]
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(call) for call in calls]
        try:
            return [each.result() for each in running]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def change_logs(fs: FileSystem, works: Sequence[tuple[str, Steps[T]]], most: int) -> list[T]:
    """Runs works that each change one log; returns their results in order. Groups of up to ``most`` works advance in step.

    :param works: the directory of each log, and what changes it
    """
    size = min(most, max(1, -(-len(works) // _GROUPS)))
    groups = [works[first : first + size] for first in range(0, len(works), size)]
    calls = [partial(run_in_step, fs, [path for path, _ in group], [work for _, work in group]) for group in groups]
    return [result for results in run_concurrently(calls, min(most, _GROUPS)) for result in results]
