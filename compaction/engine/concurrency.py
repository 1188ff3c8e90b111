"""Does at once what waits for the disk more than for a processor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_concurrently(works: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """What each of ``works`` gives, in their order, by at most so many threads; by none where one would do.

    When one raises, or the caller is interrupted, those that run are brought to their ends and the rest are not begun.
    """
    threads = min(threads, len(works))
    if threads <= 1:
        return [work() for work in works]
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(work) for work in works]
        try:
            return [each.result() for each in running]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
