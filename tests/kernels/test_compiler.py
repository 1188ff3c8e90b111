"""Kernels and inner functions are compiled by numba as it is: they share inner functions for any types, in any thread."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from compaction.kernels.compiling import inner, kernel

ROOT = Path(__file__).resolve().parents[2]


@inner
def half(value):  # type: ignore[no-untyped-def]
    """Half of an even number."""
    if value & 1:
        raise ValueError("odd")
    return value >> 1


@inner
def half_at(data, k):  # type: ignore[no-untyped-def]
    """Half of ``data[k]``."""
    return half(data[k])


@kernel
def halves(data):  # type: ignore[no-untyped-def]
    """The sum of the halves of ``data``, and their number times 10."""
    total = data[0] - data[0]
    for k in range(len(data)):
        total += half_at(data, k)
    return total, max(10, 5) * len(data)


@kernel
def last_half(data):  # type: ignore[no-untyped-def]
    """Half of the last one."""
    return half_at(data, len(data) - 1)


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.int32])
def test_kernels_share_inner_functions_for_any_types(kind: type) -> None:
    assert halves(np.array([2, 4, 6], kind)) == (6, 30)
    assert last_half(np.array([2, 4, 6], kind)) == 3


def test_an_error_of_an_inner_function_is_raised_by_the_kernel() -> None:
    with pytest.raises(ValueError, match="odd"):
        halves(np.array([2, 3]))
    assert halves(np.array([2, 2])) == (2, 20)


def test_threads_that_call_a_kernel_at_once_compile_it_once() -> None:
    def quarters(data):  # type: ignore[no-untyped-def]
        return half(half_at(data, 0))

    compiled, together, threads = kernel(quarters), Barrier(4), 4

    def call(number: int) -> int:
        together.wait()
        found: int = compiled(np.array([4 * number], np.int16))
        return found

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(call, range(threads))) == list(range(threads))
    assert len(compiled._compiled.overloads) == 1


#: calls a kernel, and prints what of numba's classes and modules is a function or class of this package
CHANGED = """
import sys
import numpy as np
from compaction.kernels import batches, tables
batches.read_control_types(np.zeros(0, np.uint8), 0, np.zeros(0, tables.BATCH_ROW))
ours = lambda value: (getattr(value, "__module__", None) or "").startswith("compaction")
modules = [module for name, module in list(sys.modules.items()) if name.split(".")[0] in ("numba", "llvmlite")]
values = (value for module in modules for value in (module, *vars(module).values()))
holders = {id(value): value for value in values if isinstance(value, (type, type(sys)))}.values()
replaced = [(holder, name) for holder in holders for name, value in list(vars(holder).items()) if ours(value)]
print(len(holders) > 1000, replaced)
"""


def test_no_function_of_numba_is_replaced_for_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", CHANGED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True []\n", "")
