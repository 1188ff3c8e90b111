"""Inner functions become parts of the kernels that call them, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from compaction.kernels.compiling.compiler import KernelCompiler
from compaction.kernels.compiling.jit import inner


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


@njit(pipeline_class=KernelCompiler)
def halves(data):  # type: ignore[no-untyped-def]
    """The sum of the halves of ``data``, and their number times 10."""
    total = data[0] - data[0]
    for k in range(len(data)):
        total += half_at(data, k)
    return total, max(10, 5) * len(data)


@njit(pipeline_class=KernelCompiler)
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


def test_an_inner_function_is_not_translated_to_machine_code() -> None:
    last_half(np.array([2]))
    compiled = last_half.overloads[last_half.signatures[0]]
    assert compiled.library._compiled
    parts = half._part.overloads.values()
    assert parts
    for each in parts:
        assert not getattr(each.library, "_compiled", False)
        assert each.fndesc.llvm_func_name in each.library.get_llvm_str()
