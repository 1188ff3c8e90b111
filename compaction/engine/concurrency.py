"""Runs calls concurrently that wait for the disk more than for a processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


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
