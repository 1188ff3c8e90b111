"""Independent work of a test, as many parts at once as there are cores. No result depends on the order or on time."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K")

_CORES = os.cpu_count() or 1


def in_processes(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """The result for each item, in their order, computed in separate processes. Neighbours are computed by the same one.

    :param work: a function of a module that the processes can import
    """
    every = list(items)
    # processes of their own: this one may have threads, and a JVM
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_CORES, mp_context=context) as pool:
        return list(pool.map(work, every, chunksize=max(1, len(every) // (8 * _CORES))))


@contextmanager
def started(work: Callable[[K], R], keys: Iterable[K]) -> Iterator[dict[K, Future[R]]]:
    """Starts the work for every key in threads that wait for processes; the results by key. What has not begun when a test
    fails is not begun."""
    pool = ThreadPoolExecutor(_CORES)
    try:
        yield {key: pool.submit(work, key) for key in keys}
    finally:
        pool.shutdown(cancel_futures=True)
