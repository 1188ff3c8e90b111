"""Decorators that compile kernels: ``kernel`` for functions that Python calls, ``inner`` for functions that kernels call.

The code of a kernel includes the functions that it calls, so only kernels are cached on disk (see ``cache``). An inner function
is compiled once per list of argument types, whatever constants it is called with.

Tested by ``tests/kernels/compiling/test_modes.py`` and ``tests/kernels/compiling/test_cache.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from numba import config, njit, types
from numba.core.options import DefaultOptions

from compaction.kernels.compiling.cache import kernel_cache

#: Kernels allocate no arrays, and callers keep the arguments alive, so reference counting is not needed; compiling it takes a
#: tenth of the time. The option is not part of numba's public interface.
_UNCOUNTED = {"_nrt": False} if hasattr(DefaultOptions, "_nrt") else {}


def kernel(function: Callable[..., Any]) -> Any:
    """Compile ``function`` on its first call, to run without the GIL, and cache it on disk."""
    compiled = _compiled(function, nogil=True)
    if not config.DISABLE_JIT:
        compiled._cache = kernel_cache(function) or compiled._cache
    return compiled


def inner(function: Callable[..., Any]) -> Any:
    """Compile ``function`` as a part of each kernel that calls it."""
    return function if config.DISABLE_JIT else _Inner(function)


class _Inner:
    """A compiled function without wrappers for Python, which take as long to compile as a small function itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__
        self._part = _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)
        # numba's type of this object; it only has a weak reference to the dispatcher
        self._numba_type_ = types.Dispatcher(self._part)

    def __call__(self, *args: Any) -> Any:
        """Call a copy that is compiled with wrappers; only tests do."""
        return self._callable(*args)

    @cached_property
    def _callable(self) -> Any:
        return njit(self._function)


def _compiled(function: Callable[..., Any], **options: bool) -> Any:
    compiled = njit(**_UNCOUNTED, **options)(function)
    if config.DISABLE_JIT:
        return compiled
    template = compiled.get_call_template

    def by_type(args: Sequence[Any], kws: Any) -> Any:
        # without ``unliteral``, the function would be compiled again for each constant argument
        return template(tuple(map(types.unliteral, args)), kws)

    compiled.get_call_template = by_type
    return compiled
