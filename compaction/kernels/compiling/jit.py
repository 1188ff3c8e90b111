"""How kernels are compiled: what Python calls with ``kernel``, what kernels call with ``inner``.

A kernel takes the functions that it calls into its own code, so that only kernels are kept on disk (see ``cache``). An inner
function is compiled once for each list of argument types, whatever constants it is called with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from numba import config, njit, types
from numba.core.options import DefaultOptions

from compaction.kernels.compiling.cache import kernel_cache

#: Kernels make no arrays and those that they are given stay their caller's, so that none needs to be counted; to compile the
#: counting takes a tenth of the time. numba does not promise this option.
_UNCOUNTED = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}


def kernel(function: Callable[..., Any]) -> Any:
    """``function`` compiled when it is first called, without Python's lock, and kept on disk for other processes."""
    compiled = _compiled(function, nogil=True)
    if not config.DISABLE_JIT:
        compiled._cache = kernel_cache(function) or compiled._cache
    return compiled


def inner(function: Callable[..., Any]) -> Any:
    """``function`` compiled as a part of each kernel that calls it."""
    return function if config.DISABLE_JIT else _Inner(function)


class _Inner:
    """What numba sees is the compiled function without an entry for Python, which takes as long to make as the rest of a small
    function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__
        self._part = _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)
        # holds a weak reference
        self._numba_type_ = types.Dispatcher(self._part)

    def __call__(self, *args: Any) -> Any:
        """The result of a compiled copy, as tests want it."""
        return self._alone(*args)

    @cached_property
    def _alone(self) -> Any:
        return njit(self._function)


def _compiled(function: Callable[..., Any], **options: bool) -> Any:
    compiled = njit(**_UNCOUNTED, **options)(function)
    if config.DISABLE_JIT:
        return compiled
    template = compiled.get_call_template

    def by_type(args: Sequence[Any], kws: Any) -> Any:
        # a constant among the arguments would have the function compiled anew for its value
        return template(tuple(map(types.unliteral, args)), kws)

    compiled.get_call_template = by_type
    return compiled
