"""Runs calls concurrently that wait for the disk more than for a processor, and changes logs in step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from compaction.fs.durable import Steps, run_in_step
from compaction.fs.filesystem import FileSystem

T = TypeVar("T")


def run_concurrently(calls: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Runs the calls on up to ``threads`` threads, inline if one suffices; returns their results in order.

    If a call raises or the caller is interrupted, running calls complete and the others do not start.
    """
    threads = min(threads, len(calls))
    return _in_threads(calls, threads) if threads > 1 else [call() for call in calls]


def _in_threads(calls: Sequence[Callable[[], T]], threads: int) -> list[T]:
    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(call) for call in calls]
        try:
            return [each.result() for each in running]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def change_logs(fs: FileSystem, works: Sequence[tuple[str, Steps[T]]], most: int) -> list[T]:
    """Runs works that each change one log; returns their results in order. Groups of up to ``most`` works advance in step.

    Several works run in one thread, so that an interrupt does not stop them halfway; two threads would contend for the GIL.

    :param works: the directory of each log, and what changes it
    """
    groups = [works[first : first + most] for first in range(0, len(works), most)]
    calls = [partial(run_in_step, fs, [path for path, _ in group], [work for _, work in group]) for group in groups]
    found = _in_threads(calls, 1) if min(most, len(works)) > 1 else [call() for call in calls]
    return [result for results in found for result in results]
